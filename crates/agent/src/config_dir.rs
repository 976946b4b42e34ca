//! The config source of a machine without a cluster: a directory of manifests, which is watched and read again as a
//! whole whenever something in it changes.

mod butane_files;
mod symlink_chain;
mod watcher;

use std::{sync::Arc, time::Duration};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use butane_files::LocalFiles;
use butane_files::UsedFiles;
use watcher::ConfigDirWatcher;

use machinist_base::{abs_path::AbsPath, reason::Reason, text};
use machinist_ignition::{
    ConfigLoader, ConfigRules, MachineConfig, MergeOrder, Refusal, RejectedConfig,
};
use machinist_rootfs::{FileKind, Listing, Root, RootError};
use machinist_status::metrics::{Metrics, SourceReadResult};
use machinist_update::reconciler::DesiredConfig;

/// An editor's save causes several events within a few milliseconds. The reaction to a save must show within 300
/// ms, so the quiet time is a small part of that.
const CONFIG_DEBOUNCE: Duration = Duration::from_millis(40);

/// A half-finished save is invalid, so an error is reported only after this time.
const ERROR_REPORT_DELAY: Duration = Duration::from_millis(150);

/// Bytes of one manifest: more than the API server would accept, since some manifests never go there.
const MAX_MANIFEST_BYTES: u64 = 8 << 20;

/// A directory with more manifests is the wrong directory.
const MAX_FILES: usize = 10_000;

/// Names in one warning.
const MAX_SHOWN_NAMES: usize = 5;

/// The pool of a machine without a cluster, used in the names of its configs.
pub const STANDALONE_POOL: &str = "machine";

/// Manifests with their names.
type ManifestTexts = Vec<(String, Vec<u8>)>;

/// A directory of manifests.
#[derive(Clone, Debug)]
pub struct DirectorySource {
    /// The tree in which `dir` is resolved: the root for a path from settings, the caller's file system for a path
    /// from a flag.
    pub tree: Root,
    /// The directory.
    pub dir: AbsPath,
    /// The directory as the user names it; messages name files below it.
    pub shown: String,
    /// Whether to refuse files that users other than root may write.
    pub root_alone: bool,
    /// The users and groups that may be managed.
    pub rules: ConfigRules,
    /// Further checks.
    pub judge: ConfigValidator,
    /// The roles of the machine; empty if the settings name none.
    pub roles: Vec<String>,
}

/// Refuses configs because of their effect on machinist itself.
#[derive(Clone, Debug)]
pub struct ConfigValidator {
    /// The file of disruption policies that the settings name.
    pub policies: AbsPath,
    /// Returns every reason against the config, given that file.
    pub refusals: fn(&MachineConfig, &AbsPath) -> Vec<Refusal>,
}

impl ConfigValidator {
    /// Returns what was read, or all errors in it.
    pub fn judged<T>(
        &self,
        read: Result<(MachineConfig, T), RejectedConfig>,
    ) -> Result<(MachineConfig, T), RejectedConfig> {
        match read {
            Ok((config, more)) => {
                let refusals = (self.refusals)(&config, &self.policies);
                match refusals.is_empty() {
                    true => Ok((config, more)),
                    false => Err(RejectedConfig {
                        refusals,
                        rest: Some(Box::new(config)),
                    }),
                }
            }
            Err(mut refused) => {
                let rest = refused.rest.as_deref();
                let more = rest.map(|rest| (self.refusals)(rest, &self.policies));
                refused.refusals.extend(more.unwrap_or_default());
                Err(refused)
            }
        }
    }
}

/// What a directory contains beside manifests.
#[derive(Default)]
struct LeftOut {
    /// Names with another extension.
    names: Vec<String>,
    /// Warnings of everything else.
    more: Vec<String>,
}

impl DirectorySource {
    /// Reads and merges everything in the directory, in the order of file names; hidden files and names with an
    /// unknown extension are left out.
    pub fn read(&self) -> Result<MachineConfig, RejectedConfig> {
        self.read_all().0
    }

