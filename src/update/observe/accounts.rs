//! Users and groups of the root, read from its own files and never from this process's NSS.

use crate::{
    path::AbsPath,
    plan::{Account, Observed},
    root::{Root, RootError},
};

use super::{LONGEST_DATABASE, text_if_there};

/// Fills in users, groups and where sshd looks for keys.
pub(super) fn add(root: &Root, seen: &mut Observed) -> Result<(), RootError> {
    // Image-based hosts keep the vendor's accounts below /usr; the administrator's come first.
    for path in ["/etc/passwd", "/usr/lib/passwd"] {
        for line in text_if_there(root, path, LONGEST_DATABASE)?.lines() {
            if let Some((name, account)) = user(line) {
                seen.users.entry(name).or_insert(account);
            }
        }
    }
    for path in ["/etc/group", "/usr/lib/group"] {
        for line in text_if_there(root, path, LONGEST_DATABASE)?.lines() {
            let mut fields = line.split(':');
            if let (Some(name), Some(_), Some(gid)) = (fields.next(), fields.next(), fields.next())
                && let Ok(gid) = gid.parse()
            {
                seen.groups.entry(name.to_owned()).or_insert(gid);
            }
        }
    }
    seen.sshd_reads_keys_directory = sshd_reads_keys_directory(root)?;
    Ok(())
}

/// `name:password:uid:gid:comment:home:shell` (passwd(5)).
fn user(line: &str) -> Option<(String, Account)> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, uid, gid, _, home, ..] = fields.as_slice() else {
        return None;
    };
    let account = Account {
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
        home: AbsPath::new(*home)
            .ok()
            .filter(|home| *home != AbsPath::root()),
    };
    Some(((*name).to_owned(), account))
}

/// Whether sshd takes keys from `~/.ssh/authorized_keys.d/ignition`: named outright, or through the
/// helper that Fedora CoreOS and its relatives configure for that directory.
fn sshd_reads_keys_directory(root: &Root) -> Result<bool, RootError> {
    let mut texts = vec![text_if_there(
        root,
        "/etc/ssh/sshd_config",
        LONGEST_DATABASE,
    )?];
    for directory in ["/etc/ssh/sshd_config.d", "/usr/lib/ssh/sshd_config.d"] {
        for path in super::files_in(root, directory, ".conf")? {
            texts.push(text_if_there(root, path.as_str(), LONGEST_DATABASE)?);
        }
    }
    Ok(texts
        .iter()
        .flat_map(|text| text.lines())
        .any(names_keys_directory))
}

/// A line of sshd_config(5) that has keys of that directory read; the helper may be given the user's name.
fn names_keys_directory(line: &str) -> bool {
    let words = line.split([' ', '\t', '=', '"']);
    let mut words = words.filter(|word| !word.is_empty());
    let key = words.next().unwrap_or_default();
    if key.eq_ignore_ascii_case("AuthorizedKeysFile") {
        return words.any(|file| {
            let directory = file.strip_suffix("/ignition").or(file.strip_suffix("/*"));
            directory.is_some_and(|directory| directory.ends_with(".ssh/authorized_keys.d"))
        });
    }
    let command = words.next().unwrap_or_default();
    key.eq_ignore_ascii_case("AuthorizedKeysCommand") && command.ends_with("/ssh-key-dir")
}
