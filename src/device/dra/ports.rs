//! What the driver asks of others; whoever joins the rooms brings them.

use std::{collections::BTreeSet, fmt::Debug, future::Future, pin::Pin, sync::Arc};

use super::{
    claim::{BadClaim, Claim},
    pool::Pool,
};
use crate::device::{holders::Holders, name::ResourceName};

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
    /// Devices by resource, and those of claims by their names in the pool.
    fn holders(&self) -> Reply<'_, Holders>;
}

/// What became of the pool that the cluster was to be told of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Of the pool, as it was written last; the next one is higher.
    pub generation: u64,
    /// The resources of which the cluster has devices; none while that is not known.
    pub resources: Option<BTreeSet<ResourceName>>,
    /// Why it has not what it should, in words.
    pub problem: Option<String>,
}

/// What the cluster is to be told; none as long as nobody may speak, and then what is there stays.
pub type Wish = Option<Arc<Pool>>;
