//! Reports changes by inotify(7) on directories below the root.

use std::{collections::HashMap, io};

use futures_util::{FutureExt as _, StreamExt as _};
use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use rustix::io::Errno;

use super::{Root, RootError, resolve};
use machinist_base::abs_path::AbsPath;

/// Bytes for a few hundred events of usual name length in one read; the kernel queue behind it
/// holds 16384 events (`fs.inotify.max_queued_events`).
const READ_BUFFER_BYTES: usize = 16 * 1024;

/// Limits a batch, which would otherwise grow while another process writes without pause.
const MAX_BATCH_EVENTS: usize = 4096;

/// One watched directory of a [`Watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchId(u64);

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchKind {
    /// A name was created.
    Created,
    /// A name was removed.
    Deleted,
    /// Content was written or truncated; the writer has not closed the file yet.
    Modified,
    /// A file that was open for writing was closed.
    Closed,
    /// Mode, owner, times, links or extended attributes changed; without a name, those of the
    /// directory.
    Attributes,
    /// A name was moved out of the directory.
    MovedFrom,
    /// A name was moved here, and replaced any object of that name.
    MovedTo,
    /// The directory itself was removed, moved or unmounted. It is no longer watched.
    DirGone,
    /// Events were lost: everything watched must be checked again. The directory is `/`.
    Overflow,
}

/// One change in a watched directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The directory, as passed to [`Watch::add`].
    pub dir: AbsPath,
    /// The name in it; `None` if the event is about the directory itself, or the name is not UTF-8.
    pub name: Option<String>,
    /// The kind of change.
    pub kind: WatchKind,
}

#[derive(Debug)]
struct WatchedDir {
    descriptor: WatchDescriptor,
    /// Several, since two paths may lead to one directory, for which the kernel has one watch.
    names: Vec<(WatchId, AbsPath)>,
}

/// Watches directories, not what is below them. Needs a tokio runtime with I/O.
#[derive(Debug)]
pub struct Watch {
    root: Root,
    watches: Watches,
    /// Set until the first wait.
    unread: Option<Inotify>,
    /// Created in the runtime that first waits.
    stream: Option<EventStream<Vec<u8>>>,
    places: HashMap<i32, WatchedDir>,
    last_id: u64,
}

impl Root {
    /// Creates a watch without directories.
    pub fn watch(&self) -> Result<Watch, RootError> {
        let inotify = Inotify::init().map_err(|error| {
            // The kernel's message mentions only files (inotify_init(2)).
            let is_full = error.raw_os_error() == Some(Errno::MFILE.raw_os_error());
            let error = match is_full {
                true => io::Error::other(
                    "no inotify instance is left: fs.inotify.max_user_instances, or the limit of open files",
                ),
                false => error,
            };
            self.failed("watch below", &AbsPath::root(), error)
        })?;
        Ok(Watch {
            root: self.clone(),
            watches: inotify.watches(),
            unread: Some(inotify),
            stream: None,
            places: HashMap::new(),
            last_id: 0,
        })
    }
}

impl Watch {
    fn mask() -> WatchMask {
        WatchMask::CLOSE_WRITE
            | WatchMask::MODIFY
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR
    }

    /// Only changes of names: writes to the objects are not reported. For directories such as
    /// `/dev`, where every write to a device would cause an event.
    fn names_mask() -> WatchMask {
        WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR
    }

    /// Like [`Watch::add`], but reports only names that are added or removed. One [`Watch`] watches
    /// a directory in one way: the last call counts.
    pub fn add_names(&mut self, dir: &AbsPath) -> Result<WatchId, RootError> {
        self.add_with(dir, Self::names_mask())
    }

    /// Watches `dir`, which must be a directory or a link to one inside the root.
    ///
    /// Changes before this returns are not reported, so read the directory afterwards. The watch is
    /// on the object: once it is removed ([`WatchKind::DirGone`]), a new one of the same name must
    /// be added again; watch the parent to see it appear.
    pub fn add(&mut self, dir: &AbsPath) -> Result<WatchId, RootError> {
        self.add_with(dir, Self::mask())
    }

