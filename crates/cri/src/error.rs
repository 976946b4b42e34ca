//! Errors of requests to the container runtime.

use std::{error::Error as _, io, time::Duration};

use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_rootfs::RootError;
use tonic::{Code, Status};

/// The text with which a full file system shows in the runtime's messages, which have no code for it.
const NO_SPACE_TEXT: &str = "no space left on device";

/// Texts in the messages of runtimes, which have no code for a registry's refusal. A registry may hide an image from a
/// user who must not read it.
const CREDENTIAL_TEXTS: [&str; 7] = [
    "authoriz",
    "authenticat",
    "denied",
    "forbidden",
    "not found",
    "manifest unknown",
    "name unknown",
];

/// Why a request to the container runtime failed.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// No process listens on the socket.
    #[error("no container runtime on {0}")]
    Absent(AbsPath),
    /// None of the sockets exists.
    #[error("no container runtime: none of {0} exists")]
    NoSocket(String),
    /// The socket cannot be examined.
    #[error(transparent)]
    Socket(#[from] RootError),
    /// The socket exists, but this process cannot connect.
    #[error("cannot connect to the container runtime on {socket}")]
    Unreached {
        /// The socket.
        socket: AbsPath,
        /// The cause.
        #[source]
        source: tonic::transport::Error,
    },
    /// It did not answer in time.
    #[error("cannot {what}: no answer within {} s", .limit.as_secs())]
    TimedOut {
        /// The request.
        what: String,
        /// The time limit.
        limit: Duration,
    },
    /// It answered with an error.
    #[error("cannot {what}: {} ({:?})", .status.message(), .status.code())]
    Refused {
        /// The request.
        what: String,
        /// The answer.
        status: Box<Status>,
    },
}

impl CriError {
    /// The stable code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Socket(error) => error.reason(),
            Self::Refused { .. } if self.is_no_space() => Reason::NoSpace,
            Self::Refused { .. } if !self.is_connection_lost() => Reason::ImagePullFailed,
            _ => Reason::RuntimeUnreachable,
        }
    }

    /// Whether the same request may succeed soon. A full file system stays full until space is freed.
    pub fn is_retryable(&self) -> bool {
        !self.is_no_space()
    }

    /// Whether a later request on the same connection is pointless: the runtime has ended, or was not reached.
    pub fn is_connection_lost(&self) -> bool {
        match self {
            // An answer of the runtime has no source.
            Self::Refused { status, .. } => {
                status.code() == Code::Unavailable || status.source().is_some()
            }
            Self::TimedOut { .. } => false,
            _ => true,
        }
    }

    /// Whether the runtime itself has answered: other requests may succeed.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. }) && !self.is_connection_lost()
    }

    /// Whether the same request may succeed with other credentials.
    pub fn may_depend_on_credentials(&self) -> bool {
        let Self::Refused { status, .. } = self else {
            return false;
        };
        let message = status.message().to_lowercase();
        let has_text = CREDENTIAL_TEXTS.iter().any(|text| message.contains(text));
        let code = status.code();
        let has_code = matches!(
            code,
            Code::Unauthenticated | Code::PermissionDenied | Code::NotFound
        );
        (has_text || has_code) && self.is_refusal() && !self.is_no_space()
    }

    fn is_no_space(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.message().contains(NO_SPACE_TEXT))
    }

    pub(crate) fn unreached(socket: &AbsPath, error: tonic::transport::Error) -> Self {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(one) = cause {
            if let Some(io) = one.downcast_ref::<io::Error>()
                && matches!(
                    io.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                )
            {
                // A stopped runtime leaves its socket file.
                return Self::Absent(socket.clone());
            }
            cause = one.source();
        }
        Self::Unreached {
            socket: socket.clone(),
            source: error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_registrys_refusal_may_depend_on_credentials() {
        for (code, message, expected) in [
            (Code::Unknown, "unexpected status: 401 Unauthorized", true),
            (
                Code::Unknown,
                "denied: requested access to the resource",
                true,
            ),
            (Code::Unknown, "reading manifest: manifest unknown", true),
            (Code::NotFound, "quay.io/a/b", true),
            (Code::Unknown, "dial tcp: connection refused", false),
            (Code::Unknown, "429 Too Many Requests", false),
            (Code::Unknown, "forbidden/a: no space left on device", false),
            (Code::Unavailable, "access denied", false),
        ] {
            let error = CriError::Refused {
                what: "pull".to_owned(),
                status: Box::new(Status::new(code, message)),
            };
            assert_eq!(error.may_depend_on_credentials(), expected, "{message}");
        }
    }
}
