//! Reaching a plugin on the socket that it named, as the kubelet does while it registers.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::{
    device::{inventory::Asks, vendor::Vendor},
    kubelet::{
        KUBELET_SOCKET,
        api::{relay::device_plugin_client::DevicePluginClient, v1beta1 as api},
    },
    path::AbsPath,
    root::{Kind, Root, RootError, UnixAddress},
    words::is_misleading,
};

/// The kubelet's own limit.
pub(super) const DIAL_WAIT: Duration = Duration::from_secs(10);
/// A plugin may register before its socket listens; the kubelet, too, tries again until its time is over.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// What is left of a socket address behind `/var/lib/kubelet/device-plugins/`, where plugins bind.
const LONGEST_NAME: usize = 75;
/// Enough for any sentence; whoever writes more is not quoted in full.
const LONGEST_WORDS: usize = 512;
/// How much of a stream a plugin may send before it is read. Lists of usual size fit in; a larger one takes
/// a few turns more, and a flood of them waits at the plugin's end.
const WINDOW: u32 = 64 * 1024;
/// Bytes of an answer to `Allocate` or `GetPreferredAllocation`: the kubelet keeps the first in its
/// checkpoint, and takes neither above 4 MiB.
const ANSWER: usize = 256 * 1024;
/// Headers and trailers of one answer; a text that says what went wrong is among them.
const HEADERS: u32 = 16 * 1024;

/// Why a plugin is not reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("the endpoint {0:?} is no plain file name of at most {LONGEST_NAME} bytes")]
    Name(String),
    #[error("failed to dial device plugin: {path} is a {}, not a socket", found.as_str())]
    NoSocket { path: AbsPath, found: Kind },
    #[error("failed to dial device plugin: {path} belongs to user {found}; expected {expected}")]
    Foreign {
        path: AbsPath,
        found: u32,
        expected: String,
    },
    #[error("failed to dial device plugin: {path}: {why}")]
    Silent { path: AbsPath, why: String },
    #[error("failed to get device plugin options: {0}")]
    Options(String),
    #[error("failed to dial device plugin")]
    Look(#[from] RootError),
}

/// One connection to one plugin. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    /// Tells it from all others of this agent's life.
    pub(super) number: u64,
    /// The file name of the plugin's socket.
    pub(super) endpoint: Arc<str>,
    /// What the plugin wants to be asked.
    pub(super) asks: Asks,
    channel: Channel,
    /// The channel's address names it, so it lives as long; a channel that connects anew reaches the same
    /// socket or none.
    _address: Arc<UnixAddress>,
}

impl Connection {
    /// To ask it. Answers that can be large are left as they come.
    pub(super) fn client(&self) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(self.channel.clone()).max_decoding_message_size(ANSWER)
    }

    /// To speak with it otherwise.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

/// Whether a plugin may name its socket so. The kubelet would follow a path anywhere.
fn socket_path(directory: &AbsPath, endpoint: &str) -> Result<AbsPath, DialError> {
    let refused = || DialError::Name(quoted(endpoint).to_owned());
    let plain = !endpoint.is_empty()
        && endpoint.len() <= LONGEST_NAME
        && !endpoint.contains('/')
        && endpoint != KUBELET_SOCKET;
    if !plain {
        return Err(refused());
    }
    directory.join(endpoint).map_err(|_| refused())
}

