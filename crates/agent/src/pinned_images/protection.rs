//! Protects images from the kubelet's garbage collection, as the runtime of the machine does that.
//!
//! Images and labels of others stay as they are. An image that leaves all sets stays as well, without protection: the
//! kubelet removes it when it needs the space.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use super::{
    crio_config::{self, CrioConfigError},
    pin_record::PinRecord,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain, reason::Reason};
use machinist_cri::{CriError, ImageLabels, LocalImage, Runtime, RuntimeKind, digest_of};
use machinist_rootfs::{Root, RootError};
use machinist_systemd::{JobResult, JobVerb, Systemd, SystemdError};

/// CRI-O's unit, and the time limit of its reload.
const CRIO_UNIT: &str = "crio.service";
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// A runtime that is restarted at the very moment ends one change of a label; one that crashes because of it ends each.
const MAX_LOST_CHANGES: u32 = 2;

/// Why images are not protected.
#[derive(Debug, thiserror::Error)]
pub enum ProtectionError {
    /// The runtime has no protection that is known here.
    #[error("container runtime {0:?} has no known way to protect images")]
    Unsupported(String),
    /// The configuration of CRI-O cannot be changed.
    #[error(transparent)]
    Config(#[from] CrioConfigError),
    /// The record of labelled images cannot be read or written.
    #[error(transparent)]
    Record(#[from] RootError),
    /// A label cannot be changed.
    #[error(transparent)]
    Label(#[from] CriError),
    /// The runtime has ended while a label was changed.
    #[error(
        "containerd ended while the label of an image was changed; not tried again before the agent restarts"
    )]
    LabelsUnsafe,
    /// There is no service manager to ask for a reload.
    #[error("cannot reload {CRIO_UNIT}: no service manager")]
    NoManager,
    /// CRI-O cannot be reloaded.
    #[error(transparent)]
    Reload(#[from] SystemdError),
    /// Its reload failed.
    #[error("cannot reload {CRIO_UNIT}: {0:?}")]
    ReloadFailed(JobResult),
}

impl ProtectionError {
    /// The stable code.
    pub const fn reason(&self) -> Reason {
        Reason::ImageNotProtected
    }

    /// Whether a repetition may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unsupported(_)
            | Self::Config(CrioConfigError::Foreign(_))
            | Self::LabelsUnsafe => false,
            Self::Record(error) | Self::Config(CrioConfigError::File(error)) => {
                error.is_retryable()
            }
            Self::Label(error) => error.is_retryable(),
            Self::NoManager | Self::Reload(_) | Self::ReloadFailed(_) => true,
        }
    }
}

/// The means of protection of this machine.
#[derive(Clone, Debug)]
pub(super) struct Protection {
    root: Root,
    /// `None` if the root is not a running machine.
    systemd: Option<Systemd>,
    /// How often the runtime has ended while a label was changed.
    lost_changes: Arc<AtomicU32>,
}

impl Protection {
    pub(super) fn new(root: &Root, systemd: Option<Systemd>) -> Self {
        Self {
            root: root.clone(),
            systemd,
            lost_changes: Arc::default(),
        }
    }

    pub(super) const fn root(&self) -> &Root {
        &self.root
    }

    /// Whether an earlier protection may have to be removed.
    pub(super) async fn has_traces(&self) -> Result<bool, RootError> {
        self.blocking(|root| {
            Ok(crio_config::is_present(root)? || !PinRecord::load(root)?.labelled.is_empty())
        })
        .await
    }

    /// Protects `images`, of which `present` are present, and no others any more.
    pub(super) async fn apply(
        &self,
        runtime: &Runtime,
        images: &BTreeSet<String>,
        present: &[(String, LocalImage)],
    ) -> Result<(), ProtectionError> {
        match runtime.kind() {
            RuntimeKind::Crio => {
                let is_unprotected = present.iter().any(|(_, image)| !image.pinned);
                self.configure_crio(images.clone(), is_unprotected).await
            }
            RuntimeKind::Containerd => {
                // The machine may have had CRI-O before, which does not run any more.
                let removed = self.blocking(|root| Ok(crio_config::apply(root, &BTreeSet::new())));
                removed.await??;
                self.label(&runtime.labels(), images, present).await
            }
            RuntimeKind::Other if images.is_empty() => Ok(()),
            RuntimeKind::Other => Err(ProtectionError::Unsupported(runtime.name().to_owned())),
        }
    }

