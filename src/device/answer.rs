//! What is asked of whoever offers a resource, where a recipe cannot answer.

use std::{fmt::Debug, future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{
    allocation::{Grant, Wish},
    inventory::Resource,
    source::Source,
};

/// What a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// In our words.
    Grant(Grant),
    /// An encoded `v1beta1.AllocateResponse` for one container, which the kubelet gets as it is: fields that
    /// this version does not know survive.
    Wire(Vec<u8>),
}

/// Why a source did not answer as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// Nobody is there to answer.
    #[error("{by} cannot be asked: {why}")]
    Away {
        /// Who.
        by: Source,
        /// In words.
        why: String,
    },
    /// The answer did not come in time.
    #[error("{by} has not answered within {} s", after.as_secs_f64())]
    TooLate {
        /// Who.
        by: Source,
        /// How long was waited.
        after: Duration,
    },
    /// It said no, or its answer must not be used.
    #[error("what comes from {by} cannot be handed out: {why}")]
    Refused {
        /// Who.
        by: Source,
        /// In words.
        why: String,
    },
}

impl AnswerError {
    /// Whether the same question may be answered later.
    pub const fn again(&self) -> bool {
        matches!(self, Self::Away { .. } | Self::TooLate { .. })
    }
}

/// Devices that a container is to have.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The resource's own ids, or those of shares.
    pub ids: &'a [String],
    /// The kubelet's question as it came, where it did: it may hold more than this version knows, and whoever passes
    /// questions on passes on all of it.
    pub wire: Option<&'a [u8]>,
}

impl<'a> From<&'a [String]> for Wanted<'a> {
    fn from(ids: &'a [String]) -> Self {
        Self { ids, wire: None }
    }
}

impl<'a> From<&'a Vec<String>> for Wanted<'a> {
    fn from(ids: &'a Vec<String>) -> Self {
        ids.as_slice().into()
    }
}

/// An answer to come. Dropping it takes the question back.
pub type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, AnswerError>> + Send + 'a>>;

/// Whoever speaks for the resources of live sources. Each answer has a deadline of its own.
pub trait Answerer: Debug + Send + Sync + 'static {
    /// What the container gets that holds exactly these, which the resource has and lends.
    fn allocate<'a>(&'a self, resource: &'a Resource, wanted: Wanted<'a>) -> Asked<'a, Answer>;

    /// What a recipe of the source's says, if it may still be handed out: its paths may lead to another thing than
    /// when the recipe was taken. The source of a mount is the object that was looked at, with links resolved.
    /// Sources without recipes have nothing to say.
    fn vouch<'a>(&'a self, _resource: &'a Resource, grant: Grant) -> Asked<'a, Grant> {
        Box::pin(std::future::ready(Ok(grant)))
    }

    /// Which devices are best; whoever asks checks the answer.
    fn preferred<'a>(&'a self, resource: &'a Resource, wish: Wish<'a>) -> Asked<'a, Vec<String>>;

    /// Makes devices ready for the start of a container.
    fn pre_start<'a>(&'a self, resource: &'a Resource, wanted: Wanted<'a>) -> Asked<'a, ()>;
}

/// Who is asked, by the kind of source.
#[derive(Clone, Debug, Default)]
pub struct Answerers {
    /// For [`Source::File`]: it vouches, and is asked for nothing else.
    pub file: Option<Arc<dyn Answerer>>,
    /// For [`Source::Vendor`].
    pub vendor: Option<Arc<dyn Answerer>>,
    /// For [`Source::Plugin`].
    pub plugin: Option<Arc<dyn Answerer>>,
}

impl Answerers {
    /// Who answers for `source`; an error where nobody does.
    pub fn of(&self, source: &Source) -> Result<&dyn Answerer, AnswerError> {
        let found = match source {
            Source::File(_) => self.file.as_deref(),
            Source::Vendor(_) => self.vendor.as_deref(),
            Source::Plugin(_) => self.plugin.as_deref(),
        };
        found.ok_or_else(|| AnswerError::Away {
            by: source.clone(),
            why: "nobody here speaks for it".to_owned(),
        })
    }
}
