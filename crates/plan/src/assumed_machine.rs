//! Plans a change of configs without a machine: for one that matches its config exactly. Units that the configs or
//! policies name but do not contain are assumed to exist and to run, so that the plan does not promise less disruption
//! than a machine needs. Users and groups are compared as entries, because their files are not known.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Capabilities, ChangeKind, FileFacts, MachineFacts, MountFacts, ObjectKind, OsCapabilities,
    OsFacts, Plan, PlanChange, Policies, UnitEntry, UnitFacts, UserFacts, between,
    desired_tree::{ConfigSide, DesiredObject, DesiredTree, ObjectSpec},
    enablement::unit_name,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{
    EntryKind, KernelCommandLine, MachineConfig, Owner, Refusal, Unit, UnitName,
};

/// Where units that no config contains are assumed to be.
const VENDOR_DIR: &str = "/usr/lib/systemd/system";

/// The text of such a unit: it can be enabled.
const VENDOR_UNIT: &str = "[Install]\nWantedBy=multi-user.target\n";

/// The first ID of users and groups that configs name.
const FIRST_ASSUMED_ID: u32 = 100_000;

/// The policy of changed users and groups.
const ACCOUNTS_RULE: &str = "builtin:accounts";

/// Plans the change of a machine that matches `from` exactly.
///
/// # Errors
/// What every machine refuses, and what depends on files of the machine that no config contains.
pub fn without_machine(
    from: &MachineConfig,
    to: &MachineConfig,
    policies: &Policies,
) -> Result<Plan, Vec<Refusal>> {
    let accounts = account_changes(from, to);
    let [old, new] = [from, to].map(without_accounts);
    let facts = assumed([&old, &new], policies);
    let capabilities = Capabilities {
        live: true,
        chown: true,
        os: OsCapabilities::default(),
    };
    let mut plan = between(&old, &new, &facts, policies, capabilities)?;
    plan.from = super::ConfigRef::of(from);
    plan.to = super::ConfigRef::of(to);
    plan.changes.extend(accounts);
    Ok(plan)
}

fn without_accounts(config: &MachineConfig) -> MachineConfig {
    MachineConfig {
        users: BTreeMap::new(),
        groups: BTreeMap::new(),
        ..config.clone()
    }
}

/// The changes of users, their keys, and groups. They need no action.
fn account_changes(from: &MachineConfig, to: &MachineConfig) -> Vec<PlanChange> {
    let mut changes = Vec::new();
    let mut add = |kind, name: &str, (had, has): (bool, bool), is_same: bool| {
        let (change, what) = match (had, has) {
            (false, true) => (ChangeKind::Create, "new"),
            (true, false) => (ChangeKind::Remove, "removed from the config"),
            (true, true) if !is_same => (ChangeKind::Modify, "differs"),
            _ => return,
        };
        changes.push(PlanChange {
            kind,
            name: name.to_owned(),
            change,
            fields: Vec::new(),
            before: None,
            after: None,
            diff: None,
            actions: Vec::new(),
            policy: ACCOUNTS_RULE.to_owned(),
            why: what.to_owned(),
        });
    };
    let users: BTreeSet<&String> = from.users.keys().chain(to.users.keys()).collect();
    for name in users {
        let both = [from, to].map(|config| config.users.get(name));
        let [old, new] = both.map(|user| user.and_then(|user| user.account.as_ref()));
        add(
            EntryKind::User,
            name,
            (old.is_some(), new.is_some()),
            old == new,
        );
        let [old, new] = both.map(|user| user.map(|user| user.ssh_authorized_keys.as_slice()));
        let [old, new] = [old, new].map(Option::unwrap_or_default);
        let there = (!old.is_empty(), !new.is_empty());
        add(EntryKind::SSHKey, name, there, old == new);
    }
    let groups: BTreeSet<&String> = from.groups.keys().chain(to.groups.keys()).collect();
    for name in groups {
        let [old, new] = [from, to].map(|config| config.groups.get(name));
        add(
            EntryKind::Group,
            name,
            (old.is_some(), new.is_some()),
            old == new,
        );
    }
    changes
}

