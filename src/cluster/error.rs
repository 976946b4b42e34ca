//! What goes wrong with the API server: the act, the object, and what may be done about it.

use std::{path::PathBuf, time::Duration};

use kube::{
    client::AuthError,
    config::{InClusterError, KubeconfigError},
    core::Status,
};

use crate::reason::Reason;

/// The cluster cannot be used at all: nothing was asked of it yet.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The environment of a pod, or the files of its service account, are not as they should be.
    #[error("cannot use the pod's service account")]
    Pod(#[source] Box<InClusterError>),
    /// A kubeconfig cannot be read or says too little.
    #[error("cannot use the kubeconfig {}", shown(.0))]
    Kubeconfig(Vec<PathBuf>, #[source] Box<KubeconfigError>),
    /// What a token file holds is no token.
    #[error("the token file {} holds no token; expected one line of text", .0.display())]
    Token(PathBuf),
    /// Certificates, keys or the address do not make a client.
    #[error("cannot make a client for {server}")]
    Client {
        /// The address.
        server: String,
        /// What is wrong.
        #[source]
        source: Box<kube::Error>,
    },
}

fn shown(files: &[PathBuf]) -> String {
    let files = files.iter().map(|file| file.display().to_string());
    files.collect::<Vec<_>>().join(":")
}

impl ConnectError {
    /// Whether it may succeed later: a file may be in the middle of being replaced.
    pub const fn again(&self) -> bool {
        true
    }

    /// The stable code.
    pub const fn reason(&self) -> Reason {
        Reason::ClusterAccessInvalid
    }
}

/// One request did not succeed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act} {object}")]
pub struct ClusterError {
    /// What was to be done: `get`, `patch`, …
    pub act: &'static str,
    /// To what: `Node worker-1`.
    pub object: String,
    /// Why it was not.
    #[source]
    pub why: Why,
}

/// Why a request did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// Nobody answered; a proxy, a server that hangs, a network that drops.
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The server, or something before it, said no. Its message names objects, never contents.
    #[error("{}", answer(.0))]
    Answered(Box<Status>),
    /// There was no connection, or it broke.
    #[error("the API server cannot be reached")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The credentials cannot even be sent.
    #[error("the credentials are not usable as they stand")]
    Credentials(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The name that was asked for is no object's.
    #[error("this is no name of an object; expected small letters, digits, '-' and '.'")]
    NoName,
    /// An answer came and is no object of the kind that was asked for. The text is not kept: it may
    /// hold what a config's files hold.
    #[error("the answer of the API server is not understood")]
    NotUnderstood,
    /// The group is served, and in no version that is understood. Counts as a kind that does not exist (404).
    #[error("the API server serves none of {0}")]
    NoVersion(String),
}

/// `nodes "a" not found (404 NotFound)`; a proxy may give a number alone.
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

impl Why {
    /// What kube says, sorted by what can be done about it.
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
    /// The server's answer; none where there was none.
    pub fn status(&self) -> Option<&Status> {
        match &self.why {
            Why::Answered(status) => Some(status),
            _ => None,
        }
    }

    /// There is no such object, or no such kind.
    pub fn is_not_found(&self) -> bool {
        self.code() == 404
    }

    /// Somebody else wrote in between: a `test` of a JSON patch failed (422), or the version is an old
    /// one (409).
    pub fn is_conflict(&self) -> bool {
        matches!(self.code(), 409 | 422)
    }

    /// A list or watch must begin anew: what it was to go on from is forgotten.
    pub fn is_expired(&self) -> bool {
        self.code() == 410
    }

    /// Credentials are not accepted.
    pub fn is_unauthorised(&self) -> bool {
        self.code() == 401
    }

    /// The account may not do this: a role or an admission policy refuses it.
    pub fn is_forbidden(&self) -> bool {
        self.code() == 403
    }

    /// The HTTP code of the answer; 0 where there was none.
    pub fn code(&self) -> u16 {
        match &self.why {
            Why::NoVersion(_) => 404,
            _ => self.status().map_or(0, |status| status.code),
        }
    }

    /// How long the server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        let details = self.status()?.details.as_ref()?;
        let seconds = u64::from(details.retry_after_seconds);
        (seconds > 0).then(|| Duration::from_secs(seconds))
    }

    /// Whether the same request may succeed later: everything but what is wrong with it as it stands.
    /// Credentials and rights may be given meanwhile.
    pub fn again(&self) -> bool {
        !matches!(self.code(), 400 | 405 | 406 | 413 | 415 | 422)
    }

    /// The stable code.
    pub fn reason(&self) -> Reason {
        match (&self.why, self.code()) {
            (Why::TimedOut(_) | Why::Unreachable(_), _) => Reason::ApiServerUnreachable,
            (Why::Credentials(_), _) => Reason::ClusterAccessInvalid,
            (Why::NoName, _) => Reason::ConfigNotFound,
            (_, 401) => Reason::ApiServerUnauthorized,
            (_, 403) => Reason::ApiServerForbidden,
            (_, 429 | 500..) => Reason::ApiServerUnreachable,
            _ => Reason::ApiServerRefused,
        }
    }
}
