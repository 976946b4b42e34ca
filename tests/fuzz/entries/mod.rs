//! Entry points of the parsers: `tests/fuzz/run` feeds them mutated texts, and `cargo test` replays
//! the seeds.

mod cdi_spec;
mod data_url;
mod declaration;
mod grub;
mod journal;
mod labels;
mod machine_config;
mod plugin_list;
mod registries;
mod settings;
mod systemd_boot;
mod uevent;
mod unit_file;
mod vendor;
mod vendor_frame;

/// One parser.
pub(crate) struct Entry {
    /// Its name, and its directory of seeds.
    pub(crate) name: &'static str,
    /// Panics when the parser does, or when its results are inconsistent.
    pub(crate) check: fn(&[u8]),
}

/// Every parser.
pub(crate) const ENTRIES: &[Entry] = &[
    Entry {
        name: "machine_config",
        check: machine_config::check,
    },
    Entry {
        name: "data_url",
        check: |bytes| as_text(bytes, data_url::check),
    },
    Entry {
        name: "unit_file",
        check: |bytes| as_text(bytes, unit_file::check),
    },
    Entry {
        name: "settings",
        check: |bytes| as_text(bytes, settings::check),
    },
    Entry {
        name: "declaration",
        check: |bytes| as_text(bytes, declaration::check),
    },
    Entry {
        name: "cdi_spec",
        check: |bytes| as_text(bytes, cdi_spec::check),
    },
    Entry {
        name: "vendor",
        check: |bytes| as_text(bytes, vendor::check),
    },
    Entry {
        name: "vendor_frame",
        check: vendor_frame::check,
    },
    Entry {
        name: "plugin_list",
        check: plugin_list::check,
    },
    Entry {
        name: "uevent",
        check: uevent::check,
    },
    Entry {
        name: "journal",
        check: journal::check,
    },
    Entry {
        name: "registries",
        check: |bytes| as_text(bytes, registries::check),
    },
    Entry {
        name: "grub",
        check: |bytes| as_text(bytes, grub::check),
    },
    Entry {
        name: "systemd_boot",
        check: |bytes| as_text(bytes, systemd_boot::check),
    },
    Entry {
        name: "labels",
        check: |bytes| as_text(bytes, labels::check),
    },
];

fn as_text(bytes: &[u8], check: fn(&str)) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        check(text);
    }
}
