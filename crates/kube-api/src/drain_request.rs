//! Drain requests of a node to the controller, in the annotations `desiredDrain` and
//! `lastAppliedDrain`.

use std::fmt;

/// A request and the config it refers to. The verb is the part before the first `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainRequest {
    /// Cordon and drain the node.
    Drain(String),
    /// Uncordon the node.
    Uncordon(String),
}

impl DrainRequest {
    /// Parses an annotation; none if it is empty or has another verb.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once('-')? {
            ("drain", config) => Some(Self::Drain(config.to_owned())),
            ("uncordon", config) => Some(Self::Uncordon(config.to_owned())),
            _ => None,
        }
    }

    /// The same request under a second name, for a controller that has already fulfilled the plain
    /// one.
    #[must_use]
    pub fn with_retry_name(&self) -> Self {
        match self {
            Self::Drain(config) => Self::Drain(format!("{config}-1")),
            Self::Uncordon(config) => Self::Uncordon(format!("{config}-1")),
        }
    }

    /// Whether this is the plain request or its repetition under the second name.
    pub fn is_again(&self, plain: &Self) -> bool {
        self == plain || *self == plain.with_retry_name()
    }
}

impl fmt::Display for DrainRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drain(config) => write!(f, "drain-{config}"),
            Self::Uncordon(config) => write!(f, "uncordon-{config}"),
        }
    }
}