/// The facts about the machine.
fn assumed(configs: [&MachineConfig; 2], policies: &Policies) -> MachineFacts {
    let [from, to] = configs;
    let mut facts = MachineFacts {
        kernel_arguments: KernelCommandLine::of(&from.kernel_arguments),
        os: OsFacts {
            image: from.os_image_url.clone(),
            fips: from.fips,
            own_arguments: KernelCommandLine::of(&from.kernel_arguments),
            ..OsFacts::default()
        },
        ..MachineFacts::default()
    };
    let mount = MountFacts {
        read_only: false,
        free_bytes: u64::MAX,
        free_inodes: None,
        staging: true,
        overlay: false,
    };
    facts.mounts.insert(AbsPath::root(), mount);
    add_owners(&mut facts, configs);
    add_units(&mut facts, configs, policies);
    let before = DesiredTree::of(from, &facts, ConfigSide::Before);
    add_objects(&mut facts, &before);
    let after = DesiredTree::of(to, &facts, ConfigSide::After(from));
    add_directories(&mut facts, [&before, &after]);
    facts
}

/// The users and groups that own files by name.
fn add_owners(facts: &mut MachineFacts, configs: [&MachineConfig; 2]) {
    let mut next = FIRST_ASSUMED_ID;
    let mut add = |user: Option<&Owner>, group: Option<&Owner>| {
        if let Some(Owner::Name(name)) = user {
            let account = UserFacts {
                uid: next,
                gid: next,
                home: None,
            };
            facts.users.entry(name.clone()).or_insert(account);
        }
        if let Some(Owner::Name(name)) = group {
            facts.groups.entry(name.clone()).or_insert(next);
        }
        next = next.saturating_add(1);
    };
    for config in configs {
        for file in config.files.values() {
            add(file.user.as_ref(), file.group.as_ref());
        }
        for directory in config.directories.values() {
            add(directory.user.as_ref(), directory.group.as_ref());
        }
        for link in config.links.values() {
            add(Some(&link.user), Some(&link.group));
        }
    }
}

/// The units of the base config, and those that no config contains.
fn add_units(facts: &mut MachineFacts, [from, to]: [&MachineConfig; 2], policies: &Policies) {
    let has_file = |config: &MachineConfig, name: &UnitName| {
        let unit = config.units.get(name);
        let path = AbsPath::new(format!("{}/{name}", super::UNIT_DIR)).ok();
        unit.is_some_and(|unit| unit.contents.is_some())
            || path.is_some_and(|path| config.files.contains_key(&path))
    };
    let runs = |unit: Option<&Unit>| unit.is_none_or(|it| it.enabled != Some(false) && !it.mask);
    let mut named: BTreeSet<String> = policies.unit_names();
    for name in from.units.keys().chain(to.units.keys()) {
        named.insert(name.to_string());
    }
    for name in named {
        let Ok(unit) = UnitName::new(&name) else {
            continue;
        };
        let is_own = has_file(from, &unit);
        if !is_own && has_file(to, &unit) {
            continue;
        }
        let active = if runs(from.units.get(&unit)) {
            "active"
        } else {
            "inactive"
        };
        let file = match is_own {
            true => None,
            false => vendor_file(facts, &name),
        };
        let found = UnitFacts {
            load: Some("loaded".to_owned()),
            active: Some(active.to_owned()),
            vendor_file: file,
        };
        facts.units.insert(name, found);
    }
}

/// The assumed file of a unit; that of its template for an instance.
fn vendor_file(facts: &mut MachineFacts, name: &str) -> Option<AbsPath> {
    let file = unit_name::template(name).unwrap_or_else(|| name.to_owned());
    let path = AbsPath::new(format!("{VENDOR_DIR}/{file}")).ok()?;
    facts.unit_files.insert(path.clone(), UnitEntry::File);
    facts.texts.insert(path.clone(), VENDOR_UNIT.to_owned());
    Some(path)
}