    fn add_with(&mut self, dir: &AbsPath, mask: WatchMask) -> Result<WatchId, RootError> {
        let descriptor = self
            .root
            .dir_handle(dir.relative())
            .and_then(|handle| self.watches.add(resolve::proc_path(&handle), mask))
            .map_err(|error| self.root.failed("watch", dir, error))?;
        self.last_id += 1;
        let id = WatchId(self.last_id);
        self.places
            .entry(descriptor.get_watch_descriptor_id())
            .or_insert_with(|| WatchedDir {
                descriptor,
                names: Vec::new(),
            })
            .names
            .push((id, dir.clone()));
        Ok(id)
    }

    /// Ends one watch. It is no error if it has ended by itself.
    pub fn remove(&mut self, id: WatchId) -> Result<(), RootError> {
        let found = self.places.iter_mut().find_map(|(number, place)| {
            let at = place.names.iter().position(|(other, _)| *other == id)?;
            let (_, dir) = place.names.swap_remove(at);
            Some((*number, dir, place.names.is_empty()))
        });
        match found {
            Some((number, dir, true)) => self
                .forget(number)
                .map_err(|error| self.root.failed("stop watching", &dir, error)),
            _ => Ok(()),
        }
    }

    fn forget(&mut self, number: i32) -> io::Result<()> {
        match self.places.remove(&number) {
            Some(place) => match self.watches.remove(place.descriptor) {
                // The directory was removed and its watch with it.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
                answer => answer,
            },
            None => Ok(()),
        }
    }

    /// Waits for changes and returns all that have arrived by then, in order; never an empty batch.
    ///
    /// Safe to drop while waiting: there is no await between the first event read and the return.
    pub async fn next(&mut self) -> Result<Vec<WatchEvent>, RootError> {
        loop {
            let batch = self.read().await;
            let batch = batch.map_err(|error| {
                self.root
                    .failed("read the changes below", &AbsPath::root(), error)
            })?;
            if !batch.is_empty() {
                return Ok(batch);
            }
        }
    }

    async fn read(&mut self) -> io::Result<Vec<WatchEvent>> {
        let stream = match (self.stream.take(), self.unread.take()) {
            (Some(stream), _) => stream,
            (None, Some(inotify)) => inotify.into_event_stream(vec![0; READ_BUFFER_BYTES])?,
            // The first attempt failed and consumed the descriptor.
            (None, None) => return Err(io::ErrorKind::NotConnected.into()),
        };
        let stream = self.stream.insert(stream);
        let mut events = Vec::new();
        let mut event = stream.next().await;
        while let Some(read) = event {
            events.push(read?);
            if events.len() == MAX_BATCH_EVENTS {
                break;
            }
            event = stream.next().now_or_never().flatten();
        }
        Ok(events
            .into_iter()
            .flat_map(|event| self.convert_event(event))
            .collect())
    }

    fn convert_event(&mut self, event: EventOwned) -> Vec<WatchEvent> {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            let dir = AbsPath::root();
            return vec![WatchEvent {
                dir,
                name: None,
                kind: WatchKind::Overflow,
            }];
        }
        let number = event.wd.get_watch_descriptor_id();
        let (Some(kind), Some(place)) = (kind_of(event.mask), self.places.get(&number)) else {
            return Vec::new();
        };
        let name = event.name.and_then(|name| name.into_string().ok());
        let told = place
            .names
            .iter()
            .map(|(_, dir)| WatchEvent {
                dir: dir.clone(),
                name: name.clone(),
                kind,
            })
            .collect();
        if kind == WatchKind::DirGone {
            // A moved directory would still be watched, under a name that is no longer its own.
            // Ending a watch that has ended already can only fail harmlessly.
            let _ = self.forget(number);
        }
        told
    }
}

fn kind_of(mask: EventMask) -> Option<WatchKind> {
    const EVENT_KINDS: &[(EventMask, WatchKind)] = &[
        (EventMask::DELETE_SELF, WatchKind::DirGone),
        (EventMask::MOVE_SELF, WatchKind::DirGone),
        (EventMask::UNMOUNT, WatchKind::DirGone),
        (EventMask::CREATE, WatchKind::Created),
        (EventMask::DELETE, WatchKind::Deleted),
        (EventMask::MOVED_FROM, WatchKind::MovedFrom),
        (EventMask::MOVED_TO, WatchKind::MovedTo),
        (EventMask::MODIFY, WatchKind::Modified),
        (EventMask::CLOSE_WRITE, WatchKind::Closed),
        (EventMask::ATTRIB, WatchKind::Attributes),
    ];
    EVENT_KINDS
        .iter()
        .find(|(bit, _)| mask.contains(*bit))
        .map(|(_, kind)| *kind)
}
