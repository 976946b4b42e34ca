//! One program for every parser: `FUZZ_ENTRY` names the one that is fuzzed.
#![no_main]

#[path = "../entries/mod.rs"]
mod entries;

use std::sync::OnceLock;

use entries::{ENTRIES, Entry};
use libfuzzer_sys::fuzz_target;

fn entry() -> &'static Entry {
    static ENTRY: OnceLock<&'static Entry> = OnceLock::new();
    ENTRY.get_or_init(|| {
        let name = std::env::var("FUZZ_ENTRY").unwrap_or_default();
        let found = ENTRIES.iter().find(|entry| entry.name == name);
        found.unwrap_or_else(|| panic!("FUZZ_ENTRY={name} names no parser"))
    })
}

fuzz_target!(|bytes: &[u8]| (entry().check)(bytes));
