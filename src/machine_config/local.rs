//! Files beside a text, which Butane may take contents from.
//!
//! The parser reads none itself: it asks whoever gave it the text. Paths are those that the text
//! writes, hung from the directory that the text stands in, so `/` is that directory and nothing above
//! it has a name.

use std::fmt;

use crate::{path::AbsPath, reason::Reason};

/// What the parser may ask about the directory that a text stands in.
///
/// Nothing outside that directory is ever given, whatever links there say.
pub trait Local: fmt::Debug {
    /// The content of the regular file at `path` beside the text that is called `text`.
    fn read(&self, text: &str, path: &AbsPath) -> Result<Vec<u8>, LocalError>;

    /// Everything below the directory at `path`, directories themselves left out; links in it are not
    /// followed. Sorted by path.
    fn tree(&self, text: &str, path: &AbsPath) -> Result<Vec<LocalEntry>, LocalError>;
}

/// Something in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalEntry {
    /// Its path below the tree's directory, without a leading slash.
    pub path: String,
    /// What it is.
    pub kind: LocalKind,
}

/// What lies in a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalKind {
    /// A regular file.
    File {
        /// Whether anybody may execute it.
        executable: bool,
    },
    /// A symbolic link with its text.
    Link(String),
    /// Anything else, in words.
    Other(&'static str),
}

/// Why there is no such content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LocalError {
    /// The code for the refusal.
    pub reason: Reason,
    /// What is wrong, in words.
    pub message: String,
}

impl LocalError {
    /// An error with its words.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

/// For texts that stand in no directory.
#[derive(Clone, Copy, Debug)]
pub struct NoLocal;

impl NoLocal {
    fn refusal() -> LocalError {
        let message = "this text stands in no directory that other files could be read from";
        LocalError::new(Reason::FeatureUnsupported, message)
    }
}

impl Local for NoLocal {
    fn read(&self, _: &str, _: &AbsPath) -> Result<Vec<u8>, LocalError> {
        Err(Self::refusal())
    }

    fn tree(&self, _: &str, _: &AbsPath) -> Result<Vec<LocalEntry>, LocalError> {
        Err(Self::refusal())
    }
}
