//! Classifies the API server's responses to evictions.
//!
//! The HTTP code alone is ambiguous: 429 is a disruption budget or an overloaded server, 403 a
//! terminating namespace or a missing permission, 404 a deleted pod or a server without the
//! eviction API.

use std::time::Duration;

/// An error status of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EvictionError {
    /// The HTTP code.
    pub code: u16,
    /// The `reason` field, such as `NotFound`.
    pub reason: String,
    /// The `message` field.
    pub message: String,
    /// The object it refers to; empty if the request itself was not understood.
    pub object: String,
    /// The causes from its details.
    pub causes: Vec<StatusCause>,
    /// The delay before a retry that the server requests.
    pub retry_after: Option<Duration>,
}

impl EvictionError {
    /// Whether the status comes from a gateway and not from the server's processing of the request.
    /// 500 is not an outage, because it is the response for several budgets. 401 is: the
    /// credentials are about to be rotated, or the server cannot verify them at the moment.
    pub fn is_outage(&self) -> bool {
        matches!(self.code, 401 | 502..=504)
    }
}

/// One cause of an error status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StatusCause {
    /// The kind of cause, such as `DisruptionBudget`.
    pub kind: String,
    /// Its message.
    pub message: String,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum EvictionCallError {
    /// The API server returned an error status.
    #[error("rejected by the API server")]
    Refused(#[source] Box<EvictionError>),
    /// There was no response, or an invalid one.
    #[error("no response from the API server")]
    NoAnswer(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl From<EvictionError> for EvictionCallError {
    fn from(refused: EvictionError) -> Self {
        Self::Refused(Box::new(refused))
    }
}

impl EvictionCallError {
    /// Whether the API server counts as unreachable: the error does not concern the request.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::NoAnswer(_) => true,
            Self::Refused(refused) => refused.is_outage(),
        }
    }

    /// Whether the version of a watch or the continue token of a list has expired.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused(refused) if refused.code == 410 || refused.reason == "Expired")
    }

    /// Whether a permission is missing, so that a retry does not help.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(refused) if EvictionResponse::of(refused) == EvictionResponse::Forbidden)
    }
}

/// Classification of an eviction error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionResponse {
    /// The pod does not exist any more, or its name belongs to another pod; the goal is reached.
    NotFound,
    /// A disruption budget does not allow it now; the message, and the requested delay.
    Budget(String, Option<Duration>),
    /// The server is overloaded; the requested delay.
    Throttled(Option<Duration>),
    /// The namespace is terminating, and the pod will be deleted with it.
    NamespaceEnds,
    /// Several budgets match the pod; the server cannot evict it then.
    SeveralBudgets,
    /// A permission is missing.
    Forbidden,
    /// The server does not support evictions.
    NotServed,
    /// Another component, such as an admission webhook, refused; the message.
    Refused(String),
}

impl EvictionResponse {
    /// Classifies an error status.
    pub fn of(refused: &EvictionError) -> Self {
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
            // A conflict means that the UID precondition failed.
            404 | 409 => Self::NotFound,
            429 => match cause("DisruptionBudget") {
                Some(cause) => Self::Budget(cause.message.clone(), refused.retry_after),
                None => Self::Throttled(refused.retry_after),
            },
            403 if cause("NamespaceTerminating").is_some() => Self::NamespaceEnds,
            // A webhook's refusal and an unreadable budget have the same code as a missing
            // permission.
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
