//! Provides access to files beside a text, which Butane may take contents from.
//!
//! The parser does not read files itself but calls the provider of the text. Paths are relative to
//! the directory of the text: `/` is that directory, and nothing above it can be named.

use std::fmt;

use machinist_base::{abs_path::AbsPath, reason::Reason};

/// Access to the directory of a text.
///
/// Implementations never return anything outside that directory, even if links lead there.
pub trait LocalFileSource: fmt::Debug {
    /// The content of the regular file at `path` beside the text named `text`.
    fn read(&self, text: &str, path: &AbsPath) -> Result<Vec<u8>, LocalError>;

    /// Everything below the directory at `path` except directories themselves; links in it are not
    /// followed. Sorted by path.
    fn tree(&self, text: &str, path: &AbsPath) -> Result<Vec<LocalEntry>, LocalError>;
}

/// An entry of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalEntry {
    /// Its path below the tree's directory, without a leading slash.
    pub path: String,
    /// Its kind.
    pub kind: LocalKind,
}

/// The kind of an entry in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalKind {
    /// A regular file.
    File {
        /// Whether any execute bit is set.
        executable: bool,
    },
    /// A symbolic link with its target.
    Link(String),
    /// Any other kind, described in words.
    Other(&'static str),
}

/// Why a content cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LocalError {
    /// The reason of the refusal.
    pub reason: Reason,
    /// The error message.
    pub message: String,
}

impl LocalError {
    /// An error with its message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

/// The implementation for texts that are not in a directory.
#[derive(Clone, Copy, Debug)]
pub struct NoLocalFiles;

impl NoLocalFiles {
    fn refusal() -> LocalError {
        let message = "local files cannot be read: this config does not come from a directory";
        LocalError::new(Reason::FeatureUnsupported, message)
    }
}

impl LocalFileSource for NoLocalFiles {
    fn read(&self, _: &str, _: &AbsPath) -> Result<Vec<u8>, LocalError> {
        Err(Self::refusal())
    }

    fn tree(&self, _: &str, _: &AbsPath) -> Result<Vec<LocalEntry>, LocalError> {
        Err(Self::refusal())
    }
}
