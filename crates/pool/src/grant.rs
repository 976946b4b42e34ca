//! Grants: permissions of the controller to disrupt one node.
//!
//! A grant is first recorded on the pool whose resource version fences the limit, then placed on the Node. The agent
//! acknowledges it or declines it, and writes an end mark with its ID when it is done. IDs are never used twice, and
//! a mark for an ID never becomes untrue: an outdated view of a Node can delay a decision about a grant, but never
//! free its slot too early.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use machinist_kube_api::{
    NodeView,
    keys::{annotation, pool_annotation},
};

/// Maximum size of a pool's grants as JSON: all annotations of an object share 256 KiB.
pub const MAX_GRANTS_BYTES: usize = 64 * 1024;

/// Maximum size of one grant, or of the end marks, on a Node.
pub const MAX_NODE_GRANT_BYTES: usize = 4 * 1024;

/// What a grant permits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum GrantKind {
    /// The update to the grant's target.
    Config,
    /// A requested reboot.
    Reboot,
    /// Maintenance by another program.
    Maintenance,
    /// A kind of a later version. It holds its slot; this version neither places nor withdraws it.
    Unknown(String),
}

impl From<String> for GrantKind {
    fn from(text: String) -> Self {
        match text.as_str() {
            "Config" => Self::Config,
            "Reboot" => Self::Reboot,
            "Maintenance" => Self::Maintenance,
            _ => Self::Unknown(text),
        }
    }
}

impl From<GrantKind> for String {
    fn from(kind: GrantKind) -> Self {
        match kind {
            GrantKind::Config => "Config".to_owned(),
            GrantKind::Reboot => "Reboot".to_owned(),
            GrantKind::Maintenance => "Maintenance".to_owned(),
            GrantKind::Unknown(text) => text,
        }
    }
}

/// A permission to disrupt one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Its ID, which is never used twice.
    pub id: String,
    /// What it permits.
    pub kind: GrantKind,
    /// The pool that the node was in.
    pub pool: String,
    /// The node's name.
    pub node: String,
    /// The UID of the Node.
    pub uid: String,
    /// The config to update to; empty for other kinds.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// When it was given, or given to a recreated Node.
    pub time: Timestamp,
    /// Whether the agent has acknowledged it; from then on only the agent ends it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub acknowledged: bool,
    /// Whether the node has failed on the target; each failure counts once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
    /// Whether the target is a config that the pool ran before, so that lower versions are permitted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rollback: bool,
    /// Fields of a later version, kept unchanged.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

/// The record of one limit's grants on its pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolGrants {
    /// The grants, in the order of their IDs.
    pub grants: Vec<Grant>,
    /// Fields of a later version, kept unchanged.
    #[serde(flatten)]
    pub rest: BTreeMap<String, Value>,
}

/// An annotation about grants that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GrantsError {
    /// It is too long to be parsed.
    #[error("annotation {annotation} of {object} has {bytes} bytes; expected at most {limit}")]
    TooLong {
        /// The annotation.
        annotation: &'static str,
        /// Its object, with the kind.
        object: String,
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// It is not what this version writes.
    #[error("annotation {annotation} of {object} cannot be parsed")]
    Malformed {
        /// The annotation.
        annotation: &'static str,
        /// Its object, with the kind.
        object: String,
        /// The position and the expected value.
        #[source]
        cause: serde_json::Error,
    },
}

impl PoolGrants {
    /// Parses the grants in a pool's annotation; `None` if it has none, which differs from an empty list: the pool was
    /// created anew or restored, so that grants may exist on Nodes.
    pub fn parse(pool: &str, annotation: Option<&str>) -> Result<Option<Self>, GrantsError> {
        let name = pool_annotation::GRANTS;
        let object = || format!("MachineConfigPool {pool}");
        let Some(text) = annotation else {
            return Ok(None);
        };
        let mut found: Self = parse(text, name, object, MAX_GRANTS_BYTES)?;
        found.sort();
        Ok(Some(found))
    }

    /// Formats the grants for the annotation. The same grants give the same text.
    pub fn to_annotation(&self) -> String {
        let mut sorted = self.clone();
        sorted.sort();
        to_json(&sorted)
    }

    /// Whether the text that the API server returned holds these grants. Servers and other clients may drop an
    /// annotation; a grant that the pool does not list must not reach a Node.
    pub fn is_kept(&self, returned: Option<&str>) -> bool {
        let found = PoolGrants::parse("", returned).ok().flatten();
        found.is_some_and(|found| found.to_annotation() == self.to_annotation())
    }

    fn sort(&mut self) {
        self.grants.sort_by(|a, b| a.id.cmp(&b.id));
    }
}

impl Grant {
    /// Parses the grant that is placed on a Node; `None` if there is none.
    pub fn of_node(node: &NodeView) -> Result<Option<Self>, GrantsError> {
        let text = node.annotation(annotation::GRANT);
        let object = || format!("Node {}", node.name);
        text.map(|text| parse(text, annotation::GRANT, object, MAX_NODE_GRANT_BYTES))
            .transpose()
    }

    /// Whether both are the same for the Node: the bookkeeping of the pool is left out.
    pub(super) fn is_placed_as(&self, other: &Self) -> bool {
        let placed = Self {
            acknowledged: other.acknowledged,
            failed: other.failed,
            ..self.clone()
        };
        placed == *other
    }

    /// Formats the grant for the Node. Bookkeeping of the pool is left out, so that it causes no writes to the Node.
    pub fn to_annotation(&self) -> String {
        to_json(&Self {
            acknowledged: false,
            failed: false,
            ..self.clone()
        })
    }
}

pub(super) fn parse<T: for<'de> Deserialize<'de>>(
    text: &str,
    annotation: &'static str,
    object: impl Fn() -> String,
    limit: usize,
) -> Result<T, GrantsError> {
    if text.len() > limit {
        return Err(GrantsError::TooLong {
            annotation,
            object: object(),
            bytes: text.len(),
            limit,
        });
    }
    serde_json::from_str(text).map_err(|cause| GrantsError::Malformed {
        annotation,
        object: object(),
        cause,
    })
}

/// Serializes plain data. It has no maps with keys other than strings, so that it cannot fail.
pub(super) fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
