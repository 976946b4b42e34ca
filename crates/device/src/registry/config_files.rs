//! Reads declaration files, and checks their owners and modes.
//!
//! A directory may be a ConfigMap volume. The kubelet makes such a volume world-writable, since other
//! users cannot reach it; each file is a link through `..data` into a subdirectory, which is replaced
//! as a whole.

use super::follow;
use crate::{Refusal, declaration::MAX_DOCUMENT_BYTES, registry_state::ConfigFiles};
use machinist_base::{abs_path::AbsPath, error_chain::chain, reason::Reason};
use machinist_rootfs::{DirEntry, FileKind, Root, RootError, Stat};

/// The maximum number of declarations, more than any machine has; the rest is reported and ignored.
const MAX_FILES: usize = 256;

/// The link in a ConfigMap volume to the directory of its files.
const CONFIG_MAP_DATA_LINK: &str = "..data";

/// Reads all declarations in `dirs`. `user` is the user besides root who may own them.
pub fn read_files(root: &Root, dirs: &[AbsPath], user: u32) -> ConfigFiles {
    let mut files = ConfigFiles::new();
    for dir in dirs {
        // The directory itself is checked separately, since it may be a ConfigMap volume.
        let above = dir.parent().filter(|_| root.accepts_only_root());
        let trusted = above.map_or(Ok(()), |above| root.check_trusted(&above));
        match trusted.and_then(|()| root.stat(dir)) {
            Ok(Some(stat)) => {
                let fault = owner_fault(&stat, user);
                read_dir(root, dir, (user, fault.as_deref()), &mut files);
            }
            Ok(None) => {}
            Err(error) => refuse(&mut files, dir, Reason::SourceUnreadable, &chain(&error)),
        }
    }
    files
}

fn refuse(files: &mut ConfigFiles, path: &AbsPath, reason: Reason, message: &str) {
    let refusal = Refusal::new(reason, message).file(path.as_str());
    files.insert(path.clone(), Err(refusal));
}

fn is_ours(name: &str) -> bool {
    !name.starts_with('.') && (name.ends_with(".yaml") || name.ends_with(".yml"))
}

/// Whether a file of this name is read at all.
pub fn is_declaration(file: &AbsPath) -> bool {
    is_ours(file.file_name())
}

/// Reads the declarations of a directory. If the directory is not trusted, because of `fault`, only
/// the links of a ConfigMap volume are read.
fn read_dir(
    root: &Root,
    dir: &AbsPath,
    (user, fault): (u32, Option<&str>),
    files: &mut ConfigFiles,
) {
    let entries = match root.list(dir) {
        Ok(entries) => entries,
        Err(error) => return refuse(files, dir, Reason::SourceUnreadable, &chain(&error)),
    };
    let data = |entry: &DirEntry| {
        (entry.name.as_str(), entry.kind) == (CONFIG_MAP_DATA_LINK, FileKind::Link)
    };
    if let Some(fault) = fault.filter(|_| !entries.iter().any(data)) {
        return refuse(files, dir, Reason::SourceUnreadable, fault);
    }
    for entry in entries.into_iter().filter(|entry| is_ours(&entry.name)) {
        let Ok(file) = dir.join(&entry.name) else {
            continue;
        };
        if files.len() >= MAX_FILES {
            let message =
                format!("there are more than {MAX_FILES} declarations; the rest is left out");
            return refuse(files, dir, Reason::ValueInvalid, &message);
        }
        if let Some(fault) = fault.filter(|_| entry.kind != FileKind::Link) {
            let message = format!("{dir}: {fault}");
            refuse(files, &file, Reason::SourceUnreadable, &message);
            continue;
        }
        match read_file(root, &file, user) {
            Ok(Some(text)) => drop(files.insert(file, Ok(text))),
            Ok(None) => {}
            Err(message) => refuse(files, &file, Reason::SourceUnreadable, &message),
        }
    }
}

/// The text of one declaration; none if it does not exist any more.
pub(super) fn read_file(root: &Root, file: &AbsPath, user: u32) -> Result<Option<String>, String> {
    let (mut file, mut stat) = match root.stat(file) {
        Ok(Some(stat)) => (file.clone(), stat),
        Ok(None) => return Ok(None),
        Err(error) => return Err(chain(&error)),
    };
    if stat.kind == FileKind::Link {
        (file, stat) = of_volume(root, &file, user)?;
    }
    let file = &file;
    if stat.kind != FileKind::File {
        let kind = stat.kind.as_str();
        return Err(format!(
            "it is a {kind}; declarations are regular files and links are not followed"
        ));
    }
    if let Some(fault) = owner_fault(&stat, user) {
        return Err(fault);
    }
    // The directory belongs to a trusted owner, so no other user can replace the file in between.
    match root.read_nofollow(file, MAX_DOCUMENT_BYTES as u64) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| "it is not UTF-8 text".into()),
        Err(error) if error.is_not_found() => Ok(None),
        Err(RootError::TooLarge { limit, .. }) => Err(format!("it is larger than {limit} bytes")),
        Err(error) => Err(chain(&error)),
    }
}

/// Resolves a link of a ConfigMap volume: it must lead to a file in a directory that only a trusted
/// owner can write, and that is itself in the link's directory. Hence a redirected link can only lead
/// to another file of a trusted owner.
fn of_volume(root: &Root, link: &AbsPath, user: u32) -> Result<(AbsPath, Stat), String> {
    let refused = || {
        "it is a symbolic link; declarations are regular files, or links as the kubelet makes them for a ConfigMap"
            .to_owned()
    };
    let found = follow(root, link).map_err(|error| chain(&error))?;
    let (target, stat) = found.ok_or_else(|| "it is a dangling symbolic link".to_owned())?;
    let parents = (target.parent(), link.parent());
    let (Some(within), Some(volume)) = parents else {
        return Err(refused());
    };
    let volume = root.canonical(&volume).map_err(|error| chain(&error))?;
    if within.parent().as_ref() != Some(&volume) || !within.file_name().starts_with("..") {
        return Err(refused());
    }
    let dir = root.stat(&within).map_err(|error| chain(&error))?;
    match dir.and_then(|dir| owner_fault(&dir, user)) {
        Some(fault) => Err(format!("{within}: {fault}")),
        None => Ok((target, stat)),
    }
}

/// Why a file or directory with this owner and mode is not trusted.
pub(super) fn owner_fault(stat: &Stat, user: u32) -> Option<String> {
    if stat.uid != 0 && stat.uid != user {
        return Some(format!(
            "it belongs to user {}, not to root or the agent's user",
            stat.uid
        ));
    }
    let loose = stat.mode & 0o022 != 0 && stat.kind != FileKind::Link;
    let (mode, most) = (stat.mode, stat.mode & !0o022);
    loose.then(|| format!("its mode {mode:04o} lets others write: {most:04o} at most"))
}
