//! Restrictions on configs that do not come from their formats.

use std::collections::BTreeSet;

/// Restrictions on configs, in addition to those of the formats.
#[derive(Clone, Debug)]
pub struct ConfigRules {
    /// The users that a config may manage.
    pub users: BTreeSet<String>,
    /// The groups that a config may create, change or remove.
    pub groups: BTreeSet<String>,
    /// The source of the texts.
    pub source: TextSource,
}

/// The source of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextSource {
    /// A file written by a user: an unknown key is an error.
    #[default]
    File,
    /// An object that the API server accepted: an unknown key had no effect there, so it is only a
    /// warning.
    ApiServer,
}

/// OpenShift's rule: only the user `core`, and no groups.
impl Default for ConfigRules {
    fn default() -> Self {
        Self {
            users: BTreeSet::from(["core".to_owned()]),
            groups: BTreeSet::new(),
            source: TextSource::File,
        }
    }
}
