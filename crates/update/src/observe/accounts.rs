//! Reads users and groups from the root's own files, never from this process's NSS.

use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;
use machinist_plan::{MachineFacts, UserFacts};
use machinist_rootfs::{Root, RootError};

use super::{
    MAX_DATABASE_BYTES,
    parent_resolver::ParentResolver,
    planned_texts::{ConfigChange, PlannedTexts},
    sshd_config, text_if_there,
};

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

/// Fills in the locations of sshd's key files, in the current tree and as planned.
pub(super) fn add_key_locations(
    root: &Root,
    [from, to]: [&MachineConfig; 2],
    places: &mut ParentResolver<'_>,
    seen: &mut MachineFacts,
) -> Result<(), RootError> {
    if from.users.is_empty() && to.users.is_empty() {
        return Ok(());
    }
    let today = sshd_config::keys(PlannedTexts::today(root))?;
    seen.sshd_read_keys_directory = today.reads_directory();
    let (originals, adopted) = (&seen.originals, &seen.adopted);
    let change = ConfigChange {
        from,
        to,
        originals,
        adopted,
    };
    let planned = sshd_config::keys(PlannedTexts::planned(root, change, places))?;
    seen.sshd_reads_keys_directory = planned.reads_directory();
    seen.sshd_keys_elsewhere = planned.elsewhere();
    seen.sshd_match_blocks = planned.elsewhere_for_some();
    Ok(())
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
