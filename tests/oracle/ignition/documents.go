package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	butane "github.com/coreos/butane/config"
	"github.com/coreos/butane/config/common"
	"sigs.k8s.io/yaml"
)

// errForeign says that a text holds something that is neither Ignition, Butane nor a MachineConfig.
var errForeign = errors.New("the document is neither Ignition, Butane nor a MachineConfig")

// documents gives the Ignition configs in a text, as the API server and its clients take texts apart.
func documents(text string) ([]json.RawMessage, error) {
	var all []json.RawMessage
	for _, part := range split(text) {
		raw, err := toJSON([]byte(part))
		if err != nil {
			return nil, err
		}
		if string(raw) == "null" {
			continue
		}
		var object struct {
			Variant *string `json:"variant"`
		}
		if json.Unmarshal(raw, &object) == nil && object.Variant != nil {
			if raw, err = fromButane([]byte(part)); err != nil {
				return nil, err
			}
		}
		found, err := configs(raw)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// toJSON keeps JSON as it is: it has escapes that YAML does not know.
func toJSON(text []byte) (json.RawMessage, error) {
	if json.Valid(text) {
		return text, nil
	}
	return yaml.YAMLToJSON(text)
}

// fromButane translates a Butane config to Ignition or to a MachineConfig, without files beside it.
func fromButane(text []byte) (json.RawMessage, error) {
	config, report, err := butane.TranslateBytes(text, common.TranslateBytesOptions{})
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, report.String())
	}
	return yaml.YAMLToJSON(config)
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
		Spec     struct {
			Config json.RawMessage `json:"config"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, err
	}
	switch {
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
