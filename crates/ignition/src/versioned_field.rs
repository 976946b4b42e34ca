//! Fields that only some versions of a format have.

use super::{
    field_reader::{FieldValue, ObjectReader},
    ignition_dialect::IgnitionDialect,
    parse_context::ParseContext,
};
use machinist_base::reason::Reason;

/// A field that was not part of the first version of its format.
#[derive(Clone, Copy, Debug)]
pub(super) struct VersionedField {
    pub(super) name: &'static str,
    two: Option<u8>,
    three: Option<u8>,
}

impl VersionedField {
    /// A field that all versions support.
    pub(super) const fn new(name: &'static str) -> Self {
        Self {
            name,
            two: Some(0),
            three: Some(0),
        }
    }

    /// The field was added in this minor version of Ignition 2; none if Ignition 2 never had it.
    pub(super) const fn two(self, two: Option<u8>) -> Self {
        Self { two, ..self }
    }

    /// The same for Ignition 3.
    pub(super) const fn three(self, three: Option<u8>) -> Self {
        Self { three, ..self }
    }

    /// The minor version that added the field, and the minor version of the document.
    fn since(self, dialect: IgnitionDialect) -> Option<(u8, u8)> {
        match dialect {
            IgnitionDialect::Two(minor) => self.two.map(|since| (since, minor)),
            IgnitionDialect::Three(minor) => self.three.map(|since| (since, minor)),
            IgnitionDialect::Butane(_) => self.three.map(|_| (0, 0)),
        }
    }
}

/// Refuses fields that the format has and machinist does not support. Empty values have no effect
/// and are common in exports, so they are accepted.
pub(super) fn refuse_known(
    object: &mut ObjectReader<'_>,
    known: &[VersionedField],
    dialect: IgnitionDialect,
    why: &str,
    reading: &mut ParseContext<'_>,
) {
    for known in known {
        let Some(field) = is_there(object, *known, dialect) else {
            continue;
        };
        if !field.is_hollow() {
            let key = dialect.key(known.name);
            let message = format!("{key} is not supported: {why}");
            let reason = Reason::FeatureUnsupported;
            field.refuse(&mut reading.problems, reason, message, None);
        }
    }
}

/// The field, if the document's version supports it. All others are left for [`ObjectReader::finish`].
pub(super) fn is_there<'n>(
    object: &mut ObjectReader<'n>,
    known: VersionedField,
    dialect: IgnitionDialect,
) -> Option<FieldValue<'n>> {
    let (since, minor) = known.since(dialect)?;
    (minor >= since).then(|| object.get(dialect.key(known.name)))?
}
