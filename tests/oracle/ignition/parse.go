package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coreos/ign-converter/translate/v24tov31"
	shared "github.com/coreos/ignition/config/shared/errors"
	v2 "github.com/coreos/ignition/config/v2_4"
	v2types "github.com/coreos/ignition/config/v2_4/types"
	v3 "github.com/coreos/ignition/v2/config/v3_6"
	"github.com/coreos/ignition/v2/config/v3_6/types"
)

// parse reads a document of any version and gives it in the newest one, with the library's warnings.
func parse(raw []byte) (types.Config, []string, error) {
	config, report, err := v3.ParseCompatibleVersion(raw)
	var warnings []string
	for _, entry := range report.Entries {
		warnings = append(warnings, entry.String())
	}
	if err == nil {
		return config, warnings, nil
	}
	old, err2 := parse2(raw)
	if err2 == nil {
		return old, nil, nil
	}
	if errors.Is(err2, shared.ErrUnknownVersion) {
		return config, warnings, fmt.Errorf("%w %v", err, warnings)
	}
	return config, nil, err2
}

// parse2 reads a document of Ignition 2 and translates it.
func parse2(raw []byte) (types.Config, error) {
	old, report, err := v2.Parse(raw)
	if err != nil {
		return types.Config{}, fmt.Errorf("%w: %s", err, report.String())
	}
	newer, err := v24tov31.Translate(withoutDuplicates(old), map[string]string{})
	if err != nil {
		return types.Config{}, err
	}
	text, err := json.Marshal(newer)
	if err != nil {
		return types.Config{}, err
	}
	config, _, err := v3.ParseCompatibleVersion(text)
	return config, err
}

// withoutDuplicates keeps, as OpenShift does before it translates, the last of the files of one path and of
// the units of one name, with the drop-ins of all of these, and one user of a name with the keys of all.
func withoutDuplicates(config v2types.Config) v2types.Config {
	files := config.Storage.Files
	config.Storage.Files = lastOfEach(files, func(file v2types.File) string { return file.Path })
	dropins := map[string][]v2types.SystemdDropin{}
	for _, unit := range config.Systemd.Units {
		dropins[unit.Name] = append(dropins[unit.Name], unit.Dropins...)
	}
	units := lastOfEach(config.Systemd.Units, func(unit v2types.Unit) string { return unit.Name })
	for i, unit := range units {
		name := func(dropin v2types.SystemdDropin) string { return dropin.Name }
		units[i].Dropins = lastOfEach(dropins[unit.Name], name)
	}
	config.Systemd.Units = units
	keys := map[string][]v2types.SSHAuthorizedKey{}
	for _, user := range config.Passwd.Users {
		keys[user.Name] = append(keys[user.Name], user.SSHAuthorizedKeys...)
	}
	users := lastOfEach(config.Passwd.Users, func(user v2types.PasswdUser) string { return user.Name })
	for i, user := range users {
		key := func(key v2types.SSHAuthorizedKey) string { return string(key) }
		users[i].SSHAuthorizedKeys = lastOfEach(keys[user.Name], key)
	}
	config.Passwd.Users = users
	return config
}

// lastOfEach keeps the last of those items that have the same name.
func lastOfEach[T any](items []T, name func(T) string) []T {
	last := map[string]int{}
	for i, item := range items {
		last[name(item)] = i
	}
	var kept []T
	for i, item := range items {
		if last[name(item)] == i {
			kept = append(kept, item)
		}
	}
	return kept
}
