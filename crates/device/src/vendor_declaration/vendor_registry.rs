//! The current vendors: the merged content of all files, with the last valid version of each.

use std::{collections::BTreeMap, sync::Arc};

use super::{Vendor, Vendors, parse};
use crate::Refusal;
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// The text of each file, or why it was refused.
pub type VendorFiles = BTreeMap<AbsPath, Result<String, Refusal>>;

/// The state of one file.
#[derive(Debug, Default)]
struct VendorFileState {
    /// The last valid text and its parsed content; in force until the file is repaired or removed.
    good: Option<(String, Arc<Vendor>)>,
    /// The text that was read last.
    text: Option<String>,
    /// Problems of the current text.
    wrong: Vec<Refusal>,
}

/// The state of all files. It does no I/O: the caller passes in the texts.
#[derive(Debug, Default)]
pub struct VendorRegistry {
    pages: BTreeMap<AbsPath, VendorFileState>,
}

impl VendorRegistry {
    /// Restores the texts that an earlier agent found valid, by file.
    pub fn restore(&mut self, good: BTreeMap<AbsPath, String>) {
        for (file, text) in good {
            // A text that was valid for another version of machinist may be invalid for this one.
            if let Ok(vendor) = parse(file.as_str(), &text) {
                let page = self.pages.entry(file).or_default();
                page.good = Some((text, Arc::new(vendor)));
            }
        }
    }

    /// The last valid text of each file, to be saved for the next agent.
    pub fn valid_files(&self) -> BTreeMap<AbsPath, String> {
        let good = |(file, page): (&AbsPath, &VendorFileState)| {
            let (text, _) = page.good.as_ref()?;
            Some((file.clone(), text.clone()))
        };
        self.pages.iter().filter_map(good).collect()
    }

    /// Records the current files. Files that are not in `files` were removed, unless their directory
    /// could not be read.
    pub fn read(&mut self, files: VendorFiles) -> Vendors {
        let unread = |file: &AbsPath| {
            let dir = file.parent();
            dir.is_some_and(|dir| matches!(files.get(&dir), Some(Err(_))))
        };
        self.pages
            .retain(|file, _| files.contains_key(file) || unread(file));
        for (file, read) in files {
            let page = self.pages.entry(file.clone()).or_default();
            match read {
                Ok(text) => page.take(file.as_str(), text),
                Err(refusal) => (page.wrong, page.text) = (vec![refusal], None),
            }
        }
        self.vendors()
    }

    /// Merges all files. The first file in path order owns a name, so that `/etc` precedes `/run`.
    fn vendors(&self) -> Vendors {
        let mut all = Vendors::default();
        let mut owners: BTreeMap<&str, &AbsPath> = BTreeMap::new();
        for (file, page) in &self.pages {
            all.problems.extend(page.wrong.iter().cloned());
            let Some((_, vendor)) = &page.good else {
                all.blind |= !page.wrong.is_empty();
                continue;
            };
            if let Some(owner) = owners.get(vendor.name.as_str()) {
                let name = &vendor.name;
                let message =
                    format!("{name} is already declared by {owner}, which takes precedence");
                let problem = Refusal::new(Reason::EntryDuplicate, message);
                all.problems
                    .push(problem.field("metadata.name").file(file.as_str()));
                continue;
            }
            owners.insert(&vendor.name, file);
            all.by_name.insert(vendor.name.clone(), Arc::clone(vendor));
        }
        all
    }
}

impl VendorFileState {
    fn take(&mut self, file: &str, text: String) {
        if self.text.as_ref() == Some(&text) {
            return;
        }
        match parse(file, &text) {
            Ok(vendor) => {
                let vendor = Arc::new(vendor);
                (self.good, self.wrong) = (Some((text.clone(), vendor)), Vec::new());
            }
            Err(wrong) => self.wrong = wrong,
        }
        self.text = Some(text);
    }
}
