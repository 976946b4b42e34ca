//! What the API server's answers to an eviction mean.
//!
//! The code alone does not say: 429 is a budget or a server that is busy, 403 a namespace that is being
//! removed or a permission that is missing, 404 a pod that is gone or a server without evictions.

use std::time::Duration;

/// A refusal, as the API server words it.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// The HTTP code.
    pub code: u16,
    /// Its word for the kind, such as `NotFound`.
    pub reason: String,
    /// Its sentence.
    pub message: String,
    /// The object that it is about; empty when the request as such was not understood.
    pub object: String,
    /// What it gives as causes.
    pub causes: Vec<Cause>,
    /// After what time it wants to be asked again.
    pub retry_after: Option<Duration>,
}

impl Refused {
    /// Whether nothing is said about the request: a gateway's word. 500 stands for several budgets, and
    /// is an answer. Credentials that are not accepted are about to be replaced, or the server has lost
    /// sight of them.
    pub fn is_outage(&self) -> bool {
        matches!(self.code, 401 | 502..=504)
    }
}

/// One cause of a refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Its word for the kind, such as `DisruptionBudget`.
    pub kind: String,
    /// Its sentence.
    pub message: String,
}

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server answered, and refused.
    #[error("the API server refused")]
    Refused(#[source] Box<Refused>),
    /// Nobody answered, or nothing that is an answer.
    #[error("the API server did not answer")]
    NoAnswer(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<Refused> for CallError {
    fn from(refused: Refused) -> Self {
        Self::Refused(Box::new(refused))
    }
}

impl CallError {
    /// Whether the API server is to be taken as away: nothing it says is about the request.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::NoAnswer(_) => true,
            Self::Refused(refused) => refused.is_outage(),
        }
    }

    /// Whether a watch or a page of a list is too old to be continued.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused(refused) if refused.code == 410 || refused.reason == "Expired")
    }

    /// Whether it is a permission that is missing: no repetition brings it.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(refused) if Answer::of(refused) == Answer::Forbidden)
    }
}

/// What a refusal of an eviction means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The pod is gone, or another has its name: what was asked for is done.
    Gone,
    /// A budget does not allow it now; its words, and after what time to ask again.
    Budget(String, Option<Duration>),
    /// The server has too much to do; after what time to ask again.
    Throttled(Option<Duration>),
    /// The namespace is being removed, and the pod will be with it.
    NamespaceEnds,
    /// More than one budget counts the pod, which the server cannot evict then.
    SeveralBudgets,
    /// A permission is missing.
    Forbidden,
    /// The server has no evictions.
    NotServed,
    /// Somebody else said no, such as an admission webhook; the words.
    Refused(String),
}

impl Answer {
    /// Reads a refusal.
    pub fn of(refused: &Refused) -> Self {
        let cause = |kind: &str| refused.causes.iter().find(|cause| cause.kind == kind);
        let words = || refused.message.clone();
        match refused.code {
            404 if refused.object.is_empty() && refused.reason != "NotFound" => Self::NotServed,
            404 if refused
                .message
                .contains("could not find the requested resource") =>
            {
                Self::NotServed
            }
            405 => Self::NotServed,
            // A conflict is the UID that no longer fits.
            404 | 409 => Self::Gone,
            429 => match cause("DisruptionBudget") {
                Some(cause) => Self::Budget(cause.message.clone(), refused.retry_after),
                None => Self::Throttled(refused.retry_after),
            },
            403 if cause("NamespaceTerminating").is_some() => Self::NamespaceEnds,
            // A webhook's no and a budget that cannot be read have the code of a missing permission.
            403 if refused.message.contains("admission webhook") => Self::Refused(words()),
            403 if refused.message.contains("pod disruption budget") => {
                Self::Budget(words(), refused.retry_after)
            }
            403 => Self::Forbidden,
            500 if refused
                .message
                .contains("more than one PodDisruptionBudget") =>
            {
                Self::SeveralBudgets
            }
            _ => Self::Refused(words()),
        }
    }
}
