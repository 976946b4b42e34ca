//! Errors of requests to the container runtime.

use std::{error::Error as _, io, time::Duration};

use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_rootfs::RootError;
use tonic::{Code, Status};

/// The text with which a full file system shows in the runtime's messages, which have no code for it.
const NO_SPACE_TEXT: &str = "no space left on device";

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
