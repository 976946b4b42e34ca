//! What the driver asks of others; whoever joins the rooms brings them.

use std::{fmt::Debug, future::Future, pin::Pin};

use super::claim::{BadClaim, Claim};
use crate::device::holders::Holders;

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// Whoever was asked did not answer, or said no.
    #[error("{0}")]
    Away(String),
    /// The claim is none that a driver could prepare.
    #[error(transparent)]
    Claim(#[from] BadClaim),
}

impl PortError {
    /// Whether the same question may be answered later. The kubelet asks again in any case.
    pub const fn again(&self) -> bool {
        matches!(self, Self::Away(_))
    }
}

/// An answer to come. Dropping it takes the question back.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, PortError>> + Send + 'a>>;

/// The cluster's claims.
pub trait Claims: Debug + Send + Sync + 'static {
    /// The claim as the API server has it now; none where there is no such object.
    fn get<'a>(&'a self, namespace: &'a str, name: &'a str) -> Reply<'a, Option<Claim>>;
}

/// What the kubelet has given to containers.
pub trait Given: Debug + Send + Sync + 'static {
    /// By resources, and by names of the pool.
    fn holders(&self) -> Reply<'_, Holders>;
}