/// Connects within the kubelet's ten seconds and asks for the plugin's options.
pub(super) async fn dial(
    root: &Root,
    directory: &AbsPath,
    endpoint: &str,
    vendor: &Vendor,
    number: u64,
) -> Result<Connection, DialError> {
    let until = Instant::now() + DIAL_WAIT;
    let path = socket_path(directory, endpoint)?;
    let mut pause = FIRST_PAUSE;
    let (channel, address) = loop {
        let why = match look(root, &path, vendor)? {
            None => "there is no such socket".to_owned(),
            Some(address) => match timeout_at(until, connect(&address)).await {
                Ok(Ok(channel)) => break (channel, address),
                Ok(Err(error)) => crate::telemetry::chain(&error),
                Err(_) => "nobody answers".to_owned(),
            },
        };
        if Instant::now() + pause >= until {
            return Err(DialError::Silent { path, why });
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    let mut connection = Connection {
        number,
        endpoint: endpoint.into(),
        asks: Asks::default(),
        channel,
        _address: Arc::new(address),
    };
    let mut client = connection.client();
    let options = client.get_device_plugin_options(api::Empty {});
    let options = timeout_at(until.min(Instant::now() + vendor.deadline), options).await;
    let said = |status: Status| DialError::Options(words(&status));
    let silent = |_| DialError::Options("no answer in time".to_owned());
    let options = options.map_err(silent)?.map_err(said)?.into_inner();
    connection.asks = Asks {
        allocate: true,
        preferred: options.get_preferred_allocation_available,
        pre_start: options.pre_start_required,
    };
    Ok(connection)
}

/// The socket, when it is one and belongs to whom it may; none when nothing is there yet.
fn look(root: &Root, path: &AbsPath, vendor: &Vendor) -> Result<Option<UnixAddress>, DialError> {
    let Some((address, stat)) = root.socket_itself(path)? else {
        return Ok(None);
    };
    if stat.kind != Kind::Socket {
        return Err(DialError::NoSocket {
            path: path.clone(),
            found: stat.kind,
        });
    }
    if !vendor.may_connect(stat.uid) {
        return Err(DialError::Foreign {
            path: path.clone(),
            found: stat.uid,
            expected: users(vendor),
        });
    }
    Ok(Some(address))
}

/// As much of what a plugin named as an answer may hold: it travels in a header.
pub(super) fn quoted(given: &str) -> &str {
    let end = given.char_indices().nth(LONGEST_WORDS).map(|(at, _)| at);
    end.map_or(given, |end| &given[..end])
}

/// What a plugin says of an error, fit for a line of the log: short, and in one piece.
pub(super) fn words(status: &Status) -> String {
    use std::error::Error as _;
    // A library's inner life is nothing to whoever reads it.
    match status.source() {
        Some(_) if status.message().contains("h2 protocol error") => {
            "its connection broke off".to_owned()
        }
        _ => plain(status.message()),
    }
}

/// The same for any text of a plugin's.
pub(super) fn plain(text: &str) -> String {
    let plain = |c: char| if is_misleading(c) { ' ' } else { c };
    text.chars().take(LONGEST_WORDS).map(plain).collect()
}

/// The users of a vendor's file, for messages.
pub(super) fn users(vendor: &Vendor) -> String {
    let users: Vec<_> = vendor.users.iter().map(ToString::to_string).collect();
    format!("one of spec.users: {}", users.join(", "))
}

async fn connect(address: &UnixAddress) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", address.path().display()))?;
    endpoint
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .http2_max_header_list_size(HEADERS)
        .connect()
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugins_words_are_one_short_line() {
        let status = Status::unknown(format!("no\nfirmware\x1b[2J{}", "!".repeat(9999)));
        let told = words(&status);
        assert!(told.starts_with("no firmware [2J!!!"), "{told}");
        assert_eq!(told.chars().count(), LONGEST_WORDS);
    }

    #[test]
    fn an_endpoint_is_a_plain_file_name() {
        let directory = AbsPath::new("/var/lib/machinist/device-plugins/acme").unwrap();
        let path = socket_path(&directory, "acme.sock").unwrap();
        assert_eq!(path.parent(), Some(directory.clone()));
        for bad in [
            "",
            ".",
            "..",
            "../x.sock",
            "/run/x.sock",
            "a/b.sock",
            "kubelet.sock",
            "a\0b",
            &"x".repeat(76),
        ] {
            let error = socket_path(&directory, bad).unwrap_err();
            assert!(matches!(error, DialError::Name(_)), "{bad}");
        }
    }
}
