//! Watches PinnedImageSets: the images that nodes pull in advance.
//!
//! All sets of the cluster are watched, because which ones belong to a pool is a decision about their labels; a cluster
//! has a few. The kind may not exist, which is no error.

use std::{collections::BTreeMap, time::Duration};

use kube::api::{ApiResource, DynamicObject};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    Cluster, ClusterError, WatchChange, resource,
    watch_loop::{self, WatchHandler},
};
use machinist_base::error_chain::chain;
use machinist_kube_api::{PinnedImageSetSpec, PinnedImageSetView};

/// How long until a kind that does not exist, or must not be read, is listed again: it may be installed later.
const KIND_RECHECK_INTERVAL: Duration = Duration::from_secs(600);

/// The sets of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImageSets {
    /// They were not listed yet.
    #[default]
    Unknown,
    /// The kind does not exist.
    NoKind,
    /// The sets by name.
    Known(BTreeMap<String, PinnedImageSetView>),
}

/// Publishes the sets after every change, until `stop`. They are kept while the API server cannot be reached.
pub async fn watch_image_sets(
    cluster: Cluster,
    sets: watch::Sender<ImageSets>,
    stop: CancellationToken,
) {
    watch_loop::run(ImageSetWatch { cluster, sets }, stop).await;
}

struct ImageSetWatch {
    cluster: Cluster,
    sets: watch::Sender<ImageSets>,
}

/// A listed set.
struct ImageSetEntry(PinnedImageSetView);

impl From<DynamicObject> for ImageSetEntry {
    fn from(object: DynamicObject) -> Self {
        let spec = object.data.get("spec").cloned().unwrap_or_default();
        // The API server validates the spec; one that cannot be parsed is of another version.
        let spec: PinnedImageSetSpec = serde_json::from_value(spec).unwrap_or_default();
        let metadata = object.metadata;
        Self(PinnedImageSetView {
            name: metadata.name.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            generation: metadata.generation.unwrap_or(1),
            images: spec
                .pinned_images
                .into_iter()
                .map(|image| image.name)
                .collect(),
        })
    }
}

impl ImageSetWatch {
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, PinnedImageSetView>)) {
        self.sets.send_if_modified(|known| {
            let mut sets = match known {
                ImageSets::Known(sets) => sets.clone(),
                _ => BTreeMap::new(),
            };
            change(&mut sets);
            let sets = ImageSets::Known(sets);
            let differs = *known != sets;
            *known = sets;
            differs
        });
    }
}

impl WatchHandler for ImageSetWatch {
    type Object = DynamicObject;
    type View = ImageSetEntry;

    fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    fn object(&self) -> String {
        "the PinnedImageSets".to_owned()
    }

    fn selector(&self) -> String {
        String::new()
    }

    async fn kind(&mut self) -> Result<ApiResource, ClusterError> {
        Ok(resource("PinnedImageSet", "pinnedimagesets"))
    }

    async fn listed(&mut self, objects: Vec<ImageSetEntry>) -> Result<(), ClusterError> {
        let named = objects
            .into_iter()
            .map(|ImageSetEntry(set)| (set.name.clone(), set));
        self.change(|sets| *sets = named.collect());
        Ok(())
    }

    fn opened(&mut self) {}

    fn changed(&mut self, change: WatchChange<DynamicObject>) {
        let (object, is_deleted) = match change {
            WatchChange::Applied(object) => (object, false),
            WatchChange::Deleted(object) => (object, true),
            WatchChange::Bookmark => return,
        };
        let ImageSetEntry(set) = object.into();
        self.change(|sets| {
            match is_deleted {
                true => sets.remove(&set.name),
                false => sets.insert(set.name.clone(), set),
            };
        });
    }

    fn failed(&mut self, error: &ClusterError, first: bool, wait: Duration) -> Duration {
        if error.is_not_found() {
            // An API server that starts may not serve the kind yet, and images must not lose their protection because
            // of that: the kind does not exist if it is still missing at the next list.
            if !first {
                self.sets.send_if_modified(|known| {
                    let differs = *known != ImageSets::NoKind;
                    *known = ImageSets::NoKind;
                    differs
                });
            }
            return KIND_RECHECK_INTERVAL;
        }
        match first {
            true => tracing::warn!(reason = %error.reason(), "{}", chain(error)),
            false => tracing::debug!("{}", chain(error)),
        }
        match error.is_forbidden() {
            true => KIND_RECHECK_INTERVAL,
            false => wait,
        }
    }
}
