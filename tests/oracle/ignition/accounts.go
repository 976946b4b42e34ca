package main

import "github.com/coreos/ignition/v2/config/v3_6/types"

func users(from []types.PasswdUser) map[string]User {
	all := map[string]User{}
	for _, user := range from {
		var keys, groups []string
		for _, key := range user.SSHAuthorizedKeys {
			keys = append(keys, string(key))
		}
		for _, group := range user.Groups {
			groups = append(groups, string(group))
		}
		account := map[string]any{}
		put(account, "uid", user.UID)
		put(account, "gecos", user.Gecos)
		put(account, "homeDir", user.HomeDir)
		put(account, "noCreateHome", user.NoCreateHome)
		put(account, "noUserGroup", user.NoUserGroup)
		put(account, "passwordHash", user.PasswordHash)
		put(account, "primaryGroup", user.PrimaryGroup)
		put(account, "shell", user.Shell)
		put(account, "shouldExist", user.ShouldExist)
		put(account, "system", user.System)
		if groups != nil {
			account["groups"] = groups
		}
		all[user.Name] = User{keys, account}
	}
	return all
}

func groups(from []types.PasswdGroup) map[string]any {
	all := map[string]any{}
	for _, group := range from {
		said := map[string]any{}
		put(said, "gid", group.Gid)
		put(said, "passwordHash", group.PasswordHash)
		put(said, "shouldExist", group.ShouldExist)
		put(said, "system", group.System)
		all[group.Name] = said
	}
	return all
}

// put keeps a value that the config gives.
func put[T any](into map[string]any, key string, value *T) {
	if value != nil {
		into[key] = *value
	}
}

// others names the sections that are not about files, units and accounts and hold something.
func others(config types.Config) []string {
	var names []string
	add := func(name string, there bool) {
		if there {
			names = append(names, name)
		}
	}
	add("disks", len(config.Storage.Disks) > 0)
	add("raid", len(config.Storage.Raid) > 0)
	add("filesystems", len(config.Storage.Filesystems) > 0)
	add("luks", len(config.Storage.Luks) > 0)
	arguments := config.KernelArguments
	add("kernelArguments", len(arguments.ShouldExist)+len(arguments.ShouldNotExist) > 0)
	reference := config.Ignition.Config
	add("config", len(reference.Merge) > 0 || reference.Replace.Source != nil)
	proxy := config.Ignition.Proxy
	add("proxy", proxy.HTTPProxy != nil || proxy.HTTPSProxy != nil || len(proxy.NoProxy) > 0)
	add("security", len(config.Ignition.Security.TLS.CertificateAuthorities) > 0)
	timeouts := config.Ignition.Timeouts
	add("timeouts", timeouts.HTTPResponseHeaders != nil || timeouts.HTTPTotal != nil)
	return names
}
