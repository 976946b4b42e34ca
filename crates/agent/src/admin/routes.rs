//! The HTTP routes and their handlers.

use std::{
    fmt::{self, Write},
    future::Future,
    pin::Pin,
    sync::Arc,
};

use axum::{
    Router,
    extract::{RawQuery, State},
    http::{
        HeaderValue, StatusCode,
        header::{CONNECTION, CONTENT_TYPE},
    },
    middleware::map_response,
    response::{IntoResponse, Response},
    routing::{any, get},
};
use tokio::sync::watch;

use super::{
    Liveness,
    control_socket::{self, ControlHandle},
};
use machinist_base::text::escape_line;
use machinist_status::{
    Status,
    metrics::{self, Metrics},
    readiness::GateEffect,
};

/// The data behind the answers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AppState {
    /// The agent's state.
    pub status: watch::Receiver<Arc<Status>>,
    /// Whether the work loop runs.
    pub liveness: Liveness,
    /// The agent's metrics.
    pub metrics: Metrics,
    /// Runs before the status is returned.
    freshen: RefreshHook,
}

/// Refreshes data that is fetched only on demand, before the status is returned. Cheap to clone.
#[derive(Clone, Default)]
pub struct RefreshHook(Option<Arc<dyn Fn() -> RefreshFuture + Send + Sync>>);

/// A refresh in progress.
type RefreshFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

impl RefreshHook {
    /// `submit_config` must always complete soon.
    pub fn new(ask: impl Fn() -> RefreshFuture + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(ask)))
    }

    async fn run(&self) {
        if let Some(ask) = &self.0 {
            ask().await;
        }
    }
}

impl fmt::Debug for RefreshHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Freshen")
    }
}

impl AppState {
    /// Combines the data; without a refresh.
    pub const fn new(
        status: watch::Receiver<Arc<Status>>,
        liveness: Liveness,
        metrics: Metrics,
    ) -> Self {
        Self {
            status,
            liveness,
            metrics,
            freshen: RefreshHook(None),
        }
    }

    /// Adds the refresh that runs before the status is returned.
    #[must_use]
    pub fn with_refresh(mut self, freshen: RefreshHook) -> Self {
        self.freshen = freshen;
        self
    }
}

/// The routes of the loopback port.
pub fn port_routes(served: AppState) -> Router {
    Router::new()
        .route("/livez", get(alive))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/readyz/agent", get(agent_ready))
        .route("/metrics", get(measured))
        .layer(map_response(close))
        .with_state(served)
}

/// The routes of the status socket: every user may read, no user may send commands.
pub fn status_routes(served: AppState) -> Router {
    readable(served)
        .route(
            control_socket::CONFIG_PATH,
            any(control_socket::reject_on_status_socket),
        )
        .layer(map_response(close))
}

/// The routes of the control socket. Without `control` no command is accepted.
pub fn control_routes(served: AppState, control: Option<ControlHandle>) -> Router {
    let asking = control.map(|control| {
        Router::new()
            .route(
                control_socket::CONFIG_PATH,
                get(control_socket::get_desired_config).post(control_socket::submit_config),
            )
            .with_state(control)
    });
    readable(served)
        .merge(asking.unwrap_or_default())
        .layer(map_response(close))
}

fn readable(served: AppState) -> Router {
    Router::new()
        .route("/status", get(status))
        .with_state(served)
}

pub(super) type RouteResponse = (StatusCode, String);

/// Allows one request per connection: probes are seconds apart, and an idle connection costs
/// memory.
pub(super) async fn close(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn alive(State(served): State<AppState>) -> RouteResponse {
    match served.liveness.check().await {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(silent) => {
            let seconds = silent.as_secs();
            stuck(format!("the main loop has not responded for {seconds} s\n"))
        }
    }
}

/// Whether the agent works: its loop runs and it has evaluated the machine once.
async fn agent_ready(State(served): State<AppState>) -> RouteResponse {
    let started = served.status.borrow().gates.iter().next().is_some();
    match started {
        true => alive(State(served)).await,
        false => stuck("starting\n".to_owned()),
    }
}

async fn ready(State(served): State<AppState>, RawQuery(query): RawQuery) -> RouteResponse {
    let status = Arc::clone(&served.status.borrow());
    let verbose = query.is_some_and(|text| {
        let mut flags = text.split('&');
        flags.any(|flag| flag == "verbose" || flag.starts_with("verbose="))
    });
    let mut body = String::new();
    if verbose {
        for gate in status.gates.iter() {
            let mark = match (gate.open, gate.effect) {
                (true, _) | (_, GateEffect::Off) => "[+]",
                (false, GateEffect::Warn) => "[!]",
                (false, GateEffect::Hold) => "[-]",
            };
            // Writing to a String cannot fail.
            let _ = writeln!(
                body,
                "{mark}{} {}: {}",
                gate.name,
                gate.reason,
                escape_line(&gate.message)
            );
        }
    }
    body.push_str(&escape_line(&status.summary()));
    body.push('\n');
    match status.ready {
        true => (StatusCode::OK, body),
        false => stuck(body),
    }
}

pub(super) const fn stuck(why: String) -> RouteResponse {
    (StatusCode::SERVICE_UNAVAILABLE, why)
}

async fn measured(State(served): State<AppState>) -> Response {
    match served.metrics.text() {
        Ok(page) => ([(CONTENT_TYPE, metrics::MEDIA_TYPE)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn status(State(served): State<AppState>) -> Response {
    served.freshen.run().await;
    let status = Arc::clone(&served.status.borrow());
    match serde_json::to_vec(&*status) {
        Ok(body) => ([(CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
