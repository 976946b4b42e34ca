//! The values of the `state` annotation.

use std::fmt;

/// Where a node stands, as the protocol has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// An update is being carried out.
    Working,
    /// The node is on its config; only then, and when both configs are the same, the controller counts
    /// it as finished.
    Done,
    /// Something failed and lasts.
    Degraded,
    /// The config asks for what cannot be done to this machine; nothing was touched.
    Unreconcilable,
}

impl State {
    /// As it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Working => "Working",
            Self::Done => "Done",
            Self::Degraded => "Degraded",
            Self::Unreconcilable => "Unreconcilable",
        }
    }

    /// What an annotation says; none where it is empty or says something else.
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

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
