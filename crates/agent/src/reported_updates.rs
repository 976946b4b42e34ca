//! Which finished updates were reported by events and metrics, on the disk: the boot guard or a command may finish one
//! while no agent runs.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::Mutex;

use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::Root;
use machinist_update::{journal::UpdateRecord, reconciler::UpdateReport, store::paths};

/// Bytes of the largest ID of an update.
const MAX_ID_BYTES: u64 = 4096;

/// The ID of the newest update that was reported; empty if there was none yet.
fn path() -> AbsPath {
    let dir = paths::state_dir();
    dir.join("reported-update").unwrap_or(dir)
}

/// The updates that one task has reported. A clone is for another task, which reports the same ones again.
#[derive(Clone, Debug)]
pub struct ReportedUpdates {
    root: Root,
    /// The newest update that this task has reported.
    newest: String,
    /// The updates of which the disk records that they are reported.
    recorded: Arc<Mutex<BTreeSet<String>>>,
}

impl ReportedUpdates {
    /// Reads what earlier processes have reported. At the very first start, all updates of the history count as reported.
    pub(super) fn load(root: &Root, first: &UpdateReport) -> Self {
        let (newest, recorded) = match root.read_text(&path(), MAX_ID_BYTES) {
            Ok(text) => {
                let id = text.trim_end_matches('\n').to_owned();
                (id.clone(), BTreeSet::from([id]))
            }
            Err(error) => {
                if !error.is_not_found() {
                    tracing::warn!("{}", chain(&error));
                }
                (newest_of(first), BTreeSet::new())
            }
        };
        Self {
            root: root.clone(),
            newest,
            recorded: Arc::new(Mutex::new(recorded)),
        }
    }

    /// The finished updates that this task has not reported, newest first. A history that was dropped with its journal
    /// has only such ones.
    pub(super) fn unreported<'r>(&mut self, report: &'r UpdateReport) -> &'r [UpdateRecord] {
        if report.unknown {
            return &[];
        }
        let known = std::mem::replace(&mut self.newest, newest_of(report));
        let mut parts = report.updates.split(|update| update.id == known);
        parts.next().unwrap_or_default()
    }

    /// Makes it durable that the updates of this report are reported.
    pub(super) async fn record(&self, report: &UpdateReport) {
        let newest = newest_of(report);
        let mut recorded = self.recorded.lock().await;
        // Another task may have recorded a newer report already.
        if report.unknown || recorded.contains(&newest) {
            return;
        }
        let (root, text) = (self.root.clone(), format!("{newest}\n"));
        let written =
            tokio::task::spawn_blocking(move || root.replace(&path(), text.as_bytes(), 0o600));
        // A lost task is a defect and is logged.
        if let Ok(Err(error)) = written.await {
            tracing::warn!("the next start reports updates again: {}", chain(&error));
        }
        let ids = report.updates.iter().map(|update| update.id.clone());
        *recorded = ids.chain([newest]).collect();
    }
}

fn newest_of(report: &UpdateReport) -> String {
    let newest = report.updates.first();
    newest.map(|update| update.id.clone()).unwrap_or_default()
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "tests create a machine's directory"
)]
pub(super) mod tests {
    use jiff::Timestamp;

    use super::*;
    use machinist_base::{digest::Digest, reason::Reason};
    use machinist_update::journal::Outcome;

    /// A machine with a state directory.
    pub(crate) fn machine() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("var/lib/machinist")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        (dir, root)
    }

    /// An update that was rolled back.
    pub(crate) fn rolled_back(id: &str) -> UpdateRecord {
        UpdateRecord {
            id: id.to_owned(),
            from: "a".to_owned(),
            to: "b".to_owned(),
            digest: Digest::of(b""),
            started: Timestamp::UNIX_EPOCH,
            finished: Timestamp::UNIX_EPOCH,
            outcome: Outcome::RolledBack,
            reason: Some(Reason::OSBootFailed),
            phases: Vec::new(),
            blocked_for: 0,
            actions: Vec::new(),
            left_behind: Vec::new(),
            repair: false,
        }
    }

    /// A report with these finished updates, newest first.
    pub(crate) fn history(ids: &[&str]) -> UpdateReport {
        UpdateReport {
            updates: ids.iter().map(|id| rolled_back(id)).collect(),
            ..UpdateReport::default()
        }
    }

    fn ids(updates: &[UpdateRecord]) -> Vec<&str> {
        updates.iter().map(|update| update.id.as_str()).collect()
    }

    /// What a process reports that starts with this history and ends.
    async fn reported(root: &Root, history: &UpdateReport) -> Vec<String> {
        let mut reported = ReportedUpdates::load(root, history);
        let unreported = ids(reported.unreported(history));
        let unreported = unreported.into_iter().map(str::to_owned).collect();
        reported.record(history).await;
        unreported
    }

    #[tokio::test]
    async fn each_update_is_reported_by_one_process() {
        let (_dir, root) = machine();
        assert!(reported(&root, &history(&["1"])).await.is_empty());
        assert_eq!(
            reported(&root, &history(&["3", "2", "1"])).await,
            ["3", "2"]
        );
        assert!(reported(&root, &history(&["3", "2", "1"])).await.is_empty());
        // The journal cannot be read, and then it is replaced.
        let unknown = UpdateReport {
            unknown: true,
            ..UpdateReport::default()
        };
        assert!(reported(&root, &unknown).await.is_empty());
        assert!(reported(&root, &history(&["3"])).await.is_empty());
        assert!(reported(&root, &history(&[])).await.is_empty());
        assert_eq!(reported(&root, &history(&["4"])).await, ["4"]);
    }

    #[tokio::test]
    async fn the_first_update_of_a_machine_is_reported_by_a_later_process() {
        let (_dir, root) = machine();
        assert!(reported(&root, &history(&[])).await.is_empty());
        assert_eq!(reported(&root, &history(&["1"])).await, ["1"]);
    }

    #[tokio::test]
    async fn a_task_with_an_older_report_does_not_replace_the_record() {
        let (_dir, root) = machine();
        let (first, second) = (history(&["1"]), history(&["2", "1"]));
        let mut one = ReportedUpdates::load(&root, &history(&[]));
        let mut other = one.clone();
        assert_eq!(ids(one.unreported(&second)), ["2", "1"]);
        one.record(&second).await;
        assert_eq!(ids(other.unreported(&first)), ["1"]);
        other.record(&first).await;
        assert_eq!(ids(other.unreported(&second)), ["2"]);
        assert!(reported(&root, &second).await.is_empty());
    }
}
