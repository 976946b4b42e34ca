//! The menu, and the entry that a boot without a keystroke enters.

use super::{
    entry::{MenuEntry, key_and_value},
    pattern,
};

/// The EFI variables of the loader, without the vendor's UUID in their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoaderVariables {
    /// `LoaderEntryOneShot`: the entry of the next boot, which the loader clears.
    pub one_shot: Option<String>,
    /// `LoaderEntryDefault`: goes before `loader.conf`.
    pub default: Option<String>,
    /// `LoaderEntryLastBooted`, which `@saved` stands for.
    pub last_booted: Option<String>,
}

/// The files of the loader: of the EFI system partition, and of the partition XBOOTLDR if there is one.
pub trait LoaderFiles {
    /// The text of `loader/loader.conf`.
    fn loader_config(&self) -> Option<String>;

    /// Names and texts of the files in `loader/entries`.
    fn entries(&self) -> Vec<(String, String)>;

    /// Whether the file of a kernel exists; the loader leaves out entries without their kernel.
    fn has_kernel(&self, entry: &MenuEntry) -> bool;
}

/// A boot of systemd-boot in a simulation. It leaves out what is found automatically, such as Windows, which is entered by
/// itself only if a pattern selects it ([`Self::unmatched_default`]).
#[derive(Clone, Debug)]
pub struct SimulatedSystemdBoot {
    entries: Vec<MenuEntry>,
    config_default: Option<String>,
    variables: LoaderVariables,
}

impl SimulatedSystemdBoot {
    /// Reads the menu.
    pub fn new(files: &dyn LoaderFiles, variables: &LoaderVariables, architecture: &str) -> Self {
        let entries = files.entries().into_iter();
        let entries =
            entries.filter_map(|(file, text)| MenuEntry::parse(&file, &text, architecture));
        let mut entries: Vec<_> = entries
            .filter(|entry| entry.kernel.is_none() || files.has_kernel(entry))
            .collect();
        entries.sort_by(MenuEntry::compare);
        let config = files.loader_config().unwrap_or_default();
        let lines = config.split('\n').filter_map(key_and_value);
        let defaults = lines.filter(|(key, _)| *key == "default");
        let defaults = defaults.map(|(_, value)| value);
        // Other special names are for other loaders.
        let known = |value: &&str| !value.starts_with('@') || value.eq_ignore_ascii_case("@saved");
        Self {
            entries,
            config_default: defaults.rev().find(known).map(str::to_owned),
            variables: variables.clone(),
        }
    }

    /// The entries in the order of the menu.
    pub fn menu(&self) -> &[MenuEntry] {
        &self.entries
    }

    /// The entry that the next boot enters.
    pub fn next(&self) -> Option<&MenuEntry> {
        let variables = &self.variables;
        let saved = variables.last_booted.as_deref();
        let resolved = |pattern: &Option<String>| match pattern.as_deref() {
            Some(pattern) if pattern.eq_ignore_ascii_case("@saved") => saved.map(str::to_owned),
            pattern => pattern.map(str::to_owned),
        };
        let patterns = [
            variables.one_shot.clone(),
            resolved(&variables.default),
            resolved(&self.config_default),
        ];
        let mut selected = patterns
            .iter()
            .flatten()
            .filter_map(|pattern| self.find(pattern));
        selected.next().or_else(|| self.entries.first())
    }

    /// The pattern of the default entry, if it matches none of the menu: the loader may know other entries that it matches.
    /// `@saved` is the entry of the running system.
    pub fn unmatched_default(&self) -> Option<&str> {
        let patterns = [&self.variables.default, &self.config_default];
        let mut patterns = patterns.into_iter().flatten().map(String::as_str);
        let pattern = patterns.find(|pattern| !pattern.eq_ignore_ascii_case("@saved"))?;
        self.find(pattern).is_none().then_some(pattern)
    }

    fn find(&self, pattern: &str) -> Option<&MenuEntry> {
        let pattern = pattern.to_ascii_lowercase();
        let mut entries = self.entries.iter();
        entries.find(|entry| pattern::matches(&pattern, &entry.id()))
    }

    /// Enters the next entry: returns it, with the name that its file has then.
    pub fn boot(&self) -> Option<(&MenuEntry, String)> {
        let entry = self.next()?;
        Some((entry, entry.file_after_boot()))
    }
}
