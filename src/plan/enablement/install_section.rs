//! Parses the `[InstallSection]` section of one unit and expands its specifiers.

use super::{
    UNIT_DIR,
    unit_name::{self, UnitNameShape},
};
use crate::{abs_path::AbsPath, machine_config::UnitFile};

/// The `[InstallSection]` settings of a unit. Lists keep their order; names are expanded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::plan) struct InstallSection {
    pub(in crate::plan) aliases: Vec<String>,
    pub(in crate::plan) wanted_by: Vec<String>,
    pub(in crate::plan) required_by: Vec<String>,
    pub(in crate::plan) upheld_by: Vec<String>,
    pub(in crate::plan) also: Vec<String>,
    pub(in crate::plan) default_instance: Option<String>,
}

impl InstallSection {
    /// Reads the `[InstallSection]` sections of `texts`, the unit file first, for the unit called `unit`.
    pub(in crate::plan) fn read<'a>(unit: &str, texts: impl Iterator<Item = &'a str>) -> Self {
        let file = merged(texts);
        let instance = default_instance(unit, file.last("Install", "DefaultInstance"));
        let names = |key: &str| {
            let words = file.words("Install", key);
            words
                .iter()
                .filter_map(|word| expand(word, unit, instance.as_deref()))
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
            also: names("Also"),
            default_instance: instance.clone(),
        }
    }

    /// The dependency lists, each with the suffix of its link directory.
    pub(in crate::plan) fn dependencies(&self) -> [(&[String], &'static str); 3] {
        [
            (&self.wanted_by, ".wants"),
            (&self.required_by, ".requires"),
            (&self.upheld_by, ".upholds"),
        ]
    }
}

/// Parses a unit file with its drop-ins like systemd does: malformed lines are skipped.
pub(in crate::plan) fn merged<'a>(texts: impl Iterator<Item = &'a str>) -> UnitFile {
    texts.fold(UnitFile::default(), |mut all, text| {
        all.add(UnitFile::read(text).0);
        all
    })
}

/// `DefaultInstance=` applies to templates only; for an instance it is silently ignored.
fn default_instance(unit: &str, given: Option<&str>) -> Option<String> {
    if unit_name::shape(unit) != Some(UnitNameShape::Template) {
        return None;
    }
    let instance = expand(given?, unit, None)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    (!instance.is_empty() && instance.chars().all(allowed)).then_some(instance)
}

/// Expands the specifiers that depend on the unit name only.
///
/// `systemctl` also expands those of the machine it runs on (`%H`, `%m`, `%v`, …); they would make
/// a plan depend on where it is computed, so a word with one of them is skipped.
fn expand(word: &str, unit: &str, default_instance: Option<&str>) -> Option<String> {
    let instanced = match (unit_name::shape(unit), default_instance) {
        (Some(UnitNameShape::Template), Some(instance)) => unit_name::with_instance(unit, instance),
        _ => unit.to_owned(),
    };
    let mut out = String::with_capacity(word.len());
    let mut rest = word.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('n') => out.push_str(&instanced),
            Some('N') => out.push_str(unit_name::stem(&instanced)),
            Some('p') => out.push_str(unit_name::prefix(unit)),
            Some('i') => out.push_str(unit_name::instance(&instanced)),
            Some('j') => {
                let prefix = unit_name::prefix(unit);
                out.push_str(prefix.rsplit('-').next().unwrap_or(prefix));
            }
            Some('%') => out.push('%'),
            _ => return None,
        }
    }
    Some(out)
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
