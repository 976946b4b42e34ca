//! Access to files of a machine from the host, without leaving the machine's root.
//!
//! A machine's absolute symlinks would lead into the host's file system when followed by path, so
//! the kernel resolves every name relative to the machine's root (`openat2`, `RESOLVE_IN_ROOT`).

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fchmod, mkdirat, openat2, symlinkat, unlinkat};
use rustix::io::Errno;

/// Opens `path` as seen from `root`.
fn open(root: &Path, path: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    let top = openat2(
        CWD,
        root,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::empty(),
    )?;
    let flags = flags | OFlags::CLOEXEC;
    Ok(openat2(
        top,
        path,
        flags,
        Mode::from_raw_mode(mode),
        ResolveFlags::IN_ROOT,
    )?
    .into())
}

/// The directory above `path`, made with all of its parents (0755) where missing.
fn parent(root: &Path, path: &Path) -> io::Result<File> {
    let mut here = open(root, Path::new("/"), OFlags::PATH | OFlags::DIRECTORY, 0)?;
    let mut so_far = std::path::PathBuf::from("/");
    for part in path.parent().into_iter().flat_map(Path::components).skip(1) {
        so_far.push(part);
        match mkdirat(&here, part.as_os_str(), Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        here = open(root, &so_far, OFlags::PATH | OFlags::DIRECTORY, 0)?;
    }
    Ok(here)
}

/// The whole content of `path`.
pub fn read(root: &Path, path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(root, Path::new(path), OFlags::RDONLY, 0)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces the content of `path`, with its parents made; `mode` is set when it is given or new.
pub fn write(root: &Path, path: &str, bytes: &[u8], mode: Option<u32>) -> io::Result<()> {
    assert!(path.starts_with('/'), "{path} is not absolute");
    parent(root, Path::new(path))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let mut file = open(root, Path::new(path), flags, 0o644)?;
    if let Some(mode) = mode {
        fchmod(&file, Mode::from_raw_mode(mode))?;
    }
    file.write_all(bytes)
}

/// Makes the symbolic link `path`, replacing a file or link of that name.
pub fn link(root: &Path, path: &str, target: &str) -> io::Result<()> {
    let path = Path::new(path);
    let dir = parent(root, path)?;
    let name = path.file_name().expect("a link has a name");
    match unlinkat(&dir, name, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(symlinkat(target, &dir, name)?),
        Err(e) => Err(e.into()),
    }
}
