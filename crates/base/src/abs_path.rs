//! Absolute paths below a root, validated on construction.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Deserialize, Serialize};

/// A text that is not a usable absolute path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no absolute path: {why}")]
pub struct BadPath {
    given: String,
    why: &'static str,
}

/// An absolute path below a root: starts with `/`, contains no `.`, `..`, empty component or NUL,
/// and has no trailing slash (except `/` itself).
///
/// Cheap to clone: a plan names each path many times. Links are not considered:
/// `Root` in the crate `rootfs` resolves them, always inside the root.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AbsPath(Arc<str>);

impl AbsPath {
    /// Linux refuses longer paths in one system call (PATH_MAX, the NUL included).
    const MAX_PATH_BYTES: usize = 4095;

    /// Validates `given` and keeps it unchanged: nothing is normalised silently.
    pub fn new(given: impl Into<String>) -> Result<Self, BadPath> {
        let given = given.into();
        match Self::fault(&given) {
            None => Ok(Self(given.into())),
            Some(why) => Err(BadPath { given, why }),
        }
    }

    fn fault(given: &str) -> Option<&'static str> {
        if !given.starts_with('/') {
            return Some("it does not start with /");
        }
        if given.len() > Self::MAX_PATH_BYTES {
            return Some("it is longer than 4095 bytes");
        }
        if given.contains('\0') {
            return Some("it contains a NUL byte");
        }
        if given == "/" {
            return None;
        }
        given[1..].split('/').find_map(|part| match part {
            "" => Some("it holds an empty component"),
            "." | ".." => Some("it holds . or .."),
            long if long.len() > 255 => Some("a component is longer than 255 bytes"),
            _ => None,
        })
    }

    /// The root itself, `/`.
    pub fn root() -> Self {
        Self("/".into())
    }

    /// The path as text, with its leading `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same text, shared instead of copied.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// The path without its leading `/`; empty for the root. What the `*at` system calls take.
    pub fn relative(&self) -> &str {
        &self.0[1..]
    }

    /// Components from the top, the root's own excluded.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|part| !part.is_empty())
    }

    /// The parent directory; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        match self.directory() {
            "" => None,
            above => Some(Self(above.into())),
        }
    }

    /// The text of the parent directory; empty for the root.
    pub fn directory(&self) -> &str {
        match self.0.rsplit_once('/') {
            Some(("", name)) if !name.is_empty() => "/",
            head => head.map_or("", |(head, _)| head),
        }
    }

    /// The last component; empty for the root.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// Whether both have the same parent directory.
    pub fn is_sibling_of(&self, other: &Self) -> bool {
        let dir = |path: &Self| path.0.len() - path.file_name().len();
        self.0[..dir(self)] == other.0[..dir(other)]
    }

    /// This path with `below` (one or more components) added.
    pub fn join(&self, below: &str) -> Result<Self, BadPath> {
        if &*self.0 == "/" {
            Self::new(format!("/{below}"))
        } else {
            Self::new(format!("{}/{below}", self.0))
        }
    }

    /// All directories above this path, nearest first, the root last.
    pub fn ancestors(&self) -> impl Iterator<Item = Self> {
        std::iter::successors(self.parent(), Self::parent)
    }

    /// Whether this path is `above` or below it, compared by components and not by text.
    pub fn is_under(&self, above: &Self) -> bool {
        &*above.0 == "/"
            || self.0 == above.0
            || self
                .0
                .strip_prefix(&*above.0)
                .is_some_and(|rest| rest.starts_with('/'))
    }
}

impl fmt::Display for AbsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for AbsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl TryFrom<String> for AbsPath {
    type Error = BadPath;
    fn try_from(given: String) -> Result<Self, BadPath> {
        Self::new(given)
    }
}

impl FromStr for AbsPath {
    type Err = BadPath;
    fn from_str(given: &str) -> Result<Self, BadPath> {
        Self::new(given)
    }
}

impl From<AbsPath> for String {
    fn from(path: AbsPath) -> Self {
        path.as_str().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_normalized_absolute_paths_are_accepted() {
        for bad in [
            "",
            "etc/x",
            "/etc//x",
            "/etc/../x",
            "/etc/./x",
            "/etc/",
            "/a\0b",
            "//",
        ] {
            assert!(AbsPath::new(bad).is_err(), "{bad:?}");
        }
        for good in ["/", "/etc", "/etc/chrony.conf", "/etc/..data"] {
            assert!(AbsPath::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn parents_and_prefixes_are_compared_by_components() {
        let path: AbsPath = "/etc/systemd/system".parse().unwrap();
        let above: Vec<_> = path.ancestors().map(String::from).collect();
        assert_eq!(above, ["/etc/systemd", "/etc", "/"]);
        assert_eq!(path.directory(), "/etc/systemd");
        assert_eq!(AbsPath::root().directory(), "");
        assert!(path.is_under(&"/etc".parse().unwrap()));
        assert!(!path.is_under(&"/etc/sys".parse().unwrap()));
        assert_eq!(AbsPath::root().parent(), None);
        assert_eq!(AbsPath::root().join("etc").unwrap().as_str(), "/etc");
    }
}
