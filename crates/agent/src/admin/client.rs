//! A client of the running agent's sockets: reads its status and sends it configs.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    CONTROL_SOCKET, STATUS_SOCKET,
    control_socket::{
        Accepted, CONFIG_NAME_HEADER, CONFIG_PATH, DesiredConfigReply, MAX_REQUEST_BYTES,
        REQUESTER_HEADER,
    },
};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{Root, RootError};

/// How long the agent may take. It answers from memory; after this time it is stuck.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// One more second for each this many bytes of a request: a large config is checked and stored
/// before the answer.
const BYTES_PER_EXTRA_SECOND: u64 = 8 << 20;

/// Bytes of the longest answer that is read: ten thousand devices with their reasons are about 2
/// MiB.
const MAX_AGENT_RESPONSE_BYTES: u64 = 32 << 20;

/// Why the agent gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum AgentClientError {
    /// No process serves the socket.
    #[error("no agent running for root {}", .0.display())]
    NoAgent(PathBuf),
    /// The control socket denies access to this process's user.
    #[error("permission denied on the agent's socket: only root and the agent's user may use it")]
    Closed(#[source] RootError),
    /// The socket cannot be reached.
    #[error("cannot reach the agent")]
    Reach(#[source] RootError),
    /// The agent did not answer.
    #[error("no response from the agent")]
    Answer(#[source] io::Error),
    /// The agent's answer was not understood.
    #[error("invalid response from the agent: {0}")]
    Understand(String),
    /// The agent refused the request.
    #[error("refused by the agent: {0}")]
    Refused(String),
}

/// The status document of the agent that runs below `root`, as text. Blocks.
///
/// Users who may open the control socket read it there and nowhere else: pods with `/run/machinist`
/// mounted may have replaced the status socket. Other users, and pods without the state directory,
/// read the status socket.
pub fn fetch_status(root: &Root) -> Result<String, AgentClientError> {
    let question = b"GET /status HTTP/1.0\r\nHost: machinist\r\n\r\n";
    let stream = match connect(root, CONTROL_SOCKET) {
        Err(AgentClientError::Closed(_)) => connect(root, STATUS_SOCKET)?,
        Err(AgentClientError::NoAgent(_)) if !has_control(root)? => connect(root, STATUS_SOCKET)?,
        connected => connected?,
    };
    ask(stream, question, MAX_AGENT_RESPONSE_BYTES).map(|answer| answer.body)
}

/// The desired config of the agent below `root`, without any operator override. Blocks.
pub fn fetch_desired_config(root: &Root) -> Result<DesiredConfigReply, AgentClientError> {
    let question = format!("GET {CONFIG_PATH} HTTP/1.0\r\nHost: machinist\r\n\r\n");
    let stream = connect(root, CONTROL_SOCKET)?;
    let answer = ask(stream, question.as_bytes(), MAX_REQUEST_BYTES as u64)?;
    let name = answer
        .name
        .ok_or_else(|| AgentClientError::Understand(format!("no {CONFIG_NAME_HEADER} header")))?;
    Ok(DesiredConfigReply {
        name,
        config: answer.body.into_bytes(),
    })
}

/// Requests the agent below `root` to apply a config, given in its stored form. Blocks until the
/// agent has accepted the request, not until the config is applied.
pub fn submit_config(
    root: &Root,
    by: &str,
    name: &str,
    config: &[u8],
) -> Result<Accepted, AgentClientError> {
    let mut question = format!(
        "POST {CONFIG_PATH} HTTP/1.0\r\nHost: machinist\r\n{REQUESTER_HEADER}: {by}\r\n{CONFIG_NAME_HEADER}: {name}\r\nContent-Length: {}\r\n\r\n",
        config.len()
    )
    .into_bytes();
    question.extend(config);
    let stream = connect(root, CONTROL_SOCKET)?;
    let answer = ask(stream, &question, MAX_AGENT_RESPONSE_BYTES)?;
    serde_json::from_str(&answer.body)
        .map_err(|error| AgentClientError::Understand(error.to_string()))
}

/// A successful answer.
#[derive(Debug)]
struct SuccessfulResponse {
    body: String,
    /// The config's name, if the answer contains a config.
    name: Option<String>,
}

fn connect(root: &Root, socket: &str) -> Result<UnixStream, AgentClientError> {
    let socket =
        AbsPath::new(socket).map_err(|bad| AgentClientError::Understand(bad.to_string()))?;
    root.connect_unix(&socket)
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                AgentClientError::NoAgent(root.display().to_owned())
            }
            io::ErrorKind::PermissionDenied => AgentClientError::Closed(error),
            _ => AgentClientError::Reach(error),
        })
}

