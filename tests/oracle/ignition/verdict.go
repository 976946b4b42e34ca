package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	v3 "github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/ignition/v2/config/v3_6/types"
	"github.com/vincent-petithory/dataurl"
)

// Verdict is what the library makes of a case.
type Verdict struct {
	Accepted bool `json:"accepted"`
	// Foreign says that the case holds other formats, of which this program says nothing.
	Foreign     bool            `json:"foreign,omitempty"`
	Error       string          `json:"error,omitempty"`
	Warnings    []string        `json:"warnings,omitempty"`
	Files       map[string]Node `json:"files,omitempty"`
	Directories map[string]Node `json:"directories,omitempty"`
	Links       map[string]Node `json:"links,omitempty"`
	Units       map[string]Unit `json:"units,omitempty"`
	Users       map[string]User `json:"users,omitempty"`
	Groups      map[string]any  `json:"groups,omitempty"`
	// Others are sections that this program does not take apart.
	Others []string `json:"others,omitempty"`
}

// Node is a file, directory or link. What is not given is null.
type Node struct {
	Mode   *int    `json:"mode"`
	User   any     `json:"user"`
	Group  any     `json:"group"`
	Target *string `json:"target,omitempty"`
	Hard   *bool   `json:"hard,omitempty"`
	// Content is the SHA-256 of what a file holds, with all that is appended.
	Content *string `json:"content,omitempty"`
	// Appends says that something is appended to content that is not given.
	Appends bool `json:"appends,omitempty"`
}

// Unit is a unit of systemd with its drop-ins. What is not given is null.
type Unit struct {
	Contents *string            `json:"contents"`
	Enabled  *bool              `json:"enabled"`
	Mask     *bool              `json:"mask"`
	Dropins  map[string]*string `json:"dropins,omitempty"`
}

// User is an account.
type User struct {
	Keys    []string       `json:"keys,omitempty"`
	Account map[string]any `json:"account,omitempty"`
}

func refused(err error) Verdict { return Verdict{Error: err.Error()} }

// judge parses, translates, validates and merges the documents of a case.
func judge(one Case) Verdict {
	var whole types.Config
	var warnings []string
	for _, text := range one.Texts {
		found, err := documents(text)
		if errors.Is(err, errForeign) {
			return Verdict{Foreign: true, Error: err.Error()}
		}
		if err != nil {
			return refused(err)
		}
		for _, document := range found {
			config, said, err := parse(document)
			if err != nil {
				return refused(err)
			}
			warnings = append(warnings, said...)
			whole = v3.Merge(whole, config)
		}
	}
	verdict, err := summary(whole)
	if err != nil {
		return refused(err)
	}
	verdict.Warnings = warnings
	return verdict
}

func summary(config types.Config) (Verdict, error) {
	verdict := Verdict{
		Accepted:    true,
		Files:       map[string]Node{},
		Directories: map[string]Node{},
		Links:       map[string]Node{},
		Units:       units(config.Systemd.Units),
		Users:       users(config.Passwd.Users),
		Groups:      groups(config.Passwd.Groups),
		Others:      others(config),
	}
	for _, file := range config.Storage.Files {
		one := node(file.Node, file.Mode)
		content, err := content(file)
		if err != nil {
			return verdict, fmt.Errorf("%s: %w", file.Path, err)
		}
		one.Content = content
		one.Appends = content == nil && len(file.Append) > 0
		verdict.Files[file.Path] = one
	}
	for _, directory := range config.Storage.Directories {
		verdict.Directories[directory.Path] = node(directory.Node, directory.Mode)
	}
	for _, link := range config.Storage.Links {
		one := node(link.Node, nil)
		one.Target, one.Hard = link.Target, link.Hard
		verdict.Links[link.Path] = one
	}
	return verdict, nil
}

func node(from types.Node, mode *int) Node {
	return Node{
		Mode:  mode,
		User:  owner(from.User.ID, from.User.Name),
		Group: owner(from.Group.ID, from.Group.Name),
	}
}

// owner is a number or a name. Ignition looks at the number only where there is no name.
func owner(id *int, name *string) any {
	if id != nil {
		return *id
	}
	if name != nil && *name != "" {
		return *name
	}
	return nil
}

// content is the digest of what a file holds: nil where the config gives no contents.
func content(file types.File) (*string, error) {
	if file.Contents.Source == nil {
		for _, part := range file.Append {
			if _, err := decode(part); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	whole := sha256.New()
	for _, part := range append([]types.Resource{file.Contents}, file.Append...) {
		text, err := decode(part)
		if err != nil {
			return nil, err
		}
		whole.Write(text)
	}
	digest := hex.EncodeToString(whole.Sum(nil))
	return &digest, nil
}

// decode gives the bytes of a resource, as Ignition's fetcher does it for sources of the scheme data.
func decode(resource types.Resource) ([]byte, error) {
	if resource.Source == nil || *resource.Source == "" {
		return nil, verify(resource, nil)
	}
	address, err := url.Parse(*resource.Source)
	if err != nil {
		return nil, err
	}
	if address.Scheme != "data" {
		return nil, fmt.Errorf("remote source: %s", address.Scheme)
	}
	data, err := dataurl.DecodeString(address.String())
	if err != nil {
		return nil, err
	}
	text := data.Data
	if resource.Compression != nil && *resource.Compression == "gzip" {
		reader, err := gzip.NewReader(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		if text, err = io.ReadAll(reader); err != nil {
			return nil, err
		}
	}
	return text, verify(resource, text)
}

func verify(resource types.Resource, text []byte) error {
	hash := resource.Verification.Hash
	if hash == nil {
		return nil
	}
	kind, digits, _ := strings.Cut(*hash, "-")
	var have string
	switch kind {
	case "sha256":
		sum := sha256.Sum256(text)
		have = hex.EncodeToString(sum[:])
	case "sha512":
		sum := sha512.Sum512(text)
		have = hex.EncodeToString(sum[:])
	}
	if !strings.EqualFold(digits, have) {
		return fmt.Errorf("the hash does not match")
	}
	return nil
}

func units(from []types.Unit) map[string]Unit {
	all := map[string]Unit{}
	for _, unit := range from {
		dropins := map[string]*string{}
		for _, dropin := range unit.Dropins {
			dropins[dropin.Name] = dropin.Contents
		}
		all[unit.Name] = Unit{unit.Contents, unit.Enabled, unit.Mask, dropins}
	}
	return all
}
