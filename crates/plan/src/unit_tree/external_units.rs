//! Resolves unit files outside the unit directories that links in these directories make units,
//! like `systemctl link`.

use std::{borrow::Cow, collections::BTreeMap};

use super::{UNIT_DIRECTORIES, UnitTree, UnitTreeEntry, unit_path};
use crate::{
    desired_tree::ConfigSide,
    enablement::{UNIT_DIR, unit_name},
    machine_facts::MachineFacts,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::MachineConfig;

/// The final target of a link in a unit directory that names a path outside these directories.
#[derive(Clone, Debug)]
pub(super) enum ExternalTarget<'a> {
    /// A file outside, with its text if it is known.
    File(AbsPath, Option<Cow<'a, str>>),
    /// A path in a unit directory after all: the link is an alias of that entry.
    Inside(AbsPath),
    /// The target does not exist.
    Missing,
}

/// The observed targets.
pub(super) fn known<'a>(
    observed: &'a MachineFacts,
    side: ConfigSide<'_>,
) -> BTreeMap<AbsPath, ExternalTarget<'a>> {
    let ends = match side {
        ConfigSide::Before => &observed.unit_ends_before,
        ConfigSide::After(_) => &observed.unit_ends,
    };
    let outside = ends.iter().map(|(target, end)| {
        let outside = match end {
            None => ExternalTarget::Missing,
            Some(end) if UNIT_DIRECTORIES.contains(&end.directory()) => {
                ExternalTarget::Inside(end.clone())
            }
            Some(end) => {
                let text = observed.texts.get(end);
                ExternalTarget::File(end.clone(), text.map(|text| Cow::Borrowed(text.as_str())))
            }
        };
        (target.clone(), outside)
    });
    outside.collect()
}

impl<'a> UnitTree<'a> {
    /// Records the unit files outside that the config itself creates.
    pub(super) fn record_linked_units(&mut self, config: &'a MachineConfig) {
        for (target, outside) in &mut self.outside {
            let place = match outside {
                ExternalTarget::File(end, _) => end.clone(),
                ExternalTarget::Missing => target.clone(),
                ExternalTarget::Inside(_) => continue,
            };
            let file = config
                .files
                .get(&place)
                .or_else(|| config.files.get(target));
            let content = file.and_then(|file| file.content.as_ref());
            if let Some(content) = content.and_then(|content| content.bytes()) {
                *outside = ExternalTarget::File(place, Some(String::from_utf8_lossy(content)));
            }
        }
    }

    /// The target of the link in the administrator's directory that `systemctl enable` creates for
    /// a unit whose file is at `path`, outside the unit directories; none if no other link makes it
    /// a unit.
    pub(crate) fn link_of_linked(&self, unit: &str, path: &AbsPath) -> Option<String> {
        let own = unit_path(unit)?;
        let others = UNIT_DIRECTORIES
            .iter()
            .filter(|directory| **directory != UNIT_DIR);
        let mut others =
            others.filter_map(|directory| AbsPath::new(format!("{directory}/{unit}")).ok());
        let template = unit_name::template(unit).filter(|other| other != unit);
        let by_template = template.and_then(|template| unit_path(&template));
        let known = others.any(|other| self.at(&other).is_some())
            || by_template.is_some_and(|template| self.at(&template).is_some());
        match self.at(&own) {
            Some(UnitTreeEntry::Link(text)) if known => Some((*text).to_owned()),
            None if known => Some(path.to_string()),
            _ => None,
        }
    }
}

/// The unit of which a link called `unit` to a file called `target` is an alias; none if the file
/// is the unit's own or that of its template.
pub(super) fn alias(unit: &str, target: &str) -> Option<String> {
    unit_name::shape(target)?;
    let real = match (unit_name::shape(unit), unit_name::shape(target)) {
        (Some(unit_name::UnitNameShape::Instance), Some(unit_name::UnitNameShape::Template)) => {
            unit_name::with_instance(target, unit_name::instance(unit))
        }
        _ => target.to_owned(),
    };
    (real != unit).then_some(real)
}