    /// Writes the configuration of CRI-O, and reloads CRI-O if it has changed or was not read.
    async fn configure_crio(
        &self,
        images: BTreeSet<String>,
        is_unprotected: bool,
    ) -> Result<(), ProtectionError> {
        let is_empty = images.is_empty();
        let applied = self.blocking(move |root| Ok(crio_config::apply(root, &images)));
        let has_changed = applied.await??;
        if has_changed || (is_unprotected && !is_empty) {
            self.reload_crio().await?;
        }
        Ok(())
    }

    async fn reload_crio(&self) -> Result<(), ProtectionError> {
        let systemd = self.systemd.as_ref().ok_or(ProtectionError::NoManager)?;
        let reload = systemd.run_job(JobVerb::Reload, CRIO_UNIT, RELOAD_TIMEOUT);
        match reload.await? {
            JobResult::Done => Ok(()),
            other => Err(ProtectionError::ReloadFailed(other)),
        }
    }

    /// Removes labels that are no longer wanted, then sets those that are. The record is durable before a label is set.
    async fn label(
        &self,
        labels: &ImageLabels,
        images: &BTreeSet<String>,
        present: &[(String, LocalImage)],
    ) -> Result<(), ProtectionError> {
        let mut record = self.blocking(PinRecord::load).await?;
        let digests: BTreeSet<&str> = images.iter().filter_map(|image| digest_of(image)).collect();
        let is_stale = |name: &&String| !digest_of(name).is_some_and(|it| digests.contains(it));
        let stale: Vec<String> = record.labelled.iter().filter(is_stale).cloned().collect();
        for name in &stale {
            self.change_label(labels, name, false).await?;
            record.labelled.remove(name);
        }
        let mut missing = Vec::new();
        for (image, local) in present {
            let name = name_in_containerd(image, local);
            // A label that another client has set stays its own.
            if labels.is_pinned(name).await? == Some(false) {
                record.labelled.insert(name.to_owned());
                missing.push(name);
            }
        }
        if !stale.is_empty() || !missing.is_empty() {
            let record = record.clone();
            self.blocking(move |root| record.save(root)).await?;
        }
        for name in missing {
            self.change_label(labels, name, true).await?;
        }
        Ok(())
    }

    /// Changes a label, unless that may be what ends the runtime: it must not be ended again and again.
    async fn change_label(
        &self,
        labels: &ImageLabels,
        name: &str,
        is_pinned: bool,
    ) -> Result<(), ProtectionError> {
        if self.lost_changes.load(Ordering::Relaxed) >= MAX_LOST_CHANGES {
            return Err(ProtectionError::LabelsUnsafe);
        }
        let changed = labels.set_pinned(name, is_pinned).await;
        if changed.as_ref().is_err_and(CriError::is_connection_lost) {
            self.lost_changes.fetch_add(1, Ordering::Relaxed);
        }
        Ok(changed?)
    }

    /// Removes all traces of protections. A runtime that cannot be asked keeps its labels, and the record stays.
    pub(super) async fn remove(&self, sockets: &[AbsPath]) -> Result<(), ProtectionError> {
        let removed = self.blocking(|root| Ok(crio_config::apply(root, &BTreeSet::new())));
        if removed.await??
            && self.systemd.is_some()
            && let Err(error) = self.reload_crio().await
        {
            // A CRI-O that does not run reads the directory when it starts.
            tracing::debug!("{}", chain(&error));
        }
        if self.blocking(PinRecord::load).await?.labelled.is_empty() {
            return Ok(());
        }
        let runtime = Runtime::connect(&self.root, sockets).await?;
        match runtime.kind() {
            RuntimeKind::Containerd => {
                let labels = runtime.labels();
                self.label(&labels, &BTreeSet::new(), &[]).await
            }
            _ => Ok(()),
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Root) -> Result<T, RootError> + Send + 'static,
    ) -> Result<T, RootError> {
        let root = self.root.clone();
        match tokio::task::spawn_blocking(move || work(&root)).await {
            Ok(done) => done,
            // The work does not panic, and the runtime ends only with the process.
            Err(_) => std::future::pending().await,
        }
    }
}

/// containerd may keep an image under a longer name than the one in the set, such as with `library/`.
fn name_in_containerd<'n>(image: &'n str, local: &'n LocalImage) -> &'n str {
    let digest = digest_of(image);
    let mut names = local.digests.iter().map(String::as_str);
    match names.clone().any(|name| name == image) {
        true => image,
        false => names
            .find(|name| digest_of(name) == digest)
            .unwrap_or(image),
    }
}
