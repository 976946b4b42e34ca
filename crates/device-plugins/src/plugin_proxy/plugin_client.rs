//! Connects to the socket that a plugin registered, as the kubelet does during registration.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::kubelet::{
    KUBELET_SOCKET,
    api::{relay::device_plugin_client::DevicePluginClient, v1beta1 as api},
};
use machinist_base::{abs_path::AbsPath, text::is_misleading};
use machinist_device::{inventory::BackendOptions, vendor_declaration::Vendor};
use machinist_rootfs::{FileKind, Root, RootError, UnixAddress};

/// Same as the kubelet's own limit.
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// First retry delay. A plugin may register before its socket listens; the kubelet, too, retries
/// until its time is over.
const MIN_DIAL_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(250);
/// Bytes that a socket address has left after `/var/lib/kubelet/device-plugins/`, where plugins
/// bind.
const MAX_SOCKET_NAME_BYTES: usize = 75;
/// Characters of a plugin's error text that are quoted.
const MAX_QUOTED_CHARS: usize = 512;
/// Bytes of a stream that a plugin may send before they are read. Usual lists fit in; larger ones
/// take a few round trips, and a flood of them waits at the plugin's end.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// Bytes of an answer to `Allocate` or `GetPreferredAllocation`: the kubelet keeps the former in
/// its checkpoint, and accepts neither above 4 MiB.
const MAX_PLUGIN_RESPONSE_BYTES: usize = 256 * 1024;
/// Bytes of headers and trailers of one answer, which include an error text.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

/// Why a plugin cannot be reached.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("endpoint {0:?} is not a plain file name of at most {MAX_SOCKET_NAME_BYTES} bytes")]
    Name(String),
    #[error("failed to dial device plugin: {path} is a {}, not a socket", found.as_str())]
    NoSocket { path: AbsPath, found: FileKind },
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
pub(super) struct PluginConnection {
    /// A number that is unique during this agent's life.
    pub(super) number: u64,
    /// The file name of the plugin's socket.
    pub(super) endpoint: Arc<str>,
    /// The plugin's options: the calls that it wants to receive.
    pub(super) options: BackendOptions,
    channel: Channel,
    /// The channel's address depends on it, so it must live as long; a channel that reconnects
    /// reaches the same socket or none.
    _address: Arc<UnixAddress>,
}

impl PluginConnection {
    /// A client for calls. Answers that can be large stay encoded.
    pub(super) fn client(&self) -> DevicePluginClient<Channel> {
        DevicePluginClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_PLUGIN_RESPONSE_BYTES)
    }

    /// The raw channel.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }
}

/// The path of a plugin's socket, if the name is allowed. The kubelet would accept any path.
fn socket_path(directory: &AbsPath, endpoint: &str) -> Result<AbsPath, DialError> {
    let refused = || DialError::Name(quoted(endpoint).to_owned());
    let plain = !endpoint.is_empty()
        && endpoint.len() <= MAX_SOCKET_NAME_BYTES
        && !endpoint.contains('/')
        && endpoint != KUBELET_SOCKET;
    if !plain {
        return Err(refused());
    }
    directory.join(endpoint).map_err(|_| refused())
}

/// Connects within the kubelet's ten seconds and reads the plugin's options.
pub(super) async fn dial(
    root: &Root,
    directory: &AbsPath,
    endpoint: &str,
    vendor: &Vendor,
    number: u64,
) -> Result<PluginConnection, DialError> {
    let until = Instant::now() + DIAL_TIMEOUT;
    let path = socket_path(directory, endpoint)?;
    let mut pause = MIN_DIAL_BACKOFF;
    let (channel, address) = loop {
        let why = match find_socket(root, &path, vendor)? {
            None => "socket not found".to_owned(),
            Some(address) => match timeout_at(until, connect(&address)).await {
                Ok(Ok(channel)) => break (channel, address),
                Ok(Err(error)) => machinist_base::error_chain::chain(&error),
                Err(_) => "connecting timed out".to_owned(),
            },
        };
        if Instant::now() + pause >= until {
            return Err(DialError::Silent { path, why });
        }
        sleep(pause).await;
        pause = (pause * 2).min(MAX_BACKOFF);
    };
    let mut connection = PluginConnection {
        number,
        endpoint: endpoint.into(),
        options: BackendOptions::default(),
        channel,
        _address: Arc::new(address),
    };
    let mut client = connection.client();
    let options = client.get_device_plugin_options(api::Empty {});
    let options = timeout_at(until.min(Instant::now() + vendor.deadline), options).await;
    let options_error = |status: Status| DialError::Options(status_text(&status));
    let silent = |_| DialError::Options("no answer in time".to_owned());
    let options = options
        .map_err(silent)?
        .map_err(options_error)?
        .into_inner();
    connection.options = BackendOptions {
        allocate: true,
        preferred: options.get_preferred_allocation_available,
        pre_start: options.pre_start_required,
    };
    Ok(connection)
}

/// The address, if the path is a socket of an allowed user; `None` if nothing exists there yet.
fn find_socket(
    root: &Root,
    path: &AbsPath,
    vendor: &Vendor,
) -> Result<Option<UnixAddress>, DialError> {
    let Some((address, stat)) = root.socket_itself(path)? else {
        return Ok(None);
    };
    if stat.kind != FileKind::Socket {
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

/// Shortens a name given by a plugin, since the answer carries it in a header.
pub(super) fn quoted(given: &str) -> &str {
    let end = given.char_indices().nth(MAX_QUOTED_CHARS).map(|(at, _)| at);
    end.map_or(given, |end| &given[..end])
}

/// A plugin's error text, shortened to one line for the log.
pub(super) fn status_text(status: &Status) -> String {
    use std::error::Error as _;
    // A source means that the error was made by the gRPC library; its details do not help a reader.
    match status.source() {
        Some(_) if status.message().contains("h2 protocol error") => {
            "its connection was lost".to_owned()
        }
        _ => plain(status.message()),
    }
}

/// Does the same for any text of a plugin.
pub(super) fn plain(text: &str) -> String {
    let plain = |c: char| if is_misleading(c) { ' ' } else { c };
    text.chars().take(MAX_QUOTED_CHARS).map(plain).collect()
}

/// The users that a vendor's file allows, for messages.
pub(super) fn users(vendor: &Vendor) -> String {
    let users: Vec<_> = vendor.users.iter().map(ToString::to_string).collect();
    format!("one of spec.users: {}", users.join(", "))
}

async fn connect(address: &UnixAddress) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", address.path().display()))?;
    endpoint
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(2 * STREAM_WINDOW_BYTES)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .connect()
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_messages_become_one_short_line() {
        let status = Status::unknown(format!("no\nfirmware\x1b[2J{}", "!".repeat(9999)));
        let reported = status_text(&status);
        assert!(reported.starts_with("no firmware [2J!!!"), "{reported}");
        assert_eq!(reported.chars().count(), MAX_QUOTED_CHARS);
    }

    #[test]
    fn a_plugin_endpoint_must_be_a_plain_file_name() {
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
