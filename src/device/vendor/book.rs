//! Who is a vendor now: all files together, with a memory for those that were good.

use std::{collections::BTreeMap, sync::Arc};

use super::{Vendor, Vendors, parse};
use crate::{device::Refusal, path::AbsPath, reason::Reason};

/// What was read of each file: its text, or why it was not taken.
pub type Files = BTreeMap<AbsPath, Result<String, Refusal>>;

/// One file.
#[derive(Debug, Default)]
struct Page {
    /// What it said when it was good last; in force until the file is repaired or removed.
    good: Option<Arc<Vendor>>,
    /// The text that was read last.
    text: Option<String>,
    /// What is wrong with it.
    wrong: Vec<Refusal>,
}

/// The memory of all files. Pure: it is told what was read.
#[derive(Debug, Default)]
pub struct Book {
    pages: BTreeMap<AbsPath, Page>,
}

impl Book {
    /// Takes note of all files as they are now. Files that are not named are gone.
    pub fn read(&mut self, files: Files) -> Vendors {
        self.pages.retain(|file, _| files.contains_key(file));
        for (file, read) in files {
            let page = self.pages.entry(file.clone()).or_default();
            match read {
                Ok(text) => page.take(file.as_str(), text),
                Err(refusal) => (page.wrong, page.text) = (vec![refusal], None),
            }
        }
        self.vendors()
    }

    /// The first file in the order of paths owns a name, so that `/etc` comes before `/run`.
    fn vendors(&self) -> Vendors {
        let mut all = Vendors::default();
        let mut owners: BTreeMap<&str, &AbsPath> = BTreeMap::new();
        for (file, page) in &self.pages {
            all.problems.extend(page.wrong.iter().cloned());
            let Some(vendor) = &page.good else {
                continue;
            };
            if let Some(owner) = owners.get(vendor.name.as_str()) {
                let name = &vendor.name;
                let message = format!("{name} is declared by {owner} already, which is in force");
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

impl Page {
    fn take(&mut self, file: &str, text: String) {
        if self.text.as_ref() == Some(&text) {
            return;
        }
        match parse(file, &text) {
            Ok(vendor) => (self.good, self.wrong) = (Some(Arc::new(vendor)), Vec::new()),
            Err(wrong) => self.wrong = wrong,
        }
        self.text = Some(text);
    }
}
