//! Detects entries that exclude each other: two kinds of object at one path, or an object below a
//! file.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{EntryOrigin, MachineConfig, Refusal};
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// The directory where the units of a config are written.
pub(super) const UNIT_DIRECTORY: &str = "/etc/systemd/system";

/// The account databases; a config manages only single lines of these files.
const ACCOUNT_DATABASES: [&str; 6] = [
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/gshadow",
    "/etc/subuid",
    "/etc/subgid",
];

/// How a path of [`ACCOUNT_DATABASES`] is claimed.
const ACCOUNT_ENTRIES: &str = "entries of users and groups";

/// The entry that claims a path.
struct PathClaim<'c> {
    what: String,
    holds_entries: bool,
    origin: &'c EntryOrigin,
}

/// Every pair of entries that exclude each other.
///
/// Entries below a symbolic *link* are allowed: its target is only known on the machine.
pub(super) fn find(config: &MachineConfig) -> Vec<Refusal> {
    let (claims, mut refusals) = claims(config);
    for (path, claim) in &claims {
        let above = path.ancestors().find_map(|above| {
            let claim = claims.get(&above).filter(|claim| !claim.holds_entries)?;
            Some((above, claim))
        });
        if let Some(above) = above {
            let (above, claim_above) = above;
            refusals.push(clash(path, claim, &above, claim_above));
        }
    }
    refusals
}

fn claims(config: &MachineConfig) -> (BTreeMap<AbsPath, PathClaim<'_>>, Vec<Refusal>) {
    let mut claims: BTreeMap<AbsPath, PathClaim<'_>> = BTreeMap::new();
    let mut refusals = Vec::new();
    for (path, claim) in all(config) {
        match claims.entry(path) {
            Entry::Vacant(place) => {
                place.insert(claim);
            }
            Entry::Occupied(mut place) => {
                refusals.push(clash(place.key(), &claim, place.key(), place.get()));
                // Whichever of the two the user removes, conflicts below the path should be
                // reported in the same run.
                if !claim.holds_entries {
                    place.insert(claim);
                }
            }
        }
    }
    (claims, refusals)
}

fn all(config: &MachineConfig) -> Vec<(AbsPath, PathClaim<'_>)> {
    let mut all = Vec::new();
    let mut add = |path: &AbsPath, what: String, holds_entries, origin| {
        let claim = PathClaim {
            what,
            holds_entries,
            origin,
        };
        all.push((path.clone(), claim));
    };
    for (path, directory) in &config.directories {
        add(path, "a directory".into(), true, &directory.origin);
    }
    for (path, link) in &config.links {
        let what = if link.hard { "a hard link" } else { "a link" };
        add(path, what.into(), !link.hard, &link.origin);
    }
    for (path, file) in &config.files {
        add(path, "a file".into(), false, &file.origin);
    }
    if let Some(origin) = first_of_accounts(config) {
        for path in ACCOUNT_DATABASES
            .iter()
            .filter_map(|path| AbsPath::new(*path).ok())
        {
            add(&path, ACCOUNT_ENTRIES.into(), false, origin);
        }
    }
    let Ok(unit_directory) = AbsPath::new(UNIT_DIRECTORY) else {
        return all;
    };
    for (name, unit) in &config.units {
        if let Ok(path) = unit_directory.join(name.as_str())
            && (unit.contents.is_some() || unit.mask)
        {
            add(&path, format!("the unit {name}"), false, &unit.origin);
        }
        for drop_in in unit.dropins.keys() {
            if let Ok(path) = unit_directory.join(&format!("{name}.d/{drop_in}")) {
                let what = format!("the drop-in {drop_in} of {name}");
                add(&path, what, false, &unit.origin);
            }
        }
    }
    all
}

/// The origin of the first user or group that has entries in the databases.
fn first_of_accounts(config: &MachineConfig) -> Option<&EntryOrigin> {
    let accounts = config.users.values().filter(|user| user.account.is_some());
    let users = accounts.map(|user| &user.origin);
    users
        .chain(config.groups.values().map(|group| &group.origin))
        .next()
}

fn clash(
    path: &AbsPath,
    later: &PathClaim<'_>,
    earlier_path: &AbsPath,
    earlier: &PathClaim<'_>,
) -> Refusal {
    if later.what == ACCOUNT_ENTRIES || earlier.what == ACCOUNT_ENTRIES {
        let (accounts, other) = match later.what == ACCOUNT_ENTRIES {
            true => (later, earlier),
            false => (earlier, later),
        };
        let message = format!(
            "{path} cannot be {} in {}, because the users and groups in {} get entries in it",
            other.what,
            place(other.origin),
            place(accounts.origin)
        );
        return Refusal::new(Reason::EntryDuplicate, message).at(later.origin);
    }
    // The place of the refusal names an object already.
    let own = match &later.origin.config {
        Some(name) if !later.origin.is_object => format!(" in {name}"),
        _ => String::new(),
    };
    let at = match path == earlier_path {
        true => String::new(),
        false => format!(" at {earlier_path}"),
    };
    let message = format!(
        "{path} is {}{own}, but {}{at} in {} excludes it",
        later.what,
        earlier.what,
        place(earlier.origin)
    );
    Refusal::new(Reason::EntryDuplicate, message).at(later.origin)
}

/// An origin in the middle of a message: `10-chrony (machine.d/10-chrony.yaml:12:9)`, or of an object
/// `MachineConfig 10-chrony (spec.config.storage.files[0])`.
pub(super) fn place(origin: &EntryOrigin) -> String {
    if let Some(object) = origin.file.as_ref().filter(|_| origin.is_object) {
        return match &origin.field {
            Some(field) => format!("{object} ({field})"),
            None => object.to_string(),
        };
    }
    let mut text = origin.config.as_deref().unwrap_or_default().to_owned();
    let Some(file) = &origin.file else {
        return text;
    };
    let mut position = file.to_string();
    for number in [origin.line, origin.column].into_iter().flatten() {
        position.push_str(&format!(":{number}"));
    }
    if text.is_empty() {
        return position;
    }
    text.push_str(&format!(" ({position})"));
    text
}
