//! Reads and sets SELinux labels, which are extended attributes, unchanged and even if the kernel's
//! policy does not know them.

use std::{io, os::fd::OwnedFd, path::PathBuf};

use rustix::{fs::XattrFlags, io::Errno};

use super::{FsOpKind, Root, RootError, xattrs};
use machinist_base::abs_path::AbsPath;

/// The extended attribute of the label.
const SELINUX_XATTR: &str = "security.selinux";

impl Root {
    /// The label of the object at `p`, which may be a link; `None` if it has none or its file
    /// system does not support labels.
    pub fn label(&self, p: &AbsPath) -> Result<Option<String>, RootError> {
        let read = || {
            let (_dir, path) = self.label_path(p)?;
            xattrs::attribute(&path, SELINUX_XATTR)
        };
        match read() {
            // Tools write a NUL at the end, which the kernel includes.
            Ok(value) => {
                let text = String::from_utf8_lossy(&value);
                Ok(Some(text.trim_end_matches('\0').to_owned()))
            }
            Err(error) if is_one_of(&error, &[Errno::NODATA, Errno::OPNOTSUPP]) => Ok(None),
            Err(error) => Err(self.failed("read the label of", p, error)),
        }
    }

    /// Sets the label of the object at `p`. Returns false if that is impossible here: the file
    /// system does not support labels, this process may not set them, or the kernel's policy does
    /// not know this one.
    pub fn set_label(&self, p: &AbsPath, label: &str) -> Result<bool, RootError> {
        let set = || {
            let (_dir, path) = self.label_path(p)?;
            let value = [label.as_bytes(), b"\0"].concat();
            let act = || FsOpKind::SetAttribute(SELINUX_XATTR.to_owned(), value.clone());
            let flags = XattrFlags::empty();
            self.tapped(p, act, || {
                Ok(rustix::fs::lsetxattr(&path, SELINUX_XATTR, &value, flags)?)
            })
        };
        let not_here = [Errno::PERM, Errno::ACCESS, Errno::OPNOTSUPP, Errno::INVAL];
        match set() {
            Ok(()) => Ok(true),
            Err(error) if is_one_of(&error, &not_here) => Ok(false),
            Err(error) => Err(self.failed("set the label of", p, error)),
        }
    }

    fn label_path(&self, p: &AbsPath) -> io::Result<(OwnedFd, PathBuf)> {
        match p.parent() {
            Some(_) => Ok(self.slot(p)?.proc_path_kept()),
            None => {
                let root = self.dir_handle("")?;
                let path = super::resolve::proc_path(&root).join(".");
                Ok((root, path))
            }
        }
    }
}

fn is_one_of(error: &io::Error, numbers: &[Errno]) -> bool {
    let number = error.raw_os_error();
    numbers
        .iter()
        .any(|known| number == Some(known.raw_os_error()))
}
