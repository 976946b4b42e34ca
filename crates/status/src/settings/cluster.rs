//! Defines the settings about the cluster: the Node's name, the kubeconfig, the drain timeout.

use std::time::Duration;

use super::extract::Scalar;
use machinist_base::abs_path::AbsPath;

/// A time limit; none means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeLimit(pub(super) Option<Duration>);

impl Scalar for TimeLimit {
    fn expected() -> String {
        "never, or a duration such as 30m".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "never" => Some(Self(None)),
            text => Duration::parse(text).map(|limit| Self(Some(limit))),
        }
    }

    fn show(&self) -> String {
        self.0.map_or("never".to_owned(), |limit| limit.show())
    }
}

/// The name of a Node, or empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeName(pub(super) String);

impl Scalar for NodeName {
    fn expected() -> String {
        "the name of a Node: a-z, 0-9, - and ., at most 253".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
        let whole = |part: &str| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
        let fits = text.len() <= 253 && text.chars().all(plain) && text.split('.').all(whole);
        (text.is_empty() || fits).then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

/// The location of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kubeconfig {
    /// None.
    None,
    /// A path below the root, from the settings.
    Below(AbsPath),
    /// A path on the caller's own file system, from `--kubeconfig`.
    Callers(String),
}

impl Scalar for Kubeconfig {
    fn expected() -> String {
        "an absolute path below the root".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::None),
            text => AbsPath::new(text).ok().map(Self::Below),
        }
    }

    fn parse_flag(text: &str) -> Option<Self> {
        Some(Self::Callers(text.to_owned()))
    }

    fn show(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Below(path) => path.to_string(),
            Self::Callers(path) => path.clone(),
        }
    }
}
