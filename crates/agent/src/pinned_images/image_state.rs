//! The state of an image while and after it is pulled.

use machinist_base::{error_chain::chain, reason::Reason};
use machinist_cri::CriError;

/// Why an image is not present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageFailure {
    /// The stable code.
    pub(super) reason: Reason,
    /// One sentence that names the image.
    pub(super) message: String,
}

impl ImageFailure {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    pub(super) fn of(error: &CriError) -> Self {
        Self::new(error.reason(), chain(error))
    }
}

/// The state of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ImageState {
    /// It is looked for, or pulled.
    Pending,
    /// It is present.
    Present,
    /// It is not.
    Failed(ImageFailure),
}
