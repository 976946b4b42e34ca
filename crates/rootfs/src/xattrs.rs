//! Extended attributes: which of them a new file takes over from the file that it replaces.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{Mode, XattrFlags},
    io::Errno,
};

use super::{FsOpKind, ObjectIdentity, Root, RootError, Stat, resolve};
use machinist_base::abs_path::AbsPath;

/// Extended attributes that belong to an object's path rather than to its content, and so are
/// copied to its successor. Left out on purpose: `security.capability` grants rights to one
/// content, and `security.ima` and `security.evm` are signatures of it.
const INHERITED_XATTRS: &[&str] = &[
    "security.selinux",
    "security.SMACK64",
    ACCESS_ACL_XATTR,
    DEFAULT_ACL_XATTR,
];

const ACCESS_ACL_XATTR: &str = "system.posix_acl_access";
/// The default access control list for new objects in a directory.
const DEFAULT_ACL_XATTR: &str = "system.posix_acl_default";

/// The result of copying an object's extended attributes.
#[derive(Debug, Default)]
pub struct CopiedXattrs {
    /// Names of the attributes that were copied.
    pub copied: Vec<String>,
    /// Names of the attributes that could not be copied, with the kernel's errors.
    pub left: Vec<(String, io::Error)>,
}

impl Root {
    /// Copies the extended attributes that an object passes on to its successor: security label,
    /// access control lists and `user.*`. The mode of `to` is unchanged.
    ///
    /// Nothing is copied from an object whose owner is neither root nor the owner of `to`: an
    /// access control list that this user wrote would give rights on a file that is no longer the
    /// user's. ESTALE if `from` is another object than the `expected` one.
    pub fn copy_meta_extras(
        &self,
        from: &AbsPath,
        to: &AbsPath,
        expected: Option<ObjectIdentity>,
    ) -> Result<CopiedXattrs, RootError> {
        let copy = || {
            // One handle for check and copy, so that the attributes are those of the checked
            // object.
            let (source, target) = (self.handle(from)?, self.handle(to)?);
            let there = Stat::of(&resolve::statx_of(&source)?);
            if expected.is_some_and(|expected| expected != there.identity) {
                return Err(Errno::STALE.into());
            }
            let owner = there.uid;
            let successor = Stat::of(&resolve::statx_of(&target)?);
            let mut extras = CopiedXattrs::default();
            if owner != 0 && owner != successor.uid {
                return Ok(extras);
            }
            let (source, target) = (resolve::proc_path(&source), resolve::proc_path(&target));
            for name in attribute_names(&source)? {
                match self.copy_attribute(&source, (to, &target), &name) {
                    Ok(()) => extras.copied.push(name),
                    Err(error) => extras.left.push((name, error)),
                }
            }
            // Setting an access control list also sets the group bits; restore the mode that was
            // requested.
            if extras.copied.iter().any(|name| name == ACCESS_ACL_XATTR) {
                let mode = Mode::from_raw_mode(successor.mode);
                let set = || Ok(rustix::fs::chmod(&target, mode)?);
                self.tapped(to, || FsOpKind::SetMode(successor.mode), set)?;
            }
            Ok(extras)
        };
        let (act, word) = ("copy the extended attributes of", "to");
        copy().map_err(|error| self.failed_pair((act, word), from, to, error))
    }

    /// Whether the object at `p` (a link is not followed) has an access control list, and whether
    /// it has any attributes, lists included but not a label, that [`Root::copy_meta_extras`] would
    /// copy. Both are false if nothing exists there.
    pub fn has_meta_extras(&self, p: &AbsPath) -> Result<(bool, bool), RootError> {
        let names = self.handle(p).and_then(|handle| {
            let path = resolve::proc_path(&handle);
            attribute_names(&path)
        });
        match names {
            Ok(names) => Ok((
                names.iter().any(|name| name.starts_with("system.")),
                names.iter().any(|name| !name.starts_with("security.")),
            )),
            Err(error) if resolve::is_absent(&error) => Ok((false, false)),
            Err(error) => Err(self.failed("read the extended attributes of", p, error)),
        }
    }

