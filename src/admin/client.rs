//! Asking the running agent for its status.

use std::{
    io::{self, Read, Write},
    path::PathBuf,
    time::Duration,
};

use super::SOCKET;
use crate::{
    path::AbsPath,
    root::{Root, RootError},
};

/// How long the agent may take. It answers from memory; after this it is stuck.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest answer that is read: ten thousand devices with their reasons are about 2 MiB.
const LONGEST_ANSWER: u64 = 32 << 20;

/// The agent's status could not be had.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody serves the socket.
    #[error("no agent is running below {}", .0.display())]
    NoAgent(PathBuf),
    /// The socket cannot be reached.
    #[error("cannot reach the agent")]
    Reach(#[source] RootError),
    /// The agent did not answer.
    #[error("the agent did not answer")]
    Answer(#[source] io::Error),
    /// The agent answered something else.
    #[error("the agent's answer cannot be understood: {0}")]
    Understand(String),
}

/// The status document of the agent that runs below `root`, as it sent it. Blocks.
pub fn ask_status(root: &Root) -> Result<String, AskError> {
    let socket = AbsPath::new(SOCKET).map_err(|bad| AskError::Understand(bad.to_string()))?;
    let stream = root.connect_unix(&socket).map_err(|error| {
        let nobody = error.is_not_found() || error.kind() == io::ErrorKind::ConnectionRefused;
        match nobody {
            true => AskError::NoAgent(root.display().to_owned()),
            false => AskError::Reach(error),
        }
    })?;
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .map_err(AskError::Answer)?;
    let answer = exchange(stream).map_err(AskError::Answer)?;
    body(&answer)
}

/// HTTP/1.0, so that the end of the answer is the end of the connection.
fn exchange(mut stream: impl Read + Write) -> io::Result<String> {
    stream.write_all(b"GET /status HTTP/1.0\r\nHost: machinist\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(LONGEST_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

fn body(answer: &str) -> Result<String, AskError> {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| AskError::Understand("it has no end of headers".to_owned()))?;
    let first = head.lines().next().unwrap_or_default();
    match first.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        _ => Err(AskError::Understand(first.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_good_answer_has_a_body() {
        let good = "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}";
        assert_eq!(body(good).unwrap(), "{}");
        for bad in [
            "",
            "HTTP/1.0 200 OK\r\n",
            "HTTP/1.0 404 Not Found\r\n\r\n{}",
        ] {
            assert!(body(bad).is_err(), "{bad:?}");
        }
    }
}
