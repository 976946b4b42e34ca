package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// errForeign says that a text holds something that is neither Ignition nor a MachineConfig.
var errForeign = errors.New("the document is neither Ignition nor a MachineConfig")

// documents gives the Ignition configs in a text, as the API server and its clients take texts apart.
func documents(text string) ([]json.RawMessage, error) {
	var all []json.RawMessage
	for _, part := range split(text) {
		raw, err := yaml.YAMLToJSON([]byte(part))
		if err != nil {
			return nil, err
		}
		if string(raw) == "null" {
			continue
		}
		found, err := configs(raw)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// split divides a text where a line begins with three dashes. JSON has no such line.
func split(text string) []string {
	var parts []string
	for _, part := range strings.Split("\n"+text, "\n---") {
		if strings.TrimSpace(part) != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

// configs gives the Ignition configs of one document, which may be a list of others.
func configs(raw json.RawMessage) ([]json.RawMessage, error) {
	var object struct {
		Kind     string            `json:"kind"`
		Items    []json.RawMessage `json:"items"`
		Ignition json.RawMessage   `json:"ignition"`
		Variant  *string           `json:"variant"`
		Spec     struct {
			Config json.RawMessage `json:"config"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, err
	}
	switch {
	case object.Variant != nil:
		return nil, errForeign
	case object.Ignition != nil:
		return []json.RawMessage{raw}, nil
	case object.Kind == "List" || object.Kind == "MachineConfigList":
		var all []json.RawMessage
		for _, item := range object.Items {
			found, err := configs(item)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
	case object.Kind == "MachineConfig":
		config := object.Spec.Config
		if len(config) == 0 || string(config) == "null" {
			return nil, nil
		}
		return []json.RawMessage{config}, nil
	}
	return nil, fmt.Errorf("%w: kind %q", errForeign, object.Kind)
}
