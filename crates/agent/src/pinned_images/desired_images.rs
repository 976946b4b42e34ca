//! The images that the sets of the node's pool want on this machine.

use std::collections::{BTreeMap, BTreeSet};

use machinist_cluster::pinned_image_sets::ImageSets;
use machinist_cri::is_by_digest;
use machinist_kube_api::PinnedImageSetView;
use machinist_pool::ImageSetSelection;

/// The sets of the pool, and their images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DesiredImages {
    /// Whether the kind exists.
    pub(super) is_served: bool,
    /// The sets by name.
    pub(super) sets: BTreeMap<String, PinnedImageSetView>,
}

impl DesiredImages {
    /// `None` while the sets or the pool are unknown: then nothing is pulled, and nothing loses its protection.
    pub(super) fn of(sets: &ImageSets, pool: Option<&ImageSetSelection>) -> Option<Self> {
        let (is_served, all) = match sets {
            ImageSets::Unknown => return None,
            ImageSets::NoKind => (false, BTreeMap::new()),
            ImageSets::Known(all) => (true, all.clone()),
        };
        let pool = match all.is_empty() {
            true => &ImageSetSelection::default(),
            false => pool?,
        };
        let sets = all.into_iter().filter(|(_, set)| pool.has(set)).collect();
        Some(Self { is_served, sets })
    }

    /// Every image that is named by digest, once.
    pub(super) fn images(&self) -> BTreeSet<String> {
        self.all().filter(|image| is_by_digest(image)).collect()
    }

    /// The other images, which are not pulled.
    pub(super) fn refused(&self) -> BTreeSet<String> {
        self.all().filter(|image| !is_by_digest(image)).collect()
    }

    fn all(&self) -> impl Iterator<Item = String> {
        self.sets
            .values()
            .flat_map(|set| set.images.iter().cloned())
    }
}
