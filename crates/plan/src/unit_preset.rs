//! Parses preset files, which decide whether a unit without an explicit setting is enabled
//! (systemd.preset(5)).

use std::collections::BTreeMap;

use super::{
    enablement::unit_name::{self, UnitNameShape},
    wildcards::Wildcards,
};
use machinist_base::abs_path::AbsPath;

/// The directories of preset files, highest precedence first.
pub const PRESET_DIRS: [&str; 5] = [
    "/etc/systemd/system-preset",
    "/run/systemd/system-preset",
    "/usr/local/lib/systemd/system-preset",
    "/usr/lib/systemd/system-preset",
    // For systems where /lib is not a link to /usr/lib.
    "/lib/systemd/system-preset",
];

/// The preset for one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Preset {
    /// Enable the unit itself, or the listed instances of a template.
    Enable(Vec<String>),
    /// Disable it.
    Disable,
}

/// All rules of a machine in order of precedence.
#[derive(Clone, Debug, Default)]
pub(super) struct Presets(Vec<PresetRule>);

#[derive(Clone, Debug)]
struct PresetRule {
    /// The preset file that contains it.
    file: AbsPath,
    pattern: String,
    instances: Vec<String>,
    enable: bool,
}

impl Presets {
    /// The rules of those `texts` that are preset files: sorted by file name; of two files with the
    /// same name only the one in the directory with higher precedence is used.
    pub(super) fn of(texts: &BTreeMap<AbsPath, String>) -> Self {
        let mut files: BTreeMap<&str, (&AbsPath, &str)> = BTreeMap::new();
        for directory in PRESET_DIRS {
            for (path, text) in texts {
                let here = path
                    .parent()
                    .is_some_and(|parent| parent.as_str() == directory);
                if here && path.file_name().ends_with(".preset") {
                    files.entry(path.file_name()).or_insert((path, text));
                }
            }
        }
        Self(
            files
                .values()
                .flat_map(|(path, text)| text.lines().filter_map(|line| rule(path, line)))
                .collect(),
        )
    }

    /// The first matching rule wins; without a matching rule the unit is enabled.
    pub(super) fn ask(&self, unit: &str) -> Preset {
        let itself = || Preset::Enable(vec![unit.to_owned()]);
        self.rule_for(unit).unwrap_or_else(itself)
    }

    /// The preset of the first matching rule.
    pub(super) fn rule_for(&self, unit: &str) -> Option<Preset> {
        self.0.iter().find_map(|rule| rule.preset_of(unit))
    }

    /// The preset file with the first matching rule.
    pub(super) fn file_for(&self, unit: &str) -> Option<&AbsPath> {
        let rule = self.0.iter().find(|rule| rule.preset_of(unit).is_some());
        rule.map(|rule| &rule.file)
    }
}

impl PresetRule {
    /// The preset of a unit that the rule matches.
    fn preset_of(&self, unit: &str) -> Option<Preset> {
        if let Some(names) = self.instances_of(unit) {
            return Some(Preset::Enable(names));
        }
        Wildcards::of_unit(&self.pattern)
            .matches(unit)
            .then(|| match self.enable {
                true => Preset::Enable(vec![unit.to_owned()]),
                false => Preset::Disable,
            })
    }

    /// `enable foo@.service a b` applies to `foo@a.service`; for `foo@.service` it yields both
    /// instances.
    fn instances_of(&self, unit: &str) -> Option<Vec<String>> {
        if self.instances.is_empty() || unit_name::template(unit)? != self.pattern {
            return None;
        }
        match unit_name::shape(unit)? {
            // One invalid name makes systemd ignore the whole list.
            UnitNameShape::Template => self
                .instances
                .iter()
                .map(|instance| {
                    let name = unit_name::with_instance(unit, instance);
                    let is_instance = unit_name::shape(&name) == Some(UnitNameShape::Instance);
                    is_instance.then_some(name)
                })
                .collect(),
            _ => self
                .instances
                .iter()
                .any(|instance| instance == unit_name::instance(unit))
                .then(|| vec![unit.to_owned()]),
        }
    }
}

