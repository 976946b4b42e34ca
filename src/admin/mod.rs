//! What the agent answers about itself: probes and metrics on a loopback port, the status document on
//! a socket below the root.
//!
//! | path | answers 200 while | else |
//! |---|---|---|
//! | `/livez`, `/healthz` | the work loop turns | 503 |
//! | `/readyz`, `/readyz?verbose` | no gate with effect `hold` is closed | 503, naming it |
//! | `/readyz/agent` | the agent itself works, whatever the gates say | 503 |
//! | `/metrics` | always | |
//! | `/status` (socket only) | always: the status document as JSON | |

mod client;
mod port;
mod pulse;
mod routes;

pub use client::{AskError, ask_status};
pub use port::{BindError, bind};
pub use pulse::{Liveness, Pulse, pulse};
pub use routes::{Served, port_routes, socket_routes};

use std::time::Duration;

use axum::{Router, serve::Listener};
use tokio_util::sync::CancellationToken;

/// The status socket, below the root.
pub const SOCKET: &str = "/run/machinist/agent.sock";

/// Who may connect: everybody. The status holds no secrets, and nothing can be changed through it.
pub const SOCKET_MODE: u32 = 0o666;

/// How long answers under way may take when the agent stops. They are written from memory; who has
/// not read them by then is not reading.
const LAST_ANSWERS: Duration = Duration::from_millis(250);

/// Serves until `stop` is cancelled.
pub async fn serve<L>(listener: L, routes: Router, stop: CancellationToken)
where
    L: Listener,
    L::Addr: std::fmt::Debug,
{
    let graceful = stop.clone().cancelled_owned();
    let serving = axum::serve(listener, routes).with_graceful_shutdown(graceful);
    let too_late = async {
        stop.cancelled().await;
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    // Both may be dropped: unanswered connections are closed with the process.
    tokio::select! {
        _ = serving.into_future() => {}
        () = too_late => {}
    }
}

#[cfg(test)]
mod tests;
