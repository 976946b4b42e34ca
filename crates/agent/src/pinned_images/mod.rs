//! Pulls the images of the PinnedImageSets of the node's pool in advance, and protects them from the kubelet's garbage
//! collection.
//!
//! Pulls go through the CRI, as the kubelet's do. They never change a pod or a file of the config; their only effect on
//! an update is that it waits a limited time for images that are pulled for the first time.

mod crio_config;
mod desired_images;
mod image_pull;
mod image_state;
mod pin_record;
mod protection;
mod pull_pass;
mod pull_report;
mod pull_task;
mod update_wait;

use std::collections::BTreeMap;

use tokio::sync::watch;

pub use crio_config::CrioConfigError;
pub use protection::ProtectionError;
pub use pull_report::{FirstPull, PullReports};
pub use pull_task::PullInputs;
pub(super) use update_wait::UpdateWait;

use protection::Protection;
use pull_task::PullTask;

use machinist_base::{abs_path::AbsPath, clock::Clock, error_chain::chain, shutdown::Tasks};
use machinist_rootfs::{Root, RootError};
use machinist_status::{
    metrics::Metrics,
    settings::{PinnedImageSettings, Settings},
};
use machinist_systemd::Systemd;

/// Starts pulling; returns the state of the images.
pub fn start(
    root: &Root,
    systemd: Option<Systemd>,
    inputs: PullInputs,
    metrics: Metrics,
    tasks: &Tasks,
) -> PullReports {
    let (sets, known_sets) = watch::channel(None);
    let (first_pull, known_pull) = watch::channel(None);
    let task = PullTask {
        protection: Protection::new(root, systemd),
        sets,
        first_pull,
        metrics,
        clock: Clock::system(),
        complete: BTreeMap::new(),
    };
    tasks.spawn("pinned images", task.run(inputs, tasks.token()));
    PullReports {
        sets: known_sets,
        first_pull: known_pull,
    }
}

/// Removes the protection of images that an agent with other roles has left, once. Another daemon protects them by now.
pub(super) fn forget(root: &Root, systemd: Option<Systemd>, settings: &Settings, tasks: &Tasks) {
    let sockets = settings.pinned_images.sockets();
    let protection = Protection::new(root, systemd);
    let stop = tasks.token();
    tasks.spawn("pinned images", async move {
        // Cancel-safe: the next start repeats it.
        let removed = stop.run_until_cancelled(protection.remove(&sockets)).await;
        if let Some(Err(error)) = removed {
            tracing::warn!(
                reason = %error.reason(),
                "images stay protected from garbage collection: {}",
                chain(&error)
            );
        }
    });
}

/// Removes the protection of all images, before machinist leaves a machine. The images stay.
pub async fn remove_protection(
    root: &Root,
    settings: &PinnedImageSettings,
) -> Result<(), ProtectionError> {
    let systemd = root.is_live().then(|| Systemd::of(root));
    let protection = Protection::new(root, systemd);
    protection.remove(&settings.sockets()).await
}

/// The file that [`remove_protection`] removes, if it exists.
pub fn protection_file(root: &Root) -> Result<Option<AbsPath>, RootError> {
    Ok(crio_config::is_present(root)?.then(crio_config::path))
}