/// The objects of the base config, with the texts that differences are shown of.
fn add_objects(facts: &mut MachineFacts, before: &DesiredTree) {
    let inodes: BTreeMap<&AbsPath, u64> = before.objects.keys().zip(1..).collect();
    let mut names: BTreeMap<&AbsPath, u32> = BTreeMap::new();
    for (path, wanted) in &before.objects {
        *names.entry(wanted.object.file(path)).or_default() += 1;
    }
    for (path, wanted) in &before.objects {
        let file = wanted.object.file(path);
        let found = before.objects.get(file).unwrap_or(wanted);
        let inode = inodes.get(file).copied().unwrap_or_default();
        let object = FileFacts {
            names: names.get(file).copied().unwrap_or(1),
            ..object(found, inode)
        };
        if let ObjectSpec::File { content, .. } = &found.object
            && let Some(Ok(text)) = content.bytes().map(std::str::from_utf8)
        {
            facts.texts.insert(path.clone(), text.to_owned());
        }
        if let Some(entry) = unit_entry(path, &wanted.object) {
            facts.unit_files.insert(path.clone(), entry);
        }
        facts.objects.insert(path.clone(), object);
    }
}

fn unit_entry(path: &AbsPath, object: &ObjectSpec) -> Option<UnitEntry> {
    path.as_str()
        .strip_prefix(super::UNIT_DIR)?
        .strip_prefix('/')?;
    match object {
        ObjectSpec::File { content, .. } if content.size() == 0 => Some(UnitEntry::Empty),
        ObjectSpec::File { .. } => Some(UnitEntry::File),
        ObjectSpec::Link { target, .. } => Some(UnitEntry::Link(target.clone())),
        _ => None,
    }
}

fn object(wanted: &DesiredObject, inode: u64) -> FileFacts {
    let summary = wanted.object.summary();
    let (uid, gid) = wanted.object.owner();
    let mode = match &wanted.object {
        ObjectSpec::File { mode, .. } | ObjectSpec::Directory { mode, .. } => *mode,
        ObjectSpec::Partial {
            mode, directory, ..
        } => mode.unwrap_or(if *directory { 0o755 } else { 0o644 }),
        ObjectSpec::Link { .. } | ObjectSpec::Hard { .. } => 0o777,
    };
    FileFacts {
        mode,
        uid,
        gid,
        size: summary.size.unwrap_or_default(),
        digest: summary.digest,
        target: summary.target,
        inode,
        ..facts_of(wanted.object.kind())
    }
}

fn facts_of(kind: ObjectKind) -> FileFacts {
    FileFacts {
        kind,
        mode: 0o755,
        uid: 0,
        gid: 0,
        size: 0,
        digest: None,
        target: None,
        device: (0, 0),
        inode: 0,
        names: 1,
        mount_point: false,
        immutable: false,
        mount: AbsPath::root(),
        label: None,
        relabelled: false,
        access_list: false,
        attributes: false,
    }
}

/// The directories above all objects, except those that the new config creates.
fn add_directories(facts: &mut MachineFacts, trees: [&DesiredTree; 2]) {
    let paths = trees.into_iter().flat_map(|tree| tree.objects.keys());
    let above: BTreeSet<AbsPath> = paths.flat_map(AbsPath::ancestors).collect();
    let [_, after] = trees;
    let mut names: BTreeMap<AbsPath, BTreeSet<String>> = BTreeMap::new();
    for path in facts.objects.keys() {
        if let Some(parent) = path.parent() {
            let name = path.file_name().to_owned();
            names.entry(parent).or_default().insert(name);
        }
    }
    facts.children.extend(names);
    for path in above {
        if !after.objects.contains_key(&path) {
            let directory = facts_of(ObjectKind::Directory);
            facts.objects.entry(path).or_insert(directory);
        }
    }
}

#[cfg(test)]
mod tests;