/// The characters that separate words for systemd.
const WHITESPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// The rule of a line; `None` if systemd ignores the line. There are no comments behind a rule (`read_presets` in systemd's
/// `src/shared/install.c`).
fn rule(file: &AbsPath, line: &str) -> Option<PresetRule> {
    let line = line.trim_matches(WHITESPACE);
    if line.starts_with(['#', ';']) {
        return None;
    }
    let (word, rest) = line.split_once(WHITESPACE)?;
    let rest = rest.trim_start_matches(WHITESPACE);
    let rule = |pattern: &str, instances, enable| PresetRule {
        file: file.clone(),
        pattern: pattern.to_owned(),
        instances,
        enable,
    };
    match word {
        // All that follows is the pattern.
        "disable" => Some(rule(rest, Vec::new(), false)),
        "enable" => {
            let mut words = rest.split(WHITESPACE).filter(|word| !word.is_empty());
            let pattern = words.next()?;
            let instances: Vec<String> = words.map(str::to_owned).collect();
            let is_template = unit_name::shape(pattern) == Some(UnitNameShape::Template);
            (instances.is_empty() || is_template).then(|| rule(pattern, instances, true))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presets(files: &[(&str, &str)]) -> Presets {
        let texts = files
            .iter()
            .map(|(path, text)| (path.parse().unwrap(), (*text).to_owned()))
            .collect();
        Presets::of(&texts)
    }

    #[test]
    fn the_first_rule_of_the_lowest_file_name_wins() {
        let rules = presets(&[
            ("/usr/lib/systemd/system-preset/90-a.preset", "disable *"),
            (
                "/usr/lib/systemd/system-preset/10-b.preset",
                "# x\nenable ssh*.service\n",
            ),
            (
                "/etc/systemd/system-preset/10-b.preset",
                "enable chrony.service",
            ),
        ]);
        assert_eq!(rules.ask("sshd.service"), Preset::Disable);
        assert_eq!(
            rules.ask("chrony.service"),
            Preset::Enable(vec!["chrony.service".into()])
        );
        assert_eq!(
            presets(&[]).ask("x.service"),
            Preset::Enable(vec!["x.service".into()])
        );
    }

    #[test]
    fn a_template_preset_enables_the_listed_instances() {
        let rules = presets(&[(
            "/usr/lib/systemd/system-preset/50.preset",
            "enable getty@.service tty1 tty2\ndisable getty@*.service",
        )]);
        let both = vec!["getty@tty1.service".into(), "getty@tty2.service".into()];
        assert_eq!(rules.ask("getty@.service"), Preset::Enable(both));
        assert_eq!(
            rules.ask("getty@tty2.service"),
            Preset::Enable(vec!["getty@tty2.service".into()])
        );
        assert_eq!(rules.ask("getty@tty9.service"), Preset::Disable);
    }

    #[test]
    fn lines_that_systemd_ignores_are_ignored() {
        for (line, unit, expected) in [
            ("enable z.service # why", "z.service", None),
            ("enable z.service y.service", "z.service", None),
            ("enable z.service\u{c}", "z.service", None),
            ("disable z.service # why", "z.service", None),
            ("disable * # why", "z.service", None),
            (
                "  disable\t z.service \r",
                "z.service",
                Some(Preset::Disable),
            ),
            (
                "enable z@.service one a/b",
                "z@.service",
                Some(Preset::Enable(vec!["z@.service".into()])),
            ),
            (
                "enable z@.service one a/b",
                "z@one.service",
                Some(Preset::Enable(vec!["z@one.service".into()])),
            ),
        ] {
            let rules = presets(&[("/etc/systemd/system-preset/1.preset", line)]);
            assert_eq!(rules.rule_for(unit), expected, "{line:?}");
        }
    }

    #[test]
    fn preset_globs_match_as_fnmatch_does() {
        for (pattern, text, matches) in [
            ("*", "a.service", true),
            ("a?.service", "ab.service", true),
            ("[a-c]*.service", "bx.service", true),
            ("[!a-c]*.service", "bx.service", false),
            ("a*b*.service", "axxbyy.service", true),
            ("a*", "ba", false),
            ("[]x]", "]", true),
        ] {
            assert_eq!(
                Wildcards::of_unit(pattern).matches(text),
                matches,
                "{pattern} {text}"
            );
        }
    }
}
