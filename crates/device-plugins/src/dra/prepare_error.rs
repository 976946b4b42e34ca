//! Why a claim is not prepared.

use machinist_device::{
    allocator::AllocateError,
    dra::{claim::ClaimName, claim_checkpoint::ClaimError, traits::DraCallError},
};

use super::claim_files::CheckpointError;

/// Why a claim is not prepared.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error(transparent)]
    Refused(Box<ClaimError>),
    #[error("failed to get claim {0}")]
    ClaimLookup(Box<ClaimName>, #[source] DraCallError),
    #[error("claim {0} was not prepared in time; retrying")]
    TimedOut(ClaimName),
    #[error("claim {0} was unprepared, or the agent is stopping, before it was prepared")]
    Cancelled(ClaimName),
    #[error("claim {claim}, request {request}: retrying")]
    Allocation {
        claim: Box<ClaimName>,
        request: String,
        #[source]
        source: AllocateError,
    },
    #[error("claim {claim}, request {request}: {why}")]
    Unsupported {
        claim: Box<ClaimName>,
        request: String,
        why: &'static str,
    },
    #[error("claim {claim}: failed to look up host device node {node}; retrying")]
    NodeLookup {
        claim: Box<ClaimName>,
        node: String,
        #[source]
        source: Box<machinist_rootfs::RootError>,
    },
    #[error("claim {claim}: host device node {node} does not exist; retrying")]
    NodeMissing { claim: Box<ClaimName>, node: String },
    #[error("failed to save the claim checkpoint; retrying")]
    Checkpoint(#[from] CheckpointError),
}

impl From<ClaimError> for PrepareError {
    fn from(refused: ClaimError) -> Self {
        Self::Refused(Box::new(refused))
    }
}