    /// The access control lists of the object at `p`, by the names of their attributes.
    pub fn access_lists(&self, p: &AbsPath) -> Result<BTreeMap<String, Vec<u8>>, RootError> {
        let read = || -> io::Result<BTreeMap<String, Vec<u8>>> {
            let handle = self.handle(p)?;
            let path = resolve::proc_path(&handle);
            let names = attribute_names(&path)?.into_iter();
            let lists =
                names.filter(|name| [ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR].contains(&name.as_str()));
            lists
                .map(|name| {
                    let value = grown(|buffer| rustix::fs::getxattr(&path, &*name, buffer))?;
                    Ok((name, value))
                })
                .collect()
        };
        read().map_err(|error| self.failed("read the access control lists of", p, error))
    }

    /// Sets these access control lists on the object at `p`, and removes all others.
    pub fn set_access_lists(
        &self,
        p: &AbsPath,
        lists: &BTreeMap<String, Vec<u8>>,
    ) -> Result<(), RootError> {
        let set = || -> io::Result<()> {
            let handle = self.handle(p)?;
            let path = resolve::proc_path(&handle);
            for name in [ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR] {
                let value = lists.get(name).map_or(&[][..], Vec::as_slice);
                let act = || FsOpKind::SetAttribute(name.to_owned(), value.to_vec());
                let set = || match value {
                    [] => match rustix::fs::removexattr(&path, name) {
                        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
                        removed => Ok(removed?),
                    },
                    value => Ok(rustix::fs::setxattr(
                        &path,
                        name,
                        value,
                        XattrFlags::empty(),
                    )?),
                };
                self.tapped(p, act, set)?;
            }
            Ok(())
        };
        set().map_err(|error| self.failed("set the access control lists of", p, error))
    }

    fn copy_attribute(
        &self,
        from: &Path,
        (to, to_path): (&AbsPath, &Path),
        name: &str,
    ) -> io::Result<()> {
        let value = grown(|buffer| rustix::fs::getxattr(from, name, buffer))?;
        let set = || {
            let flags = XattrFlags::empty();
            Ok(rustix::fs::setxattr(to_path, name, &value, flags)?)
        };
        self.tapped(
            to,
            || FsOpKind::SetAttribute(name.to_owned(), value.clone()),
            set,
        )
    }
}

/// The names of the attributes to copy, of the object behind a handle's path.
fn attribute_names(path: &Path) -> io::Result<Vec<String>> {
    let names = match grown(|buffer| rustix::fs::listxattr(path, buffer)) {
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => Vec::new(),
        names => names?,
    };
    Ok(names
        .split(|byte| *byte == 0)
        .filter_map(|name| std::str::from_utf8(name).ok())
        .filter(|name| INHERITED_XATTRS.contains(name) || name.starts_with("user."))
        .map(str::to_owned)
        .collect())
}

/// The value of one attribute of the object at `path`; a link is not followed.
pub(super) fn attribute(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    grown(|buffer| rustix::fs::lgetxattr(path, name, buffer))
}

/// The value of one attribute of the object behind a handle, which may be a link.
pub(super) fn attribute_of(handle: &OwnedFd, name: &str) -> io::Result<Vec<u8>> {
    // Not lgetxattr: it would read the magic link in /proc itself.
    let path = resolve::proc_path(handle);
    grown(|buffer| rustix::fs::getxattr(&path, name, buffer))
}

/// Calls with a buffer that doubles until the answer fits; 64 KiB is the kernel's own limit for
/// values and for lists (xattr(7)).
fn grown(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; 512];
    loop {
        match call(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 64 * 1024 => buffer.resize(buffer.len() * 2, 0),
            Err(errno) => return Err(errno.into()),
        }
    }
}
