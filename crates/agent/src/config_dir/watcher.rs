//! Watches a directory of manifests and everything that affects its content.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{butane_files::UsedFiles, symlink_chain};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::{FileKind, Root, RootError, Watch, WatchEvent, WatchId, WatchKind};

/// Wait for a file that is open for writing: a truncated config would be valid, too, and would
/// remove the missing part from the machine. The time allows for pauses of a person or of a copy
/// over the network.
const OPEN_WRITER_WAIT: Duration = Duration::from_secs(30);

/// A process that writes for longer than this is not writing a config.
const OPEN_WRITER_TIMEOUT: Duration = Duration::from_secs(120);

/// Watches a directory, the targets of its links, the files that its manifests use, and every name
/// on the way to them: replacing a parent, or changing a link, is a change as well.
#[derive(Debug, Default)]
pub(super) struct ConfigDirWatcher {
    watch: Option<Watch>,
    /// Directories in which every name counts.
    whole: BTreeSet<AbsPath>,
    /// Directories in which only these names count.
    names: BTreeMap<AbsPath, BTreeSet<String>>,
    used: UsedFiles,
    /// Files that were written and have not been closed since.
    open: BTreeSet<(AbsPath, String)>,
}

impl ConfigDirWatcher {
    /// Sets up the watches, also for paths that do not exist yet.
    pub(super) fn arm(tree: &Root, dir: &AbsPath, used: UsedFiles) -> Self {
        let mut armed = Self::default();
        for file in &used.files {
            if let Some(place) = armed.walk(tree, file) {
                armed.whole.extend(place.parent());
            }
        }
        for directory in &used.directories {
            let place = armed.walk(tree, directory);
            armed.whole.extend(place);
        }
        armed.used = used;
        if let Some(place) = armed.walk(tree, dir) {
            for entry in tree.list(&place).unwrap_or_default() {
                let link = place.join(&entry.name).ok();
                let link = link.filter(|_| entry.kind == FileKind::Link);
                if let Some(leads_to) = link.and_then(|link| armed.walk(tree, &link)) {
                    armed.whole.extend(leads_to.parent());
                }
            }
            armed.whole.insert(place);
        }
        armed.watch = tree.watch().inspect_err(complain).ok();
        if let Some(watch) = &mut armed.watch {
            for dir in armed.names.keys().filter(|dir| !armed.whole.contains(*dir)) {
                log_watch_failure(watch.add_names(dir));
            }
            for dir in &armed.whole {
                log_watch_failure(watch.add(dir));
            }
        }
        armed
    }

    /// Records every name on the way to `path` and returns the path without links; `None` if its
    /// links form a loop.
    fn walk(&mut self, tree: &Root, path: &AbsPath) -> Option<AbsPath> {
        let mut note = |dir: &AbsPath, name: &str| {
            let names = self.names.entry(dir.clone()).or_default();
            names.insert(name.to_owned());
        };
        symlink_chain::follow(tree, &AbsPath::root(), path.relative(), false, &mut note).ok()
    }

    /// Whether everything in `used` is watched.
    pub(super) fn covers(&self, used: &UsedFiles) -> bool {
        self.used == *used
    }

    fn counts(&self, event: &WatchEvent) -> bool {
        let Some(name) = &event.name else { return true };
        let names = self.names.get(&event.dir);
        self.whole.contains(&event.dir) || names.is_some_and(|names| names.contains(name))
    }

    /// Waits for a relevant change; for ever if nothing can be watched. Safe to drop.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some(watch) = &mut self.watch else {
                return std::future::pending().await;
            };
            match watch.next().await {
                Ok(events) => {
                    let counting: Vec<_> = events
                        .iter()
                        .filter(|event| self.counts(event))
                        .cloned()
                        .collect();
                    counting.iter().for_each(|event| self.note_writer(event));
                    if !counting.is_empty() {
                        return;
                    }
                }
                // This watch delivers no more events; the caller reads the directory and sets up a
                // new one.
                Err(_) => return self.watch = None,
            }
        }
    }

    fn note_writer(&mut self, event: &WatchEvent) {
        match (&event.name, event.kind) {
            (_, WatchKind::Overflow | WatchKind::DirGone) => self.open.clear(),
            (Some(name), WatchKind::Modified) => {
                self.open.insert((event.dir.clone(), name.clone()));
            }
            (_, WatchKind::Created | WatchKind::Attributes) | (None, _) => {}
            (Some(name), _) => {
                self.open.remove(&(event.dir.clone(), name.clone()));
            }
        }
    }

    /// Waits until nothing has changed for `quiet` and no file is being written, but not for ever:
    /// after [`OPEN_WRITER_TIMEOUT`] the content is read as found.
    pub(super) async fn wait_until_quiet(&mut self, quiet: Duration) {
        let began = Instant::now();
        loop {
            let (pause, time) = match self.open.is_empty() {
                true => (quiet, quiet * 10),
                false => (OPEN_WRITER_WAIT, OPEN_WRITER_TIMEOUT),
            };
            let busy = tokio::time::timeout(pause, self.changed()).await.is_ok();
            if !busy || began.elapsed() > time {
                return;
            }
        }
    }
}

/// Logs a failed watch, except for a missing path, which is watched through its parent.
fn log_watch_failure(watched: Result<WatchId, RootError>) {
    if let Err(error) = watched
        && !error.is_not_found()
    {
        complain(&error);
    }
}

fn complain(error: &RootError) {
    tracing::warn!("changes of the source may be missed: {}", chain(error));
}
