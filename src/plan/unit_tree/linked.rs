//! Resolves unit files outside the unit directories that links in these directories make units,
//! like `systemctl link`.

use std::{borrow::Cow, collections::BTreeMap};

use super::{Entry, UNIT_DIRECTORIES, UnitTree, unit_path};
use crate::{
    machine_config::MachineConfig,
    path::AbsPath,
    plan::{
        desired::Side,
        linkset::{name, resolve},
        observed::{Observed, UnitEntry},
    },
};

/// The final target of a link in a unit directory that names a path outside these directories.
#[derive(Clone, Debug)]
pub(super) enum Outside<'a> {
    /// A file outside, with its text if it is known.
    File(AbsPath, Option<Cow<'a, str>>),
    /// A path in a unit directory after all: the link is an alias of that entry.
    Inside(AbsPath),
    /// The target does not exist.
    Missing,
}

/// The observed targets.
pub(super) fn known<'a>(observed: &'a Observed, side: Side<'_>) -> BTreeMap<AbsPath, Outside<'a>> {
    let ends = match side {
        Side::Before => &observed.unit_ends_before,
        Side::After(_) => &observed.unit_ends,
    };
    let outside = ends.iter().map(|(target, end)| {
        let outside = match end {
            None => Outside::Missing,
            Some(end) if UNIT_DIRECTORIES.contains(&end.directory()) => {
                Outside::Inside(end.clone())
            }
            Some(end) => {
                let text = observed.texts.get(end);
                Outside::File(end.clone(), text.map(|text| Cow::Borrowed(text.as_str())))
            }
        };
        (target.clone(), outside)
    });
    outside.collect()
}

impl<'a> UnitTree<'a> {
    /// Records the unit files outside that the config itself creates, and the links that are
    /// restored when no config disables their units any more.
    pub(super) fn take_down_linked(
        &mut self,
        config: &'a MachineConfig,
        observed: &'a Observed,
        side: Side<'_>,
    ) {
        for (target, outside) in &mut self.outside {
            let place = match outside {
                Outside::File(end, _) => end.clone(),
                Outside::Missing => target.clone(),
                Outside::Inside(_) => continue,
            };
            let file = config
                .files
                .get(&place)
                .or_else(|| config.files.get(target));
            let content = file.and_then(|file| file.content.as_ref());
            if let Some(content) = content.and_then(|content| content.bytes()) {
                *outside = Outside::File(place, Some(String::from_utf8_lossy(content)));
            }
        }
        if matches!(side, Side::Before) {
            return;
        }
        for (path, entry) in &observed.unit_originals {
            let UnitEntry::Link(text) = entry else {
                continue;
            };
            let outside = self.outside.get(&resolve(path, text));
            if matches!(outside, Some(Outside::File(..))) && self.at(path).is_none() {
                self.away.insert(path.clone(), text);
            }
        }
    }

    /// The target of the link in the administrator's directory that `systemctl enable` creates for
    /// a unit whose file is at `path`, outside the unit directories; none if no other link makes it
    /// a unit.
    pub(in crate::plan) fn link_of_linked(&self, unit: &str, path: &AbsPath) -> Option<String> {
        let own = unit_path(unit)?;
        let others = UNIT_DIRECTORIES.iter().skip(1);
        let mut others =
            others.filter_map(|directory| AbsPath::new(format!("{directory}/{unit}")).ok());
        let template = name::template(unit).filter(|other| other != unit);
        let by_template = template.and_then(|template| unit_path(&template));
        let known = others.any(|other| self.at(&other).is_some())
            || by_template.is_some_and(|template| self.at(&template).is_some());
        match self.at(&own) {
            Some(Entry::Link(text)) if known => Some((*text).to_owned()),
            None if known => Some(path.to_string()),
            _ => None,
        }
    }
}

/// The unit of which a link called `unit` to a file called `target` is an alias; none if the file
/// is the unit's own or that of its template.
pub(super) fn alias(unit: &str, target: &str) -> Option<String> {
    name::shape(target)?;
    let real = match (name::shape(unit), name::shape(target)) {
        (Some(name::Shape::Instance), Some(name::Shape::Template)) => {
            name::with_instance(target, name::instance(unit))
        }
        _ => target.to_owned(),
    };
    (real != unit).then_some(real)
}
