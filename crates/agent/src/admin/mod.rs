//! The agent's HTTP endpoints: probes and metrics on a loopback port, the status document on the
//! status socket, commands on the control socket.
//!
//! | path | answers 200 while | else |
//! |---|---|---|
//! | `/livez`, `/healthz` | the work loop turns | 503 |
//! | `/readyz`, `/readyz?verbose` | no gate with effect `hold` is closed | 503, naming it |
//! | `/readyz/agent` | the agent itself works, whatever the state of the gates | 503 |
//! | `/metrics` | always | |
//! | `/status` (both sockets) | always: the status document as JSON | |
//! | `POST /config` (control socket only) | root, or the agent's own user, gives a config to hold the machine on | 403, 409, 503 and why |

mod client;
mod connection_limit;
mod control_socket;
mod liveness;
mod port;
mod process_routes;
mod request_progress;
mod routes;
mod user_connections;

pub use client::{AgentClientError, fetch_desired_config, fetch_status, submit_config};
pub use connection_limit::{LimitedListener, PeerProcess};
pub use control_socket::{
    Accepted, ApplyRequest, ControlHandle, ControlRequest, DesiredConfigReply,
};
pub use liveness::{Heartbeat, Liveness, heartbeat};
pub use port::{BindError, bind, bind_named, wait};
pub use process_routes::{ProcessProbes, process_routes};
pub use routes::{AppState, RefreshHook, control_routes, port_routes, status_routes};

use std::time::Duration;

use axum::{
    Router,
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use tokio_util::sync::CancellationToken;

/// The status socket, below the root. Pods mount its directory, so it only serves reads.
pub const STATUS_SOCKET: &str = "/run/machinist/agent.sock";

/// Every user may connect: the status holds no secrets.
pub const STATUS_SOCKET_MODE: u32 = 0o666;

/// The control socket, below the root, in the state directory: a container with `/run/machinist`
/// mounted cannot reach it, whatever its user is.
pub const CONTROL_SOCKET: &str = "/var/lib/machinist/control/agent.sock";

/// Its directory has mode 0700.
pub const CONTROL_SOCKET_MODE: u32 = 0o600;

/// How long open answers may take when the agent stops. They are sent from memory; a client that
/// has not read them by then is not reading.
const RESPONSE_DRAIN_TIMEOUT: Duration = Duration::from_millis(250);

/// Serves until `stop` is cancelled.
pub async fn serve<L>(listener: L, routes: Router, stop: CancellationToken)
where
    LimitedListener<L>: Listener<Addr = PeerProcess>,
    PeerProcess: for<'a> Connected<IncomingStream<'a, LimitedListener<L>>>,
{
    let graceful = stop.clone().cancelled_owned();
    let routes = routes.into_make_service_with_connect_info::<PeerProcess>();
    let serving =
        axum::serve(LimitedListener::new(listener), routes).with_graceful_shutdown(graceful);
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(RESPONSE_DRAIN_TIMEOUT).await;
    };
    // Safe to drop, both: unanswered connections are closed with the process.
    tokio::select! {
        _ = serving.into_future() => {}
        () = too_late => {}
    }
}

#[cfg(test)]
mod tests;
