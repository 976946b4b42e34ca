//! A vendor's directory, which its plugin uses as the kubelet's device plugin directory.

use std::os::unix::net::UnixListener;

use super::{VENDOR_DIRS_ROOT, Vendor, checkpoint::PluginCheckpoint};
use crate::kubelet::KUBELET_SOCKET;
use machinist_base::abs_path::{AbsPath, BadPath};
use machinist_rootfs::{
    FileKind, Meta, ObjectIdentity, Root, RootError, Stat, UnixAddress, Watch, WatchEvent,
    WatchKind,
};

/// The label of the kubelet's own directory, which lets containers use it.
const SELINUX_LABEL: &str = "system_u:object_r:container_file_t:s0";

/// Maximum number of names that are read in a vendor's directory; a plugin needs a few. A plugin that
/// fills its directory must not delay others.
const MAX_LISTED_NAMES: usize = 1000;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectoryError {
    #[error(transparent)]
    Path(#[from] BadPath),
    #[error(transparent)]
    Root(#[from] RootError),
    #[error("{path} is a {}; expected a directory", found.as_str())]
    NoDirectory { path: AbsPath, found: FileKind },
}

/// See the module.
#[derive(Debug)]
pub(super) struct VendorDirectory {
    root: Root,
    pub(super) path: AbsPath,
    socket: AbsPath,
    group: u32,
    watch: Watch,
    /// The socket that was created last.
    ours: Option<ObjectIdentity>,
}

/// What happened to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectoryChange {
    /// Our socket may have been removed.
    Socket,
    /// The directory was removed.
    Removed,
}

impl VendorDirectory {
    /// Creates the directory with its mode, owner and label, and watches it.
    pub(super) fn open(root: &Root, vendor: &Vendor) -> Result<Self, DirectoryError> {
        let path = AbsPath::new(format!("{VENDOR_DIRS_ROOT}/{}", vendor.name))?;
        root.make_dirs(&path, 0o750)?;
        match root.stat(&path)? {
            Some(stat) if stat.kind != FileKind::Directory => {
                return Err(DirectoryError::NoDirectory {
                    path,
                    found: stat.kind,
                });
            }
            _ => {}
        }
        // Members of the group create sockets here; root can do so in any case.
        let mode = if vendor.group == 0 { 0o750 } else { 0o770 };
        root.set_meta(&path, &meta(root, mode, vendor.group))?;
        // Where the file system has no labels, nothing changes.
        root.set_label(&path, SELINUX_LABEL)?;
        let mut watch = root.watch()?;
        watch.add_names(&path)?;
        Ok(Self {
            root: root.clone(),
            socket: path.join(KUBELET_SOCKET)?,
            path,
            group: vendor.group,
            watch,
            ours: None,
        })
    }

    /// Removes sockets as a starting kubelet does, so that a plugin that watches its own socket
    /// registers again. Sockets of known plugins are left alone; those plugins are dialled.
    pub(super) fn wipe(&self, known: &PluginCheckpoint) -> Result<(), RootError> {
        let listing = self.root.listing_up_to(&self.path, MAX_LISTED_NAMES)?;
        for entry in listing.entries {
            let mut all = known.all().iter();
            let ours = entry.name == KUBELET_SOCKET;
            if entry.kind == FileKind::Socket
                && !ours
                && !all.any(|one| one.endpoint == entry.name)
                && let Ok(path) = self.path.join(&entry.name)
            {
                self.root.remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// The current state of a plugin's socket.
    pub(super) fn socket(&self, endpoint: &str) -> Option<(UnixAddress, Stat)> {
        let path = self.path.join(endpoint).ok()?;
        self.root.socket_itself(&path).ok()?
    }

    /// Removes the socket of a plugin that does not answer on it, so that one that watches its
    /// socket registers again. Does nothing if the socket is no longer the one that it `was`.
    pub(super) fn remove(&self, endpoint: &str, was: &Stat) -> Result<(), RootError> {
        let Ok(path) = self.path.join(endpoint) else {
            return Ok(());
        };
        let still = |now: &Stat| now.kind == FileKind::Socket && now.identity == was.identity;
        match self.root.stat(&path)? {
            Some(now) if still(&now) => self.root.remove_file(&path),
            _ => Ok(()),
        }
    }

    /// Replaces the kubelet socket, which is the event that plugins wait for. It removes and binds
    /// like the kubelet does, since some plugins do not recognise a renamed file.
    pub(super) fn bind(&mut self) -> Result<UnixListener, RootError> {
        let mode = if self.group == 0 { 0o600 } else { 0o660 };
        // A link or a file of this name would block every plugin.
        match self.root.stat(&self.socket)?.map(|stat| stat.kind) {
            None | Some(FileKind::Socket) => {}
            Some(FileKind::Directory) => drop(self.root.remove_empty_dir(&self.socket)?),
            Some(_) => self.root.remove_file(&self.socket)?,
        }
        let listener = self.root.bind_unix(&self.socket, mode)?;
        self.root
            .own_link(&self.socket, &meta(&self.root, mode, self.group))?;
        let stat = self.root.stat(&self.socket)?;
        self.ours = stat.map(|stat| stat.identity);
        Ok(listener)
    }

    /// Whether our socket still exists at its path.
    pub(super) fn is_open(&self) -> bool {
        let stat = self.root.stat(&self.socket);
        stat.is_ok_and(|stat| stat.is_some_and(|stat| Some(stat.identity) == self.ours))
    }

    /// Waits for a relevant change. Safe to drop: events stay in the kernel's queue.
    pub(super) async fn changed(&mut self) -> Result<DirectoryChange, RootError> {
        loop {
            let events = self.watch.next().await?;
            if events.iter().any(|event| event.kind == WatchKind::DirGone) {
                return Ok(DirectoryChange::Removed);
            }
            let ours = |event: &WatchEvent| {
                event.kind == WatchKind::Overflow || event.name.as_deref() == Some(KUBELET_SOCKET)
            };
            if events.iter().any(ours) {
                return Ok(DirectoryChange::Socket);
            }
        }
    }
}

fn meta(root: &Root, mode: u32, group: u32) -> Meta {
    Meta {
        mode,
        uid: 0,
        gid: group,
        chown: root.can_chown(),
    }
}
