//! The routes of another long-running process of machinist, such as the controller: probes and metrics alone.

use std::{fmt, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::map_response,
    response::{IntoResponse, Response},
    routing::get,
};

use super::routes::{RouteResponse, close, stuck};
use machinist_base::text::escape_line;
use machinist_status::metrics;

/// What a process shows of itself.
pub trait ProcessProbes: fmt::Debug + Send + Sync + 'static {
    /// Whether it works; the error names the step that makes no progress.
    fn healthy(&self) -> Result<String, String>;

    /// Whether it can serve its purpose; the error names what it waits for.
    fn ready(&self) -> Result<String, String>;

    /// Its metrics in the OpenMetrics text format.
    fn metrics(&self) -> Result<String, fmt::Error>;
}

type SharedProbes = Arc<dyn ProcessProbes>;

/// The routes `/livez`, `/healthz`, `/readyz` and `/metrics` of a process.
pub fn process_routes(probes: SharedProbes) -> Router {
    Router::new()
        .route("/livez", get(healthy))
        .route("/healthz", get(healthy))
        .route("/readyz", get(ready))
        .route("/metrics", get(measured))
        .layer(map_response(close))
        .with_state(probes)
}

async fn healthy(State(probes): State<SharedProbes>) -> RouteResponse {
    answer(probes.healthy())
}

async fn ready(State(probes): State<SharedProbes>) -> RouteResponse {
    answer(probes.ready())
}

fn answer(state: Result<String, String>) -> RouteResponse {
    let line = |text: &str| format!("{}\n", escape_line(text));
    match state {
        Ok(text) => (StatusCode::OK, line(&text)),
        Err(text) => stuck(line(&text)),
    }
}

async fn measured(State(probes): State<SharedProbes>) -> Response {
    match probes.metrics() {
        Ok(page) => ([(CONTENT_TYPE, metrics::MEDIA_TYPE)], page).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