/// Whether an agent has ever served a control socket in this tree.
fn has_control(root: &Root) -> Result<bool, AgentClientError> {
    let socket = AbsPath::new(CONTROL_SOCKET)
        .map_err(|bad| AgentClientError::Understand(bad.to_string()))?;
    let dir = socket.parent().unwrap_or_else(AbsPath::root);
    root.is_dir(&dir).map_err(AgentClientError::Reach)
}

fn ask(
    stream: UnixStream,
    question: &[u8],
    longest: u64,
) -> Result<SuccessfulResponse, AgentClientError> {
    let more = Duration::from_secs(question.len() as u64 / BYTES_PER_EXTRA_SECOND);
    stream
        .set_write_timeout(Some(REQUEST_TIMEOUT))
        .map_err(AgentClientError::Answer)?;
    let stream = TimedStream {
        stream,
        ends: Instant::now() + REQUEST_TIMEOUT + more,
    };
    let answer = exchange(stream, question, longest).map_err(AgentClientError::Answer)?;
    good(&answer)
}

/// A connection on which all reads together take a limited time: the process that listens may not be the agent.
struct TimedStream {
    stream: UnixStream,
    ends: Instant,
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.ends.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// HTTP/1.0, so that the end of the connection ends the answer. An agent that refuses answers
/// before it has read the whole request, and closes the connection.
fn exchange(mut stream: impl Read + Write, question: &[u8], longest: u64) -> io::Result<String> {
    let written = stream.write_all(question);
    let mut answer = Vec::new();
    let read = stream.take(longest).read_to_end(&mut answer);
    let is_late = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock
        )
    };
    if answer.is_empty() || read.as_ref().is_err_and(is_late) {
        written.and(read)?;
    }
    String::from_utf8(answer).map_err(|_| io::ErrorKind::InvalidData.into())
}

fn good(answer: &str) -> Result<SuccessfulResponse, AgentClientError> {
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .ok_or_else(|| AgentClientError::Understand("incomplete headers".to_owned()))?;
    let first = head.lines().next().unwrap_or_default();
    match first.split(' ').nth(1) {
        Some("200") => {
            let named = head.lines().filter_map(|line| line.split_once(": "));
            let mut named =
                named.filter(|(header, _)| header.eq_ignore_ascii_case(CONFIG_NAME_HEADER));
            Ok(SuccessfulResponse {
                body: body.to_owned(),
                name: named.next().map(|(_, name)| name.to_owned()),
            })
        }
        Some("404") => Err(AgentClientError::Refused(
            "the agent applies no configs (see `roles` in its settings)".to_owned(),
        )),
        Some("403" | "409" | "413" | "503") => {
            Err(AgentClientError::Refused(body.trim_end().to_owned()))
        }
        _ => Err(AgentClientError::Understand(first.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn an_answer_that_drips_ends_in_time() {
        let (stream, mut other) = UnixStream::pair().unwrap();
        let dripping = std::thread::spawn(move || {
            while other.write_all(b"a").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let ends = Instant::now() + Duration::from_millis(200);
        assert!(exchange(TimedStream { stream, ends }, b"GET", 1 << 20).is_err());
        dripping.join().unwrap();
    }

    #[test]
    fn only_a_200_response_yields_a_body() {
        let plain = "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}";
        let answer = good(plain).unwrap();
        assert_eq!((answer.body.as_str(), answer.name), ("{}", None));
        let named = "HTTP/1.0 200 OK\r\nMachinist-Config: a\r\n\r\n{}";
        assert_eq!(good(named).unwrap().name.as_deref(), Some("a"));
        for bad in [
            "",
            "HTTP/1.0 200 OK\r\n",
            "HTTP/1.0 404 Not Found\r\n\r\n{}",
        ] {
            assert!(good(bad).is_err(), "{bad:?}");
        }
    }
}