    /// Also returns the local files that the config uses, or would have used.
    fn read_all(&self) -> (Result<MachineConfig, RejectedConfig>, UsedFiles) {
        let (files, missing, left_out) = match self.files() {
            Ok(found) => found,
            Err(refusal) => return (Err(vec![refusal].into()), UsedFiles::default()),
        };
        let mut local = LocalFiles::new(self.tree.clone()).root_alone(self.root_alone);
        for (name, _) in &files {
            local.text(name, self.dir.clone());
        }
        let gathering = ConfigLoader {
            shown: &self.shown,
            rules: &self.rules,
            local: &local,
            pool: STANDALONE_POOL,
            order: match self.roles.len() {
                0 | 1 => MergeOrder::AsGiven,
                _ => MergeOrder::WorkerFirst,
            },
            roles: &self.roles,
        };
        let read = self.judge.judged(gathering.config(files, missing));
        let used = local.used();
        let config = read.map(|(mut config, warnings)| {
            for warning in warnings {
                tracing::warn!("{warning}");
            }
            config.notes.0.extend(self.left_out(left_out.names, &used));
            config.notes.0.extend(left_out.more);
            config
        });
        (config, used)
    }

    /// A warning about files that look like manifests but were left out.
    fn left_out(&self, mut names: Vec<String>, used: &UsedFiles) -> Option<String> {
        names.retain(|name| {
            let path = self.dir.join(name).ok();
            path.is_none_or(|path| !used.files.contains(&path))
        });
        let shown = text::join_limited(names.iter(), MAX_SHOWN_NAMES);
        (!names.is_empty()).then(|| {
            format!(
                "files in {} are ignored, because their names do not end in {}: {shown}",
                self.shown,
                machinist_ignition::CONFIG_EXTENSIONS.join(", ")
            )
        })
    }

    fn check(&self, path: &AbsPath) -> Result<(), RootError> {
        match self.root_alone {
            true => self.tree.check_trusted(path),
            false => Ok(()),
        }
    }

    /// The manifests with their names, the unreadable ones, and what is left out.
    fn files(&self) -> Result<(ManifestTexts, Vec<Refusal>, LeftOut), Refusal> {
        let listed = self.check(&self.dir);
        let listing = match listed.and_then(|()| self.tree.listing(&self.dir)) {
            Ok(listing) => listing,
            Err(error) if error.is_not_found() => {
                let refusal =
                    self.refusal(Reason::SourceEmpty, "the source directory does not exist");
                return Err(
                    refusal.expected("configs in it, or another place with --source dir:PATH")
                );
            }
            Err(error) => return Err(self.unreadable(&error)),
        };
        let more = self.not_read(&listing);
        let entries = listing.entries;
        if entries.len() > MAX_FILES {
            return Err(self.refusal(
                Reason::SourceUnreadable,
                "the source directory contains more than 10,000 entries",
            ));
        }
        let manifests = entries.into_iter().filter(|entry| {
            !entry.name.starts_with('.') && matches!(entry.kind, FileKind::File | FileKind::Link)
        });
        let (mut files, mut missing) = (Vec::new(), Vec::new());
        let (manifests, others): (Vec<_>, Vec<_>) =
            manifests.partition(|entry| machinist_ignition::is_config_name(&entry.name));
        for entry in manifests {
            let path = self
                .dir
                .join(&entry.name)
                .map_err(|error| self.refusal(Reason::SourceUnreadable, &error.to_string()))?;
            let shown = format!("{}/{}", self.shown, entry.name);
            let trusted = self.check(&path);
            match trusted.and_then(|()| self.tree.read(&path, MAX_MANIFEST_BYTES)) {
                Ok(bytes) => files.push((shown, bytes)),
                // The link's target may be unreachable, such as on a share; its entries must not be removed from
                // the machine.
                Err(error) if error.is_not_found() && self.tree.read_link(&path).is_ok() => {
                    let message = "this is a dangling symbolic link";
                    missing.push(self.refusal(Reason::SourceUnreadable, message).file(shown));
                }
                // Removed between listing and reading: the watch has seen it too.
                Err(error) if error.is_not_found() => {}
                Err(error) => missing.push(self.unreadable(&error).file(shown)),
            }
        }
        let names = others.into_iter().map(|entry| entry.name).collect();
        Ok((files, missing, LeftOut { names, more }))
    }

