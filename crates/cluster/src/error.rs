//! Errors of API requests: the verb, the object, the cause, and whether a retry can help.

use std::{path::PathBuf, time::Duration};

use kube::{
    client::AuthError,
    config::{InClusterError, KubeconfigError},
    core::Status,
};

use machinist_base::reason::Reason;

/// The client could not be set up; no request was sent.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The pod's environment or its service account files are missing or invalid.
    #[error("cannot use the pod's service account")]
    Pod(#[source] Box<InClusterError>),
    /// A kubeconfig cannot be read or is incomplete.
    #[error("cannot use the kubeconfig {}", shown(.0))]
    Kubeconfig(Vec<PathBuf>, #[source] Box<KubeconfigError>),
    /// A kubeconfig cannot be opened.
    #[error("cannot read the kubeconfig {}", .0.display())]
    KubeconfigFile(PathBuf, #[source] std::io::Error),
    /// The token file contains no token.
    #[error("token file {} contains no token; expected one line of text", .0.display())]
    Token(PathBuf),
    /// Certificates, key or address are not valid for a client.
    #[error("cannot create a client for {server}")]
    Client {
        /// The server's address.
        server: String,
        /// The cause.
        #[source]
        source: Box<kube::Error>,
    },
}

fn shown(files: &[PathBuf]) -> String {
    let files = files.iter().map(|file| file.display().to_string());
    files.collect::<Vec<_>>().join(":")
}

impl ConnectError {
    /// Whether a retry may succeed. Always true: a file may be in the middle of being replaced.
    pub const fn is_retryable(&self) -> bool {
        true
    }

    /// The stable code.
    pub const fn reason(&self) -> Reason {
        Reason::ClusterAccessInvalid
    }
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act} {object}")]
pub struct ClusterError {
    /// The attempted operation: `get`, `patch`, …
    pub act: &'static str,
    /// The object: `Node worker-1`.
    pub object: String,
    /// The cause.
    #[source]
    pub why: ClusterErrorKind,
}

/// Cause of a failed request.
#[derive(Debug, thiserror::Error)]
pub enum ClusterErrorKind {
    /// The request timed out: a hanging server, a proxy, or a network that drops packets.
    #[error("no response within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The server, or a proxy in front of it, returned an error status. Its message names objects,
    /// never their contents.
    #[error("{}", answer(.0))]
    Answered(Box<Status>),
    /// The connection could not be established, or broke.
    #[error("API server unreachable")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The credentials cannot be encoded into a request.
    #[error("invalid credentials")]
    Credentials(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The requested name is not a valid object name.
    #[error("invalid object name; expected lowercase letters, digits, '-' and '.'")]
    NoName,
    /// The response is not an object of the requested kind. Its text is dropped, because it may
    /// contain file contents of a config.
    #[error("unexpected response from the API server")]
    NotUnderstood,
    /// The group is served, but in no supported version. Treated like a kind that does not exist
    /// (404).
    #[error("the API server serves none of {0}")]
    NoVersion(String),
}

/// Formats a status as `nodes "a" not found (404 NotFound)`; a proxy may send only a number.
fn answer(status: &Status) -> String {
    let message = status.message.trim();
    let message = if message.is_empty() {
        "refused"
    } else {
        message
    };
    match status.reason.as_str() {
        "" => format!("{message} ({})", status.code),
        reason => format!("{message} ({} {reason})", status.code),
    }
}

impl ClusterErrorKind {
    /// Classifies an error of kube by how it can be handled.
    pub(super) fn of(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::Answered(status),
            kube::Error::Auth(source) => Self::Credentials(Box::new(source)),
            kube::Error::Service(source) if source.is::<AuthError>() => Self::Credentials(source),
            kube::Error::Service(source) => Self::Unreachable(source),
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => Self::NotUnderstood,
            other => Self::Unreachable(Box::new(other)),
        }
    }
}

impl ClusterError {
    /// The server's error status; none if no response was received.
    pub fn status(&self) -> Option<&Status> {
        match &self.why {
            ClusterErrorKind::Answered(status) => Some(status),
            _ => None,
        }
    }

    /// The object or its kind does not exist.
    pub fn is_not_found(&self) -> bool {
        self.code() == 404
    }

    /// Another client changed the object in between: a `test` of a JSON patch failed (422), or the
    /// resource version is outdated (409).
    pub fn is_conflict(&self) -> bool {
        matches!(self.code(), 409 | 422)
    }

    /// The list or watch must be restarted: its continue token or resource version has expired
    /// (410).
    pub fn is_expired(&self) -> bool {
        self.code() == 410
    }

    /// The credentials were rejected (401).
    pub fn is_unauthorised(&self) -> bool {
        self.code() == 401
    }

    /// The account lacks permission, by RBAC or an admission policy (403).
    pub fn is_forbidden(&self) -> bool {
        self.code() == 403
    }

    /// HTTP status code of the response; 0 if no response was received.
    pub fn code(&self) -> u16 {
        match &self.why {
            ClusterErrorKind::NoVersion(_) => 404,
            _ => self.status().map_or(0, |status| status.code),
        }
    }

    /// The delay that the server requests in `retryAfterSeconds`.
    pub fn retry_after(&self) -> Option<Duration> {
        let details = self.status()?.details.as_ref()?;
        let seconds = u64::from(details.retry_after_seconds);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Whether the same request may succeed later. False only for errors in the request itself:
    /// credentials and permissions may still be granted.
    pub fn is_retryable(&self) -> bool {
        !matches!(self.code(), 400 | 405 | 406 | 413 | 415 | 422)
    }

    /// The stable code.
    pub fn reason(&self) -> Reason {
        match (&self.why, self.code()) {
            (ClusterErrorKind::TimedOut(_) | ClusterErrorKind::Unreachable(_), _) => {
                Reason::ApiServerUnreachable
            }
            (ClusterErrorKind::Credentials(_), _) => Reason::ClusterAccessInvalid,
            (ClusterErrorKind::NoName, _) => Reason::ConfigNotFound,
            (_, 401) => Reason::ApiServerUnauthorized,
            (_, 403) => Reason::ApiServerForbidden,
            (_, 429 | 500..) => Reason::ApiServerUnreachable,
            _ => Reason::ApiServerRefused,
        }
    }
}
