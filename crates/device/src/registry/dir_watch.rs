//! Directory watches (inotify) on a changing set of directories.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::{sleep, timeout};

use super::watch_target::WatchDepth;
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::{Root, RootError, Watch, WatchEvent, WatchId, WatchKind};

/// The changes in watched directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirChange {
    /// These names were deleted and not created again, whatever else happened. Names that are no
    /// valid path are left out.
    Removed(BTreeSet<AbsPath>),
    /// Anything else.
    Other,
}

/// More directories than a sensible set of declarations needs; the periodic rescan covers the rest.
const MAX_DIRS: usize = 256;

/// One inotify instance and the directories it watches.
#[derive(Debug)]
pub struct DirWatch {
    watch: Watch,
    watched: BTreeMap<AbsPath, (WatchId, WatchDepth)>,
    /// Whether a requested directory is not watched.
    partial: bool,
    /// Whether a failed watch has been logged.
    failure_logged: bool,
}

impl DirWatch {
    /// Creates an instance that watches nothing yet.
    pub fn new(root: &Root) -> Result<Self, RootError> {
        Ok(Self {
            watch: root.watch()?,
            watched: BTreeMap::new(),
            partial: false,
            failure_logged: false,
        })
    }

    /// Watches exactly `wanted`. Returns whether a watch was added: everything must then be scanned
    /// again, since earlier changes were not reported. Directories that cannot be watched are left
    /// out.
    pub fn set(&mut self, wanted: &BTreeMap<AbsPath, WatchDepth>) -> bool {
        let stale = |(dir, (_, depth)): (&AbsPath, &(WatchId, WatchDepth))| {
            (wanted.get(dir) != Some(depth)).then(|| dir.clone())
        };
        let stale: Vec<_> = self.watched.iter().filter_map(stale).collect();
        for (id, _) in stale.iter().filter_map(|dir| self.watched.remove(dir)) {
            // A watch that cannot be removed only causes superfluous events.
            let _ = self.watch.remove(id);
        }
        let mut added = false;
        self.partial = wanted.len() > MAX_DIRS;
        for (dir, depth) in wanted.iter().take(MAX_DIRS) {
            if self.watched.contains_key(dir) {
                continue;
            }
            let id = match depth {
                WatchDepth::Names => self.watch.add_names(dir),
                WatchDepth::Content => self.watch.add(dir),
            };
            match id {
                Ok(id) => {
                    self.watched.insert(dir.clone(), (id, *depth));
                    added = true;
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    self.partial = true;
                    // Every scan calls this, so a failure is logged only once.
                    if !std::mem::replace(&mut self.failure_logged, true) {
                        tracing::warn!(
                            "directory watch failed, changes may be noticed late: {}",
                            chain(&error)
                        );
                    }
                }
            }
        }
        added
    }

    /// Whether all requested directories are watched.
    pub const fn is_complete(&self) -> bool {
        !self.partial
    }

    /// Waits for a change in one of the directories. Cancel-safe.
    pub async fn changed(&mut self) -> Result<DirChange, RootError> {
        let events = self.watch.next().await?;
        for event in &events {
            if event.kind == WatchKind::DirGone {
                self.watched.remove(&event.dir);
            }
        }
        Ok(kind_of(&events))
    }
}

/// Waits for a change in one of the directories; if not all of them are watched, for at most `late`.
/// A watch that fails is removed from `watch`. Cancel-safe.
pub async fn changed_or_timeout(
    watch: &mut Option<DirWatch>,
    late: Duration,
) -> Result<(), RootError> {
    let Some(watching) = watch else {
        sleep(late).await;
        return Ok(());
    };
    let result = match watching.is_complete() {
        true => Ok(watching.changed().await),
        false => timeout(late, watching.changed()).await,
    };
    match result {
        Ok(Err(error)) => {
            *watch = None;
            Err(error)
        }
        Ok(Ok(_)) | Err(_) => Ok(()),
    }
}

/// Classifies events. A rename, which is how udev replaces its links, is not a removal.
fn kind_of(events: &[WatchEvent]) -> DirChange {
    let renamed = events.iter().any(|event| event.kind == WatchKind::MovedTo);
    let is_removal = |event: &WatchEvent| match event.kind {
        WatchKind::Deleted => true,
        WatchKind::MovedFrom => !renamed,
        _ => false,
    };
    if !events.iter().any(is_removal) {
        return DirChange::Other;
    }
    let mut removed = BTreeSet::new();
    for event in events {
        let Some(path) = event.name.as_ref().and_then(|it| event.dir.join(it).ok()) else {
            continue;
        };
        match event.kind {
            _ if is_removal(event) => removed.insert(path),
            WatchKind::Created | WatchKind::MovedTo => removed.remove(&path),
            _ => false,
        };
    }
    DirChange::Removed(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: WatchKind) -> WatchEvent {
        WatchEvent {
            dir: AbsPath::new("/dev/serial/by-id").unwrap(),
            name: Some("usb".to_owned()),
            kind,
        }
    }

    #[test]
    fn a_renamed_link_is_no_removal() {
        use WatchKind::{Created, Deleted, MovedFrom, MovedTo};
        let of = |kinds: &[WatchKind]| {
            kind_of(&kinds.iter().map(|kind| event(*kind)).collect::<Vec<_>>())
        };
        let usb = BTreeSet::from([AbsPath::new("/dev/serial/by-id/usb").unwrap()]);
        let back = DirChange::Removed(BTreeSet::new());
        assert_eq!(of(&[Created, MovedFrom, MovedTo]), DirChange::Other);
        let left = of(&[MovedFrom]);
        assert_eq!(
            left,
            DirChange::Removed(usb.clone()),
            "it left the directory"
        );
        assert_eq!(of(&[Created, Deleted]), DirChange::Removed(usb));
        assert_eq!(of(&[Deleted, Created]), back, "it is there again");
        assert_eq!(of(&[Created]), DirChange::Other);
    }
    #[tokio::test(start_paused = true)]
    async fn incomplete_watches_fall_back_to_polling() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let names = |count: usize| (0..count).map(|n| AbsPath::new(format!("/d{n}")).unwrap());
        for name in names(MAX_DIRS + 1) {
            root.make_dirs(&name, 0o755).unwrap();
        }
        let all = |count| names(count).map(|name| (name, WatchDepth::Names)).collect();
        let late = Duration::from_secs(60);
        let mut watch = Some(DirWatch::new(&root).unwrap());
        watch.as_mut().unwrap().set(&all(MAX_DIRS + 1));
        changed_or_timeout(&mut watch, late).await.unwrap();
        assert!(watch.is_some(), "events are reported at once");
        watch.as_mut().unwrap().set(&all(MAX_DIRS));
        let quiet = timeout(late * 10, changed_or_timeout(&mut watch, late)).await;
        assert!(quiet.is_err(), "recursive watches need no polling");
        changed_or_timeout(&mut None, late).await.unwrap();
    }
}
