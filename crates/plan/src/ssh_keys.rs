//! Plans the SSH keys of existing users: a file managed by machinist where sshd reads it, otherwise
//! a block in the user's own file.

mod key_block;
mod locations;

pub use self::key_block::has_managed_keys;
pub(super) use self::key_block::without_block;
pub(super) use self::locations::is_read;
use self::{
    key_block::{has_open_block, lines, with_block},
    locations::{AUTHORIZED_KEYS_FILE, MANAGED_KEYS_FILE},
};
use super::{
    Attributes, MachineFacts, UserFacts, byte_text,
    desired_tree::{DesiredEntry, DesiredObject, DesiredTree, ObjectSpec, PathResolver},
    object::ObjectKind,
    public_key,
    steps::PathSteps,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{Content, EntryKind, MachineConfig, User};

/// The bits of a mode that a file of keys may have: others than its owner may only read it.
const MODES_FOR_KEYS: u32 = 0o644;
const READABLE_BY_OWNER: u32 = 0o400;
const READABLE_BY_ALL: u32 = 0o004;

/// The longest file of keys of a user that is read and changed.
pub const MAX_KEYS_FILE_BYTES: u64 = 256 * 1024;

/// How many characters of a key a warning shows.
const MAX_SHOWN_KEY_CHARS: usize = 24;

/// Adds the key files of the users that exist on the machine; other users are skipped with a
/// warning, as OpenShift does for a missing `core`.
pub(super) fn add(layout: &mut DesiredTree, config: &MachineConfig, place: &PathResolver<'_>) {
    for (name, user) in &config.users {
        // A user who is removed, or who is declared without keys, needs no key file.
        let unwanted = user.account.as_ref().is_some_and(|one| !one.exists());
        let no_keys = user.account.is_some() && user.ssh_authorized_keys.is_empty();
        if unwanted || no_keys {
            continue;
        }
        layout.warnings.extend(unreadable_keys(name, user));
        if let Err((code, why)) = add_user(layout, place, name, user) {
            let why = format!("{code}: {why}");
            layout.warnings.push(why.clone());
            layout.skipped.push(why);
        }
    }
}

fn add_user(
    layout: &mut DesiredTree,
    place: &PathResolver<'_>,
    name: &str,
    user: &User,
) -> Result<(), (Reason, String)> {
    let skipped = |code, why: String| (code, format!("{why}; the SSH keys for {name} are skipped"));
    let account = place.account(name).ok_or_else(|| {
        let why = format!("this machine has no user {name}");
        skipped(Reason::UserMissing, why)
    })?;
    let home = account.home.as_ref().ok_or_else(|| {
        let why = format!("{name} has no home directory");
        skipped(Reason::KeysSkipped, why)
    })?;
    let entry = DesiredEntry::new(EntryKind::SSHKey, name, &user.origin);
    let sshd = match place.before {
        true => &place.observed.sshd_before,
        false => &place.observed.sshd,
    };
    let (written, others) = locations::choose(sshd, name, account);
    for other in others.into_iter().filter(|_| place.before) {
        if let Ok(other) = home.join(other) {
            layout.add_earlier_keys(place, other, &entry, private_file(own_file(user), account));
        }
    }
    let mut outcome = Ok(());
    for below in written {
        let added = add_file(layout, place, (name, user, account), (home, below), &entry);
        outcome = outcome.and(added.map_err(|(code, why)| skipped(code, why)));
    }
    outcome
}

/// Adds the file at `below` in the home of a user. Returns why it is skipped.
fn add_file(
    layout: &mut DesiredTree,
    place: &PathResolver<'_>,
    (name, user, account): (&str, &User, &UserFacts),
    (home, below): (&AbsPath, &str),
    entry: &DesiredEntry,
) -> Result<(), (Reason, String)> {
    let skipped = |why| Err((Reason::KeysSkipped, why));
    let own = below == MANAGED_KEYS_FILE;
    // A block without keys would only be left over in the user's own file.
    if !own && !place.before && user.ssh_authorized_keys.is_empty() {
        return Ok(());
    }
    let Ok(asked) = home.join(below) else {
        return Ok(());
    };
    let file = place.of(&asked);
    // The file itself, then the directories between it and the home.
    let depth = below.split('/').count();
    let private: Vec<AbsPath> = std::iter::once(file.clone())
        .chain(file.ancestors())
        .take(depth)
        .collect();
    if let Some(why) = obstacle(place, &private) {
        layout.unsafe_keys.insert(file);
        return skipped(why);
    }
    let there = place.observed.objects.contains_key(&file);
    let leased = !own && place.observed.leased.contains(&file);
    let unreadable = unreadable_file(place.observed, &file, name);
    if let Some(why) = unreadable.filter(|_| !own && !place.before) {
        layout.unsafe_keys.insert(file);
        return skipped(why);
    }
    let is_read = place.before || leased || place.observed.texts.contains_key(&file);
    if !own && there && !is_read {
        let facts = place.observed.objects.get(&file);
        let why = match facts.is_some_and(|facts| facts.kind == ObjectKind::File) {
            true => format!("{file} is too large, or was replaced while it was read"),
            false => format!("{file} is not a regular file"),
        };
        return skipped(why);
    }
    let text = place
        .observed
        .texts
        .get(&file)
        .filter(|_| !own && !place.before);
    if text.is_some_and(|text| has_open_block(text)) {
        layout.warnings.push(format!(
            "{file} has the first line of managed keys without the last one: the keys after it stay when they leave \
             the config; remove them and that line if they are not {name}'s"
        ));
    }
    // Includes the home, in case the user was created without one.
    for directory in file.ancestors().take(depth) {
        layout.parents.insert(directory, private_directory(account));
    }
    let object = match own {
        true => private_file(own_file(user), account),
        false => shared_file(place, &file, user, account),
    };
    let is_too_large =
        matches!(&object, ObjectSpec::File { content, .. } if content.size() > MAX_KEYS_FILE_BYTES);
    if !own && !place.before && is_too_large {
        let most = MAX_KEYS_FILE_BYTES >> 10;
        return skipped(format!("{file} would have more than {most} KiB"));
    }
    layout.add(place, &asked, entry.clone(), object);
    Ok(())
}

/// Returns why keys cannot be added to this file of the user's own.
fn unreadable_file(observed: &MachineFacts, file: &AbsPath, name: &str) -> Option<String> {
    if observed.leased.contains(file) {
        return Some(format!("{file} is held by a lease of another process"));
    }
    // The user may have moved it there, and its lines would become lines of the user's file.
    let facts = observed.objects.get(file)?;
    let only_roots = facts.uid == 0 && facts.mode & 0o004 == 0;
    (only_roots && observed.exposed.contains(file))
        .then(|| format!("{file} belongs to root, and {name} cannot read it"))
}

impl DesiredTree {
    /// Adds the file that sshd reads only with another configuration: keys may have been written there when it had
    /// that configuration.
    fn add_earlier_keys(
        &mut self,
        place: &PathResolver<'_>,
        asked: AbsPath,
        entry: &DesiredEntry,
        object: ObjectSpec,
    ) {
        let file = place.of(&asked);
        if !self.speaks_of(&file) {
            let entry = entry.clone();
            let earlier = DesiredObject {
                entry,
                asked,
                object,
            };
            self.earlier_keys.insert(file, earlier);
        }
    }
}

impl PathSteps {
    /// Removes the keys that machinist wrote where sshd read them with an earlier configuration.
    pub(super) fn earlier_keys_leave(
        &mut self,
        before: &DesiredTree,
        after: &DesiredTree,
        observed: &MachineFacts,
    ) {
        for (path, wanted) in &before.earlier_keys {
            let facts = observed.objects.get(path);
            let ours = match &wanted.object {
                // Its managed block is removed.
                _ if is_shared(path) => observed.texts.contains_key(path),
                _ if observed.key_files.contains(path) => true,
                ObjectSpec::File { content, .. } => {
                    facts.is_some_and(|facts| facts.digest == Some(content.digest()))
                }
                _ => false,
            };
            if ours && !after.speaks_of(path) {
                self.keys_leave(path, wanted, facts, observed);
            }
        }
    }
}

/// Whether a file of SSH keys is one that users edit as well.
pub(super) fn is_shared(file: &AbsPath) -> bool {
    file.as_str().ends_with(AUTHORIZED_KEYS_FILE)
}

/// Whether the name of a file is one to which SSH keys are written.
pub fn is_keys_file(file: &AbsPath) -> bool {
    is_shared(file) || file.as_str().ends_with(MANAGED_KEYS_FILE)
}

/// A warning for each key that sshd skips.
fn unreadable_keys(name: &str, user: &User) -> Vec<String> {
    let place = match (&user.origin.file, user.origin.line) {
        (Some(file), Some(line)) => format!("{file}:{line}: "),
        (Some(file), None) => format!("{file}: "),
        _ => String::new(),
    };
    let keys = user.ssh_authorized_keys.iter();
    keys.filter_map(|key| {
        let why = public_key::fault(key)?;
        let mut start: String = key.chars().take(MAX_SHOWN_KEY_CHARS).collect();
        if start.len() < key.len() {
            start.push('…');
        }
        Some(format!(
            "{place}sshd ignores the SSH key \"{start}\" of {name}: {why}"
        ))
    })
    .collect()
}

/// What the owner of the home did to the file of keys or to a directory of it, the first of which is the file. It
/// must not hold back the rest of the config.
fn obstacle(place: &PathResolver<'_>, private: &[AbsPath]) -> Option<String> {
    if let Some(link) = private.iter().find(|path| is_link(place, path)) {
        // The owner of the home could redirect root's writes to any path.
        return Some(format!(
            "{link} is a symbolic link, which is not followed below a home directory"
        ));
    }
    if place.before {
        return None;
    }
    let (file, directories) = private.split_first()?;
    if let Some(why) = place.observed.unsafe_after.get(file) {
        return Some(format!("{file} is not safe to write: {why}"));
    }
    let kind = |path: &AbsPath| Some(place.observed.objects.get(path)?.kind);
    let not_one = |path: &&AbsPath| kind(path).is_some_and(|kind| kind != ObjectKind::Directory);
    if let Some(path) = directories.iter().find(not_one) {
        return Some(format!("{path} exists, but is not a directory"));
    }
    let directory = kind(file) == Some(ObjectKind::Directory);
    directory.then(|| format!("{file} is a directory, not a regular file"))
}

fn is_link(place: &PathResolver<'_>, path: &AbsPath) -> bool {
    let facts = place.observed.objects.get(path);
    facts.is_some_and(|facts| facts.kind == ObjectKind::Link)
}

fn private_directory(account: &UserFacts) -> ObjectSpec {
    ObjectSpec::Directory {
        mode: 0o700,
        uid: account.uid,
        gid: account.gid,
    }
}

fn private_file(content: Vec<u8>, account: &UserFacts) -> ObjectSpec {
    ObjectSpec::File {
        content: Content::new(content),
        mode: 0o600,
        uid: account.uid,
        gid: account.gid,
    }
}

/// The user's own file with the keys in it. It keeps its mode and owner where it can.
fn shared_file(
    place: &PathResolver<'_>,
    file: &AbsPath,
    user: &User,
    account: &UserFacts,
) -> ObjectSpec {
    let old = place.observed.texts.get(file).map_or("", String::as_str);
    let mut object = private_file(byte_text::to_bytes(&with_block(old, user)), account);
    if let (Some(there), ObjectSpec::File { mode, uid, gid, .. }) =
        (place.observed.objects.get(file), &mut object)
        && is_fit_for_keys(there.attributes(), account)
    {
        (*mode, *uid, *gid) = (there.mode, there.uid, there.gid);
    }
    object
}

/// Whether sshd reads keys from a file with this mode and owner: `StrictModes` wants it to belong to
/// the user or root and to be writable by no other user, and sshd reads it as the user.
fn is_fit_for_keys(there: Attributes, account: &UserFacts) -> bool {
    let readable = match there.uid {
        uid if uid == account.uid => READABLE_BY_OWNER,
        0 => READABLE_BY_ALL,
        _ => return false,
    };
    there.mode & readable != 0 && there.mode & !MODES_FOR_KEYS == 0
}

fn own_file(user: &User) -> Vec<u8> {
    lines(user.ssh_authorized_keys.iter().map(|key| key.trim_end())).into_bytes()
}

#[cfg(test)]
mod tests;
