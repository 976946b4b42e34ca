//! What a node asks the controller for, in the annotations `desiredDrain` and `lastAppliedDrain`.

use std::fmt;

/// A request, by the config it is about. The verb is what stands before the first `-`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrainRequest {
    /// Cordon the node and move its pods.
    Drain(String),
    /// Lift the cordon.
    Uncordon(String),
}

impl DrainRequest {
    /// What an annotation says; none where it is empty or of another kind.
    pub fn parse(text: &str) -> Option<Self> {
        match text.split_once('-')? {
            ("drain", config) => Some(Self::Drain(config.to_owned())),
            ("uncordon", config) => Some(Self::Uncordon(config.to_owned())),
            _ => None,
        }
    }

    /// The same under another name, for a controller that fulfilled the plain one before.
    #[must_use]
    pub fn again(&self) -> Self {
        match self {
            Self::Drain(config) => Self::Drain(format!("{config}-1")),
            Self::Uncordon(config) => Self::Uncordon(format!("{config}-1")),
        }
    }

    /// Whether it asks for the same as a plain request, under its name or the other one.
    pub fn is_again(&self, plain: &Self) -> bool {
        self == plain || *self == plain.again()
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
