//! Parses the disk layout: field names are checked, and values are stored without interpretation.

use super::super::{
    EntryKind,
    field_reader::{FieldValue, ObjectReader},
    ignition_dialect::IgnitionDialect,
    parse_context::ParseContext,
    partial::PartialConfig,
    versioned_field::{VersionedField, is_there, refuse_known},
};

/// A field, and the fields that its object, or each object of its list, may contain; empty if it is
/// not an object.
struct FieldShape {
    known: VersionedField,
    holds: &'static [FieldShape],
    is_list: bool,
}

const fn plain(name: &'static str) -> FieldShape {
    FieldShape {
        known: VersionedField::new(name),
        holds: &[],
        is_list: false,
    }
}

const fn object(name: &'static str, holds: &'static [FieldShape]) -> FieldShape {
    FieldShape {
        holds,
        ..plain(name)
    }
}

const fn list(name: &'static str, holds: &'static [FieldShape]) -> FieldShape {
    FieldShape {
        holds,
        is_list: true,
        ..plain(name)
    }
}

impl FieldShape {
    /// The field was added in this minor version of Ignition 3.
    const fn since(self, minor: u8) -> Self {
        Self {
            known: self.known.two(None).three(Some(minor)),
            ..self
        }
    }
}

const PARTITION_FIELDS: &[FieldShape] = &[
    plain("number"),
    plain("label"),
    plain("sizeMiB"),
    plain("startMiB"),
    plain("typeGuid"),
    plain("guid"),
    plain("wipePartitionEntry"),
    plain("shouldExist"),
    plain("resize").since(2),
];

const RESOURCE_FIELDS: &[FieldShape] = &[
    plain("source"),
    plain("compression"),
    object("verification", &[plain("hash")]),
    list("httpHeaders", &[plain("name"), plain("value")]).since(1),
];

const CLEVIS_FIELDS: &[FieldShape] = &[
    plain("tpm2"),
    plain("threshold"),
    list(
        "tang",
        &[
            plain("url"),
            plain("thumbprint"),
            plain("advertisement").since(4),
        ],
    ),
    object(
        "custom",
        &[plain("pin"), plain("config"), plain("needsNetwork")],
    ),
];

const LAYOUT_SECTIONS: [FieldShape; 4] = [
    list(
        "disks",
        &[
            plain("device"),
            plain("wipeTable"),
            list("partitions", PARTITION_FIELDS),
        ],
    ),
    list(
        "filesystems",
        &[
            plain("device"),
            plain("format"),
            plain("path"),
            plain("label"),
            plain("uuid"),
            plain("options"),
            plain("mountOptions").since(1),
            plain("wipeFilesystem"),
        ],
    ),
    list(
        "luks",
        &[
            plain("name"),
            plain("device"),
            plain("label"),
            plain("uuid"),
            plain("options"),
            plain("wipeVolume"),
            plain("discard").since(4),
            plain("openOptions").since(4),
            object("keyFile", RESOURCE_FIELDS),
            object("clevis", CLEVIS_FIELDS),
            object("cex", &[plain("enabled")]).since(5),
        ],
    )
    .since(2),
    list(
        "raid",
        &[
            plain("name"),
            plain("level"),
            plain("devices"),
            plain("spares"),
            plain("options"),
        ],
    ),
];

/// Butane and Ignition 2 use other field names, and clusters do not provide those formats.
pub(super) fn read(
    storage: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    parts: &mut PartialConfig,
    reading: &mut ParseContext<'_>,
) {
    if !matches!(dialect, IgnitionDialect::Three(_)) {
        let known = LAYOUT_SECTIONS.map(|section| section.known);
        let why = "the disk layout is set when a machine is installed";
        refuse_known(storage, &known, dialect, why, reading);
        return;
    }
    for section in LAYOUT_SECTIONS {
        let Some(field) = is_there(storage, section.known, dialect) else {
            continue;
        };
        let entries = field.items(&mut reading.problems);
        for entry in &entries {
            check(entry, section.holds, dialect, reading);
        }
        let entries: Vec<_> = entries.iter().filter_map(FieldValue::json).collect();
        if !entries.is_empty() {
            let name = section.known.name;
            let at = field.origin(&reading.problems);
            parts.note_os(EntryKind::OSImage, name, at);
            parts.disk_layout.insert(name.to_owned(), entries);
        }
    }
}

fn check(
    field: &FieldValue<'_>,
    holds: &[FieldShape],
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) {
    let Some(mut object) = field.object(&mut reading.problems) else {
        return;
    };
    for shape in holds {
        let Some(field) = is_there(&mut object, shape.known, dialect) else {
            continue;
        };
        match (shape.holds, shape.is_list) {
            ([], _) => {}
            (holds, false) if !field.is_hollow() => check(&field, holds, dialect, reading),
            (_, false) => {}
            (holds, true) => {
                for item in field.items(&mut reading.problems) {
                    check(&item, holds, dialect, reading);
                }
            }
        }
    }
    object.finish(&mut reading.problems);
}
