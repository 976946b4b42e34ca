//! Declarations as they lie on disk: whose they may be, and what they hold.

use crate::{
    device::{Refusal, declaration::LARGEST, ledger::Files},
    path::AbsPath,
    reason::Reason,
    root::{Kind, Root, RootError, Stat},
    telemetry::chain,
};

/// More declarations than any machine has; the rest is reported and left.
const MOST_FILES: usize = 256;

/// Reads all declarations in `dirs`. `user` is the user besides root who may own them.
pub fn read_files(root: &Root, dirs: &[AbsPath], user: u32) -> Files {
    let mut files = Files::new();
    for dir in dirs {
        match root.stat(dir) {
            Ok(Some(stat)) => match owner_fault(&stat, user) {
                None => read_dir(root, dir, user, &mut files),
                Some(fault) => refuse(&mut files, dir, Reason::SourceUnreadable, &fault),
            },
            Ok(None) => {}
            Err(error) => refuse(&mut files, dir, Reason::SourceUnreadable, &chain(&error)),
        }
    }
    files
}

fn refuse(files: &mut Files, path: &AbsPath, reason: Reason, message: &str) {
    let refusal = Refusal::new(reason, message).file(path.as_str());
    files.insert(path.clone(), Err(refusal));
}

fn read_dir(root: &Root, dir: &AbsPath, user: u32, files: &mut Files) {
    let entries = match root.list(dir) {
        Ok(entries) => entries,
        Err(error) => return refuse(files, dir, Reason::SourceUnreadable, &chain(&error)),
    };
    let is_ours =
        |name: &str| !name.starts_with('.') && (name.ends_with(".yaml") || name.ends_with(".yml"));
    for entry in entries.into_iter().filter(|entry| is_ours(&entry.name)) {
        let Ok(file) = dir.join(&entry.name) else {
            continue;
        };
        if files.len() >= MOST_FILES {
            let message =
                format!("there are more than {MOST_FILES} declarations; the rest is left out");
            return refuse(files, dir, Reason::ValueInvalid, &message);
        }
        match read_file(root, &file, user) {
            Ok(Some(text)) => drop(files.insert(file, Ok(text))),
            Ok(None) => {}
            Err(message) => refuse(files, &file, Reason::SourceUnreadable, &message),
        }
    }
}

/// The text of one declaration; none when it vanished meanwhile.
pub(super) fn read_file(root: &Root, file: &AbsPath, user: u32) -> Result<Option<String>, String> {
    let stat = match root.stat(file) {
        Ok(Some(stat)) => stat,
        Ok(None) => return Ok(None),
        Err(error) => return Err(chain(&error)),
    };
    if stat.kind != Kind::File {
        let kind = stat.kind.as_str();
        return Err(format!(
            "it is a {kind}; declarations are regular files and links are not followed"
        ));
    }
    if let Some(fault) = owner_fault(&stat, user) {
        return Err(fault);
    }
    // The directory belongs to a trusted owner, so nobody else can put another file in between.
    match root.read_nofollow(file, LARGEST as u64) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| "it is not UTF-8 text".into()),
        Err(error) if error.is_not_found() => Ok(None),
        Err(RootError::TooLarge { limit, .. }) => Err(format!("it is larger than {limit} bytes")),
        Err(error) => Err(chain(&error)),
    }
}

/// Why a file or directory of this owner and mode is not believed.
pub(super) fn owner_fault(stat: &Stat, user: u32) -> Option<String> {
    if stat.uid != 0 && stat.uid != user {
        return Some(format!(
            "it belongs to user {}, not to root or the agent's user",
            stat.uid
        ));
    }
    let loose = stat.mode & 0o022 != 0 && stat.kind != Kind::Link;
    let (mode, most) = (stat.mode, stat.mode & !0o022);
    loose.then(|| format!("its mode {mode:04o} lets others write: {most:04o} at most"))
}
