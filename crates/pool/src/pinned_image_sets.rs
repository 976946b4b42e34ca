//! Which sets of images the nodes of a pool pull in advance.

use machinist_kube_api::{MachineConfigPoolSpec, PinnedImageSetView, Selector};

/// Selects the sets of a pool, by labels and by names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSetSelection {
    selector: Selector,
    names: Vec<String>,
}

impl ImageSetSelection {
    /// Reads it from the pool.
    pub fn of(pool: &MachineConfigPoolSpec) -> Self {
        let names = pool.pinned_image_sets.iter();
        Self {
            selector: pool.machine_config_selector.clone(),
            names: names.map(|set| set.name.clone()).collect(),
        }
    }

    /// Whether the pool has this set: its labels match as those of a MachineConfig would, or it is listed by name. An
    /// empty selector selects nothing, as in a rendering.
    pub fn has(&self, set: &PinnedImageSetView) -> bool {
        let is_selected = !self.selector.is_empty() && self.selector.selects(&set.labels);
        is_selected || self.names.contains(&set.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use serde_json::json;

    #[test]
    fn a_pool_has_the_sets_that_it_selects_or_names() {
        let set = |name: &str, labels: &[(&str, &str)]| PinnedImageSetView {
            name: name.to_owned(),
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect::<BTreeMap<_, _>>(),
            ..PinnedImageSetView::default()
        };
        let pool = json!({
            "machineConfigSelector": {"matchLabels": {"role": "worker"}},
            "pinnedImageSets": [{"name": "named"}],
        });
        let selection = ImageSetSelection::of(&serde_json::from_value(pool).unwrap());
        assert!(selection.has(&set("a", &[("role", "worker"), ("x", "y")])));
        assert!(!selection.has(&set("b", &[("role", "infra")])));
        assert!(selection.has(&set("named", &[])));
        assert!(!ImageSetSelection::default().has(&set("a", &[("role", "worker")])));
    }
}
