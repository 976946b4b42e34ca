//! Reads users and groups from the root's own files, never from this process's NSS.

use std::collections::{BTreeMap, BTreeSet};

use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;
use machinist_plan::{
    MachineFacts, UserFacts,
    sshd_config::{SshdConfig, SshdValue},
};
use machinist_rootfs::{Root, RootError};

use super::{
    MAX_DATABASE_BYTES,
    parent_resolver::ParentResolver,
    planned_texts::{ConfigChange, PlannedTexts},
    sshd_config, text_if_there,
};

/// The directory of the homes that no account names yet.
const DEFAULT_HOMES: &str = "/home";

/// Fills in users and groups.
pub(super) fn add(root: &Root, seen: &mut MachineFacts) -> Result<(), RootError> {
    // Image-based hosts keep the vendor's accounts below /usr; the administrator's accounts take precedence.
    for path in ["/etc/passwd", "/usr/lib/passwd"] {
        for line in text_if_there(root, path, MAX_DATABASE_BYTES)?.lines() {
            if let Some((name, account)) = user(line) {
                seen.users.entry(name).or_insert(account);
            }
        }
    }
    for path in ["/etc/group", "/usr/lib/group"] {
        for line in text_if_there(root, path, MAX_DATABASE_BYTES)?.lines() {
            let mut fields = line.split(':');
            if let (Some(name), Some(_), Some(gid)) = (fields.next(), fields.next(), fields.next())
                && let Ok(gid) = gid.parse()
            {
                seen.groups.entry(name.to_owned()).or_insert(gid);
            }
        }
    }
    Ok(())
}

/// Fills in the locations of sshd's key files, in the current tree and as planned, and the shells that are missing.
pub(super) fn add_login_facts(
    root: &Root,
    [from, to]: [&MachineConfig; 2],
    places: &mut ParentResolver<'_>,
    seen: &mut MachineFacts,
) -> Result<(), RootError> {
    if from.users.is_empty() && to.users.is_empty() {
        return Ok(());
    }
    seen.sshd_before = sshd_config::read(PlannedTexts::today(root))?;
    let mut today = ParentResolver::today(root);
    add_links(&mut seen.sshd_before, &seen.users, [from, to], &mut today);
    let (originals, adopted) = (&seen.originals, &seen.adopted);
    let change = ConfigChange {
        from,
        to,
        originals,
        adopted,
    };
    seen.sshd = sshd_config::read(PlannedTexts::planned(root, change, places))?;
    add_links(&mut seen.sshd, &seen.users, [from, to], places);
    let missing = missing_shells(to, PlannedTexts::planned(root, change, places));
    seen.accounts.missing_shells = missing;
    Ok(())
}

/// Returns the shells of users that are no programs. One that cannot be examined counts as a program.
fn missing_shells(to: &MachineConfig, mut texts: PlannedTexts<'_, '_, '_>) -> BTreeSet<AbsPath> {
    let accounts = to.users.values().filter_map(|user| user.account.as_ref());
    let shells = accounts.filter_map(|account| account.shell.as_ref());
    let missing = shells.filter(|shell| matches!(texts.is_program(shell), Ok(false)));
    missing.cloned().collect()
}

/// Fills in the real directories of the homes and of the directories that `AuthorizedKeysFile` names, so that both are
/// compared as sshd finds them.
fn add_links(
    sshd: &mut SshdConfig,
    users: &BTreeMap<String, UserFacts>,
    configs: [&MachineConfig; 2],
    places: &mut ParentResolver<'_>,
) {
    let mut paths = BTreeSet::from([DEFAULT_HOMES.to_owned()]);
    for (name, user) in configs.iter().flat_map(|config| &config.users) {
        let there = users.get(name).and_then(|account| account.home.clone());
        let given = user.account.as_ref().and_then(|one| one.home_dir.clone());
        let homes = there.into_iter().chain(given);
        paths.extend(homes.map(|home| home.to_string()));
    }
    for setting in &sshd.settings {
        if let SshdValue::Files(files) = &setting.value {
            // Up to the first component with a token or wildcard.
            let fixed = files
                .iter()
                .map(|file| file.split(['%', '*', '?', '[']).next());
            let fixed = fixed.flatten().filter_map(|file| file.rsplit_once('/'));
            paths.extend(fixed.map(|(directory, _)| directory.to_owned()));
        }
    }
    let paths: Vec<AbsPath> = paths
        .into_iter()
        .filter_map(|path| AbsPath::new(path).ok())
        .collect();
    let above = paths.iter().flat_map(AbsPath::ancestors);
    for path in above.chain(paths.iter().cloned()) {
        // A directory that cannot be examined is reported where the keys are written.
        if let Ok(real) = places.end(&path)
            && real != path
        {
            sshd.links.insert(path, real);
        }
    }
}

/// Parses `name:password:uid:gid:comment:home:shell` (passwd(5)).
fn user(line: &str) -> Option<(String, UserFacts)> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, ..] = fields.as_slice() else {
        return None;
    };
    let account = UserFacts {
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        home: AbsPath::new(*home)
            .ok()
            .filter(|home| *home != AbsPath::root()),
    };
    Some(((*name).to_owned(), account))
}