    /// Warnings of objects that look like manifests and are not files, and of names that are not UTF-8.
    fn not_read(&self, listing: &Listing) -> Vec<String> {
        let mut warnings = Vec::new();
        let others = listing.entries.iter().filter(|entry| {
            !matches!(entry.kind, FileKind::File | FileKind::Link)
                && machinist_ignition::is_config_name(&entry.name)
        });
        let names: Vec<&str> = others.map(|entry| entry.name.as_str()).collect();
        if !names.is_empty() {
            warnings.push(format!(
                "objects in {} are ignored, because they are not files: {}",
                self.shown,
                text::join_limited(names.iter(), MAX_SHOWN_NAMES)
            ));
        }
        match listing.unreadable_names {
            0 => {}
            1 => warnings.push(format!(
                "1 name in {} is ignored, because it is not UTF-8",
                self.shown
            )),
            count => warnings.push(format!(
                "{count} names in {} are ignored, because they are not UTF-8",
                self.shown
            )),
        }
        warnings
    }

    fn unreadable(&self, error: &RootError) -> Refusal {
        self.refusal(
            Reason::SourceUnreadable,
            &machinist_base::error_chain::chain(error),
        )
    }

    fn refusal(&self, reason: Reason, message: &str) -> Refusal {
        Refusal {
            file: Some(self.shown.clone()),
            ..Refusal::new(reason, message)
        }
    }

    /// Reads now and after every change, until `stop`. Publishes each result that differs.
    pub async fn follow(
        self,
        desired: watch::Sender<DesiredConfig>,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) {
        let mut watching = self.arm(UsedFiles::default()).await;
        let mut used = UsedFiles::default();
        let mut patient = false;
        loop {
            // Twice if the manifests use files that were not watched: those may have changed between the reading
            // and the watch.
            for _ in 0..2 {
                let mut published = self.publish(&desired, &metrics, patient).await;
                if !published.0 {
                    watching.wait_until_quiet(ERROR_REPORT_DELAY).await;
                    published = self.publish(&desired, &metrics, false).await;
                }
                used = published.1;
                patient = false;
                if watching.covers(&used) {
                    break;
                }
                watching = self.arm(used.clone()).await;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                // Safe to drop: the next call reads what inotify has queued.
                () = watching.changed() => {}
            }
            watching.wait_until_quiet(CONFIG_DEBOUNCE).await;
            // The directory may have been replaced, or its links may lead elsewhere now.
            watching = self.arm(used.clone()).await;
            patient = true;
        }
    }

    async fn arm(&self, used: UsedFiles) -> ConfigDirWatcher {
        let source = self.clone();
        let armed = move || ConfigDirWatcher::arm(&source.tree, &source.dir, used);
        tokio::task::spawn_blocking(armed).await.unwrap_or_default()
    }

    /// Reads once and publishes the result. With `patient` a refusal is not published and false is returned. Also
    /// returns the local files that were used.
    async fn publish(
        &self,
        desired: &watch::Sender<DesiredConfig>,
        metrics: &Metrics,
        patient: bool,
    ) -> (bool, UsedFiles) {
        let source = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let (config, used) = source.read_all();
            let config = config.map(|config| {
                let digest = machinist_ignition::digest(&config);
                (config, digest)
            });
            (config, used)
        });
        let (read, used) = match read.await {
            Ok((Ok((config, digest)), used)) => {
                (DesiredConfig::Config(Arc::new(config), digest), used)
            }
            Ok((Err(_), used)) if patient => return (false, used),
            Ok((Err(refused), used)) => (DesiredConfig::Refused(Arc::new(refused.refusals)), used),
            // A bug in the reader must not look like an unchanged source.
            Err(lost) => {
                let why = format!("failed to read: {lost}");
                let refusal = self.refusal(Reason::SourceUnreadable, &why);
                (
                    DesiredConfig::Refused(Arc::new(vec![refusal])),
                    UsedFiles::default(),
                )
            }
        };
        metrics.source_was_read(match &read {
            DesiredConfig::Config(..) => SourceReadResult::Accepted,
            DesiredConfig::Refused(refusals) if refusals.iter().any(is_unreadable) => {
                SourceReadResult::Unreadable
            }
            _ => SourceReadResult::Refused,
        });
        desired.send_if_modified(|known| {
            let differs = !known.is_equal_for_readers(&read);
            if differs {
                *known = read;
            }
            differs
        });
        (true, used)
    }
}

fn is_unreadable(refusal: &Refusal) -> bool {
    refusal.reason == Reason::SourceUnreadable
}
