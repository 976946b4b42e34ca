//! What a person may ask the running agent for, over the socket below the root.
//!
//! The question is answered at once – it was passed on, or why not –, and what becomes of it is read
//! from the status. So nothing is held open while an update runs, and a command that is stopped stops
//! nothing.

use axum::{
    body::Bytes,
    extract::{ConnectInfo, State},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::guard::Peer;

/// Where it is asked.
pub(super) const PATH: &str = "/config";
/// The header that says which command asks.
pub(super) const BY: &str = "machinist-by";
/// The header with the config's name; its portable form is the body.
pub(super) const NAME: &str = "machinist-config";
/// The largest config that is taken: as large as one may be, in base64.
pub(super) const LARGEST: usize = 768 << 20;

/// A config that a person wants the machine on, now.
#[derive(Debug)]
pub struct Ask {
    /// Which command asks: `apply` or `rollback`.
    pub by: String,
    /// The config's name.
    pub name: String,
    /// The config in its portable form.
    pub config: Vec<u8>,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<Taken, String>>,
}

/// The agent has taken it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The word's number: the status shows it as `asked` once the driver has heard it.
    pub asked: u64,
}

/// Passes questions on, from those who may ask.
#[derive(Clone, Debug)]
pub struct Control {
    /// Where questions go.
    pub to: mpsc::Sender<Ask>,
    /// The agent's own user; it may ask beside root.
    pub own_uid: u32,
}

pub(super) async fn ask(
    ConnectInfo(peer): ConnectInfo<Peer>,
    State(control): State<Control>,
    headers: HeaderMap,
    config: Bytes,
) -> Response {
    if !peer
        .uid
        .is_some_and(|uid| uid == 0 || uid == control.own_uid)
    {
        return refuse(
            StatusCode::FORBIDDEN,
            "only root may ask the agent to change the machine",
        );
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(by), Some(name)) = (header(BY), header(NAME)) else {
        return refuse(StatusCode::BAD_REQUEST, "the question names no config");
    };
    let (reply, answer) = oneshot::channel();
    let ask = Ask {
        by: by.to_owned(),
        name: name.to_owned(),
        config: config.to_vec(),
        reply,
    };
    // A full queue is a person who asks faster than a file is written.
    if control.to.try_send(ask).is_err() {
        return refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent takes no configs now",
        );
    }
    match answer.await {
        Ok(Ok(taken)) => {
            let body = serde_json::to_vec(&taken).unwrap_or_default();
            ([(CONTENT_TYPE, "application/json")], body).into_response()
        }
        Ok(Err(why)) => refuse(StatusCode::CONFLICT, &why),
        Err(_) => refuse(StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping"),
    }
}

fn refuse(code: StatusCode, why: &str) -> Response {
    (code, why.to_owned()).into_response()
}
