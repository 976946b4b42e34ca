//! The values of the `state` annotation.

use std::fmt;

/// The update state of a node, as defined by the machine-config protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeUpdateState {
    /// An update is in progress.
    Working,
    /// The node is on its config. The controller counts it as updated only in this state and with
    /// equal current and desired config.
    Done,
    /// An update failed and the failure persists.
    Degraded,
    /// The config cannot be applied to this machine; nothing was changed.
    Unreconcilable,
}

impl NodeUpdateState {
    /// The value of the annotation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "Working",
            Self::Done => "Done",
            Self::Degraded => "Degraded",
            Self::Unreconcilable => "Unreconcilable",
        }
    }

    /// Parses an annotation; none if it is empty or unknown.
    pub fn parse(text: &str) -> Option<Self> {
        let all = [
            Self::Working,
            Self::Done,
            Self::Degraded,
            Self::Unreconcilable,
        ];
        all.into_iter().find(|state| state.as_str() == text)
    }
}

impl fmt::Display for NodeUpdateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
