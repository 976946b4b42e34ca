//! The input of the Go program, and its output.

use std::collections::BTreeMap;

use machinist_ignition::TextSource;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct as _};

/// The texts for one machine, by the names of their files, in the order of merging.
#[derive(Clone, Debug, Default)]
pub(super) struct Case {
    pub(super) texts: Vec<(String, String)>,
    /// Where they come from. Ignition does not distinguish it.
    pub(super) source: TextSource,
}

impl Case {
    pub(super) fn new(texts: impl IntoIterator<Item = (String, String)>) -> Self {
        Self {
            texts: texts.into_iter().collect(),
            source: TextSource::File,
        }
    }
}

impl Serialize for Case {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let texts: Vec<&str> = self.texts.iter().map(|(_, text)| text.as_str()).collect();
        let mut object = serializer.serialize_struct("Case", 1)?;
        object.serialize_field("texts", &texts)?;
        object.end()
    }
}

/// The library's result for a case. The fields are described in `verdict.go`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Verdict {
    pub(super) accepted: bool,
    pub(super) foreign: bool,
    pub(super) others: Vec<String>,
    pub(super) error: String,
    pub(super) files: BTreeMap<String, Node>,
    pub(super) directories: BTreeMap<String, Node>,
    pub(super) links: BTreeMap<String, Node>,
    pub(super) units: BTreeMap<String, Unit>,
    pub(super) users: BTreeMap<String, User>,
    pub(super) groups: BTreeMap<String, Account>,
}

/// The fields of a user or group that are set.
pub(super) type Account = BTreeMap<String, serde_json::Value>;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    pub(super) mode: Option<u32>,
    pub(super) user: serde_json::Value,
    pub(super) group: serde_json::Value,
    pub(super) target: Option<String>,
    pub(super) hard: Option<bool>,
    pub(super) content: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Unit {
    pub(super) contents: Option<String>,
    pub(super) enabled: Option<bool>,
    pub(super) mask: Option<bool>,
    pub(super) dropins: BTreeMap<String, Option<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct User {
    pub(super) keys: Vec<String>,
    pub(super) account: Account,
}
