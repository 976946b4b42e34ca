//! Noticing that a directory of manifests may read differently now.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    path::AbsPath,
    root::{Kind, Root, RootError, Watch, WatchEvent, WatchId},
    telemetry::chain,
};

/// As many links as the kernel follows (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// Watches on a directory, on the directories its links lead into, and on every name on the way to
/// them: a parent that is replaced, or a link that leads elsewhere now, is a change as well.
#[derive(Debug, Default)]
pub(super) struct Watching {
    watch: Option<Watch>,
    /// Directories in which every name counts.
    whole: BTreeSet<AbsPath>,
    /// Directories in which only these names count.
    names: BTreeMap<AbsPath, BTreeSet<String>>,
}

impl Watching {
    /// What is not there yet is seen to come.
    pub(super) fn arm(tree: &Root, dir: &AbsPath) -> Self {
        let mut armed = Self::default();
        let Some(place) = armed.walk(tree, dir) else {
            return armed;
        };
        for entry in tree.list(&place).unwrap_or_default() {
            let link = place.join(&entry.name).ok();
            let link = link.filter(|_| entry.kind == Kind::Link);
            if let Some(leads_to) = link.and_then(|link| armed.walk(tree, &link)) {
                armed.whole.extend(leads_to.parent());
            }
        }
        armed.whole.insert(place);
        armed.watch = tree.watch().inspect_err(complain).ok();
        if let Some(watch) = &mut armed.watch {
            for dir in armed.names.keys().filter(|dir| !armed.whole.contains(*dir)) {
                told(watch.add_names(dir));
            }
            for dir in &armed.whole {
                told(watch.add(dir));
            }
        }
        armed
    }

    /// Notes every name on the way to `path` and gives the place without links; none for a way that
    /// leads in a circle.
    fn walk(&mut self, tree: &Root, path: &AbsPath) -> Option<AbsPath> {
        let mut todo: Vec<String> = path.components().rev().map(str::to_owned).collect();
        let (mut at, mut links) = (AbsPath::root(), 0);
        while let Some(part) = todo.pop() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    at = at.parent().unwrap_or(at);
                    continue;
                }
                _ => {}
            }
            let next = at.join(&part).ok()?;
            self.names.entry(at.clone()).or_default().insert(part);
            match tree.read_link(&next) {
                Ok(_) if links == MOST_LINKS => return None,
                Ok(text) => {
                    links += 1;
                    if text.starts_with('/') {
                        at = AbsPath::root();
                    }
                    todo.extend(text.split('/').rev().map(str::to_owned));
                }
                Err(_) => at = next,
            }
        }
        Some(at)
    }

    fn counts(&self, event: &WatchEvent) -> bool {
        let Some(name) = &event.name else { return true };
        let names = self.names.get(&event.dir);
        self.whole.contains(&event.dir) || names.is_some_and(|names| names.contains(name))
    }

    /// Waits until something counts; for ever where nothing can be watched. Safe to drop.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some(watch) = &mut self.watch else {
                return std::future::pending().await;
            };
            match watch.next().await {
                Ok(events) if !events.iter().any(|event| self.counts(event)) => {}
                Ok(_) => return,
                // Nothing more will come from this one; the caller looks, and arms anew.
                Err(_) => return self.watch = None,
            }
        }
    }

    /// Waits until nothing has changed for `quiet`, but not for ever where somebody writes all the
    /// time: then what is there is read.
    pub(super) async fn settle(&mut self, quiet: Duration) {
        let settled = async { while tokio::time::timeout(quiet, self.changed()).await.is_ok() {} };
        let _ = tokio::time::timeout(quiet * 10, settled).await;
    }
}

/// What is missing is watched for in the directory above it; anything else makes us blind.
fn told(watched: Result<WatchId, RootError>) {
    if let Err(error) = watched
        && !error.is_not_found()
    {
        complain(&error);
    }
}

fn complain(error: &RootError) {
    tracing::warn!("changes of the source may not be noticed: {}", chain(error));
}
