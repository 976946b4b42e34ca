//! Menu entries of type 1: a text file each.

use std::cmp::Ordering;

use uapi_version::strverscmp;

/// How often an entry is still tried and was tried, as its file name says: `NAME+LEFT-DONE.conf`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootCounter {
    /// The boots that may still enter it; at 0 it is the last in the menu.
    pub left: u32,
    /// The boots that have entered it.
    pub done: u32,
}

/// A menu entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MenuEntry {
    /// The name of its file, with its counter.
    pub file: String,
    /// The counter, if its name has one.
    pub counter: Option<BootCounter>,
    /// The first key of the order of the menu.
    pub sort_key: Option<String>,
    /// The machine to which it belongs.
    pub machine_id: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// The kernel's path in the file system of the entry; none if it starts another program.
    pub kernel: Option<String>,
    /// The paths of the initial RAM disks.
    pub initrds: Vec<String>,
    /// The kernel arguments.
    pub options: String,
}

/// The suffix of the files of entries.
const SUFFIX: &str = ".conf";

/// Returns the name without its counter, and the counter.
fn split_counter(file: &str) -> Option<(&str, BootCounter)> {
    let stem = file.strip_suffix(SUFFIX)?;
    let (name, counter) = stem.rsplit_once('+')?;
    let number = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => text.parse::<i32>().ok()?.try_into().ok(),
        false => None,
    };
    let (left, done) = match counter.split_once('-') {
        Some((left, done)) => (number(left)?, number(done)?),
        None => (number(counter)?, 0),
    };
    Some((name, BootCounter { left, done }))
}

/// Splits a line into a key and a value; none for comments and lines without a value.
pub(super) fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_matches([' ', '\t', '\r']);
    if line.starts_with('#') {
        return None;
    }
    let (key, value) = line.split_once([' ', '\t'])?;
    let value = value.trim_start_matches([' ', '\t']);
    let unquoted = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    Some((key, unquoted.unwrap_or(value)))
}

impl MenuEntry {
    /// Parses an entry. Returns none for a file that makes no entry, such as one for another architecture.
    pub fn parse(file: &str, text: &str, architecture: &str) -> Option<Self> {
        let is_entry = file.to_ascii_lowercase().ends_with(SUFFIX);
        if !is_entry || file.starts_with('.') || file.starts_with("auto-") {
            return None;
        }
        let mut entry = Self {
            file: file.to_owned(),
            counter: split_counter(file).map(|(_, counter)| counter),
            sort_key: None,
            machine_id: None,
            version: None,
            kernel: None,
            initrds: Vec::new(),
            options: String::new(),
        };
        let mut starts = false;
        for (key, value) in text.split('\n').filter_map(key_and_value) {
            match key {
                "sort-key" => entry.sort_key = Some(value.to_owned()),
                "machine-id" => entry.machine_id = Some(value.to_owned()),
                "version" => entry.version = Some(value.to_owned()),
                "architecture" if !value.eq_ignore_ascii_case(architecture) => return None,
                "linux" => {
                    starts = true;
                    entry.kernel = Some(value.to_owned());
                }
                // Another program; what it starts is unknown.
                "efi" | "uki" | "uki-url" => {
                    starts = true;
                    entry.kernel = None;
                }
                "initrd" => entry.initrds.push(value.to_owned()),
                "options" if entry.options.is_empty() => entry.options = value.to_owned(),
                "options" => entry.options = format!("{} {value}", entry.options),
                _ => {}
            }
        }
        starts.then_some(entry)
    }

    /// The name by which `loader.conf` and the EFI variables select it. It includes the counter.
    pub fn id(&self) -> String {
        self.file.to_ascii_lowercase()
    }

    /// The name of the file without the counter, which stays the same from the first boot on.
    pub fn name(&self) -> String {
        match split_counter(&self.file) {
            Some((name, _)) => format!("{name}{SUFFIX}"),
            None => self.file.clone(),
        }
    }

    /// The name of the file after the loader has entered the entry.
    pub(super) fn file_after_boot(&self) -> String {
        match split_counter(&self.file) {
            Some((name, BootCounter { left, done })) => {
                let (left, done) = (left.saturating_sub(1), done.saturating_add(1));
                format!("{name}+{left}-{done}{SUFFIX}")
            }
            None => self.file.clone(),
        }
    }

    fn is_exhausted(&self) -> bool {
        self.counter.is_some_and(|counter| counter.left == 0)
    }

    /// The order of the menu.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let by_exhausted = self.is_exhausted().cmp(&other.is_exhausted());
        let by_style = self.sort_key.is_none().cmp(&other.sort_key.is_none());
        let by_key = match (&self.sort_key, &other.sort_key) {
            (Some(key), Some(other_key)) => {
                let text = |text: &Option<String>| text.clone().unwrap_or_default();
                let by_machine = text(&self.machine_id).cmp(&text(&other.machine_id));
                let by_version = strverscmp(&text(&other.version), &text(&self.version));
                key.cmp(other_key).then(by_machine).then(by_version)
            }
            _ => Ordering::Equal,
        };
        let by_id = || strverscmp(&other.id(), &self.id());
        by_exhausted
            .then(by_style)
            .then(by_key)
            .then_with(by_id)
            .then_with(|| match (self.counter, other.counter) {
                (Some(counter), Some(other)) => {
                    let by_left = other.left.cmp(&counter.left);
                    by_left.then(counter.done.cmp(&other.done))
                }
                _ => Ordering::Equal,
            })
    }
}
