//! Parses the `[InstallSection]` section of one unit and expands its specifiers.

use super::{
    UNIT_DIR,
    specifiers::expand,
    unit_name::{self, UnitNameShape},
};
use crate::machine_facts::SpecifierFacts;
use machinist_base::abs_path::AbsPath;
use machinist_ignition::UnitFile;

/// The `[InstallSection]` settings of a unit. Lists keep their order; names are expanded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct InstallSection {
    pub(crate) aliases: Vec<String>,
    pub(crate) wanted_by: Vec<String>,
    pub(crate) required_by: Vec<String>,
    pub(crate) upheld_by: Vec<String>,
    pub(crate) also: Vec<String>,
    pub(crate) default_instance: Option<String>,
    /// Why settings could not be expanded, one sentence each.
    pub(crate) complaints: Vec<String>,
    /// Whether systemctl refuses to enable the unit because of a setting.
    pub(crate) is_invalid: bool,
}

impl InstallSection {
    /// Reads the `[InstallSection]` sections of `texts`, the unit file first, for the unit called `unit`.
    pub(crate) fn read<'a>(
        unit: &str,
        texts: impl Iterator<Item = &'a str>,
        machine: &SpecifierFacts,
    ) -> Self {
        let file = merged(texts);
        if let Some(value) = invalid_instance(unit, &file, machine) {
            return Self {
                complaints: vec![format!(
                    "{unit} cannot be enabled: DefaultInstance={value} is not a valid instance name"
                )],
                is_invalid: true,
                ..Self::default()
            };
        }
        let mut complaints = Vec::new();
        let mut expanded = |key: &str, word: &str, instance: Option<&str>| {
            let text = expand(word, unit, instance, machine);
            let complaint = |why| format!("{unit} cannot be enabled by {key}={word}: {why}");
            text.map_err(|why| complaints.push(complaint(why))).ok()
        };
        let given = file.last("Install", "DefaultInstance");
        let given = given.filter(|_| unit_name::shape(unit) == Some(UnitNameShape::Template));
        let instance = given.and_then(|given| expanded("DefaultInstance", given, None));
        let instance = instance.filter(|instance| !instance.is_empty());
        let mut names = |key: &str| {
            let words = file.words("Install", key);
            words
                .iter()
                .filter_map(|word| expanded(key, word, instance.as_deref()))
                .collect()
        };
        let aliases = if unit_name::may_alias(unit) {
            names("Alias")
        } else {
            Vec::new()
        };
        Self {
            aliases,
            wanted_by: names("WantedBy"),
            required_by: names("RequiredBy"),
            upheld_by: names("UpheldBy"),
            // An empty assignment does not reset this list in systemctl.
            also: file
                .all_words("Install", "Also")
                .iter()
                .filter_map(|word| expanded("Also", word, instance.as_deref()))
                .collect(),
            default_instance: instance.clone(),
            complaints,
            is_invalid: false,
        }
    }

    /// The dependency lists, each with the suffix of its link directory.
    pub(crate) fn dependencies(&self) -> [(&[String], &'static str); 3] {
        [
            (&self.wanted_by, ".wants"),
            (&self.required_by, ".requires"),
            (&self.upheld_by, ".upholds"),
        ]
    }
}

/// Parses a unit file with its drop-ins like systemd does: malformed lines are skipped.
pub(crate) fn merged<'a>(texts: impl Iterator<Item = &'a str>) -> UnitFile {
    texts.fold(UnitFile::default(), |mut all, text| {
        all.add(UnitFile::read(text).0);
        all
    })
}

/// A value of `DefaultInstance=` that makes a template invalid, even if a valid one follows. Other units ignore the key.
fn invalid_instance<'f>(
    unit: &str,
    file: &'f UnitFile,
    machine: &SpecifierFacts,
) -> Option<&'f str> {
    let is_template = unit_name::shape(unit) == Some(UnitNameShape::Template);
    let allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    let is_bad = |value: &&str| {
        let text = expand(value, unit, None, machine);
        text.is_ok_and(|text| !text.chars().all(allowed))
    };
    let mut values = file.all_values("Install", "DefaultInstance");
    values.find(|value| is_template && is_bad(value))
}

/// The path of the link for `Alias=alias` of `unit`; none for the unit's own name.
pub(super) fn alias_path(unit: &str, alias: &str) -> Result<Option<AbsPath>, String> {
    let refused = || format!("{unit} cannot have the alias {alias:?}");
    if let Some((directory, link)) = alias.rsplit_once('/') {
        // The legacy way to request `.wants` links.
        let wanter = directory
            .strip_suffix(".wants")
            .or_else(|| directory.strip_suffix(".requires"))
            .ok_or_else(refused)?;
        let carried = unit_name::shape(wanter).ok_or_else(refused)? == UnitNameShape::Template;
        let is_template = unit_name::shape(link) == Some(UnitNameShape::Template);
        let same = (link == unit && (carried || !is_template))
            || (!is_template && unit_name::template(link).as_deref() == Some(unit));
        return if same {
            Ok(below(alias))
        } else {
            Err(refused())
        };
    }
    if alias == unit {
        return Ok(None);
    }
    match unit_name::alias_of(unit, alias) {
        Some(alias) => Ok(below(&alias)),
        None => Err(refused()),
    }
}

pub(super) fn below(relative: &str) -> Option<AbsPath> {
    AbsPath::new(format!("{UNIT_DIR}/{relative}")).ok()
}
