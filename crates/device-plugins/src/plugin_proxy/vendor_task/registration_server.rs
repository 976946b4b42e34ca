//! The server on the vendor's `kubelet.sock`, and the dials to plugins that are registered already.

use std::sync::Arc;

use tokio::{net::UnixListener, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::{ProxyVendorTask, SessionEnd};
use crate::{
    kubelet::{
        api::v1beta1::registration_server::RegistrationServer,
        limited_incoming::{self, incoming_limited},
    },
    plugin_proxy::{
        registration::{MAX_REQUEST_BYTES, RegistrationService},
        task_events::PluginTaskEvent,
    },
};
use machinist_base::error_chain::chain;

/// Bytes that may arrive on a connection before they are read; a registration is smaller.
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024;
/// Concurrent registrations on one connection.
const MAX_CONCURRENT_STREAMS: u32 = 4;
/// Bytes of headers of one request: HTTP/2's default frame size.
const MAX_HEADER_BYTES: u32 = 16 * 1024;

impl ProxyVendorTask {
    fn registration_service(&self, stop: CancellationToken) -> RegistrationService {
        RegistrationService::new(
            self.deps.root.clone(),
            self.directory.path.clone(),
            Arc::clone(&self.vendor),
            self.event_sender.clone(),
            stop,
            Arc::clone(&self.deps.connection_numbers),
        )
    }

    /// Accepts registrations from now on; an earlier server ends.
    pub(super) fn serve(&mut self) -> Result<(), SessionEnd> {
        self.server.stop();
        let listener = self.directory.bind()?;
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let stop = self.stop.child_token();
        let vendor = Arc::clone(&self.vendor);
        let may_connect = move |user| vendor.may_connect(user);
        let incoming = incoming_limited(listener, &self.deps.tasks, stop.clone(), may_connect);
        let service = self.registration_service(stop.clone());
        let service = RegistrationServer::new(service).max_decoding_message_size(MAX_REQUEST_BYTES);
        let server = Server::builder()
            .max_connection_age(limited_incoming::MAX_CONNECTION_AGE)
            .max_connection_age_grace(limited_incoming::CLOSE_GRACE)
            .initial_stream_window_size(CONNECTION_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(MAX_CONCURRENT_STREAMS)
            .http2_max_header_list_size(MAX_HEADER_BYTES)
            .add_service(service);
        let server = server.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned());
        let (ended, events) = (stop.clone(), self.event_sender.clone());
        self.server.record_start(stop.drop_guard());
        self.deps.tasks.spawn("plugin registration", async move {
            let close_timeout = async {
                ended.cancelled().await;
                sleep(limited_incoming::CLOSE_GRACE).await;
            };
            tokio::select! {
                result = server => if !ended.is_cancelled() {
                    let reason = result.map_or_else(|error| chain(&error), |()| "it ended".to_owned());
                    // If the session is over, the event is not needed.
                    let _ = events.send(PluginTaskEvent::ServerEnded { reason }).await;
                },
                // Safe to drop: only idle connections are left.
                () = close_timeout => {}
            }
        });
        Ok(())
    }

    /// Dials the plugins that registered with an earlier agent.
    pub(super) fn dial_registered(&self) {
        let stop = self.stop.child_token();
        // One service for all of them, since few are dialled at a time.
        let service = self.registration_service(stop.clone());
        for registration in self.registrations.all() {
            let (resource, endpoint) =
                (registration.resource.clone(), registration.endpoint.clone());
            let (stop, events, service) =
                (stop.clone(), self.event_sender.clone(), service.clone());
            let dialled_socket = self.directory.socket(&endpoint);
            self.deps.tasks.spawn("plugin dial", async move {
                let dialled = tokio::select! {
                    // Safe to drop: the next session dials it.
                    () = stop.cancelled() => return,
                    dialled = service.dial_limited(&endpoint) => dialled,
                };
                let event = match dialled {
                    Ok(connection) => PluginTaskEvent::Reconnected {
                        resource,
                        connection,
                    },
                    Err(error) => PluginTaskEvent::DialFailed {
                        resource,
                        endpoint,
                        dialled_socket,
                        reason: chain(&error),
                    },
                };
                // If the session is over, the event is not needed.
                let _ = events.send(event).await;
            });
        }
    }
}
