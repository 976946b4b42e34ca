//! The requests that commands send to the running agent over the control socket.
//!
//! A request is authorised by the peer's credentials before a byte of its body is read, and only
//! one body at a time is in memory.
//!
//! The answer is sent at once: the request was queued, or the reason why not. The outcome is read
//! from the status. So no connection stays open while an update runs, and interrupting a command
//! does not interrupt the update.

use std::{future::poll_fn, pin::Pin, sync::Arc};

use axum::{
    body::{Body, HttpBody},
    extract::{ConnectInfo, State},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{CONTROL_SOCKET, connection_limit::PeerProcess};

/// The path of the request.
pub(super) const CONFIG_PATH: &str = "/config";
/// The header with the name of the requesting command.
pub(super) const REQUESTER_HEADER: &str = "machinist-by";
/// The header with the config's name; the body is its portable form.
pub(super) const CONFIG_NAME_HEADER: &str = "machinist-config";
/// Bytes of the largest request body: the largest config, in base64.
pub(super) const MAX_REQUEST_BYTES: usize = 768 << 20;

/// A request.
#[derive(Debug)]
pub enum ControlRequest {
    /// Apply a config.
    Take(ApplyRequest),
    /// Return the desired config, through this channel.
    Wanted(oneshot::Sender<Result<DesiredConfigReply, String>>),
}

/// The desired config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredConfigReply {
    /// Its name.
    pub name: String,
    /// Its portable form.
    pub config: Vec<u8>,
}

/// A config that an operator wants applied now.
#[derive(Debug)]
pub struct ApplyRequest {
    /// The requesting command: `apply` or `rollback`.
    pub by: String,
    /// The config's name.
    pub name: String,
    /// The config in its portable form.
    pub config: Vec<u8>,
    /// Receives the answer.
    pub reply: oneshot::Sender<Result<Accepted, String>>,
}

/// The agent has accepted the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The request's number: the status shows it as `requested` once the reconciler has received it.
    #[serde(alias = "asked")]
    pub requested: u64,
}

/// Forwards requests from authorised users.
#[derive(Clone, Debug)]
pub struct ControlHandle {
    to: mpsc::Sender<ControlRequest>,
    own_uid: u32,
    /// The permit to hold a request's body in memory.
    body: Arc<Semaphore>,
}

/// The answer to a command on the status socket, which is refused.
pub(super) async fn reject_on_status_socket() -> Response {
    refuse(
        StatusCode::FORBIDDEN,
        &format!("this socket is read-only; send commands to {CONTROL_SOCKET}"),
    )
}

pub(super) async fn submit_config(
    ConnectInfo(peer): ConnectInfo<PeerProcess>,
    State(control): State<ControlHandle>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if !control.is_permitted(peer) {
        return refuse(
            StatusCode::FORBIDDEN,
            "only root may request changes of the machine",
        );
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(by), Some(name)) = (header(REQUESTER_HEADER), header(CONFIG_NAME_HEADER)) else {
        return refuse(StatusCode::BAD_REQUEST, "the request names no config");
    };
    let Ok(_permit) = control.body.try_acquire() else {
        let busy = "the agent is processing another config; try again";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, busy);
    };
    let config = match read(body, MAX_REQUEST_BYTES).await {
        Ok(config) => config,
        Err(refusal) => return refusal,
    };
    let (reply, answer) = oneshot::channel();
    let ask = ApplyRequest {
        by: by.to_owned(),
        name: name.to_owned(),
        config,
        reply,
    };
    match control.answer(ControlRequest::Take(ask), answer).await {
        Ok(taken) => {
            let body = serde_json::to_vec(&taken).unwrap_or_default();
            ([(CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(refusal) => refusal,
    }
}

/// Returns the desired config. Its files may be secret, so only users who may request a config
/// receive it.
pub(super) async fn get_desired_config(
    ConnectInfo(peer): ConnectInfo<PeerProcess>,
    State(control): State<ControlHandle>,
) -> Response {
    if !control.is_permitted(peer) {
        return refuse(
            StatusCode::FORBIDDEN,
            "only root may read the agent's desired config",
        );
    }
    let (reply, answer) = oneshot::channel();
    match control.answer(ControlRequest::Wanted(reply), answer).await {
        Ok(DesiredConfigReply { name, config }) => {
            let kind = (CONTENT_TYPE.as_str(), "application/json".to_owned());
            ([kind, (CONFIG_NAME_HEADER, name)], config).into_response()
        }
        Err(refusal) => refusal,
    }
}

/// Reads a request's body of at most `longest` bytes.
async fn read(mut body: Body, longest: usize) -> Result<Vec<u8>, Response> {
    let too_large = || {
        let why = format!("config too large: at most {longest} bytes");
        refuse(StatusCode::PAYLOAD_TOO_LARGE, &why)
    };
    // Memory grows with the received bytes, which are not copied again.
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > longest {
        return Err(too_large());
    }
    let mut config = Vec::with_capacity(announced);
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|error| refuse(StatusCode::BAD_REQUEST, &error.to_string()))?;
        let data = frame.into_data().unwrap_or_default();
        if config.len() + data.len() > longest {
            return Err(too_large());
        }
        config.extend_from_slice(&data);
    }
    Ok(config)
}

impl ControlHandle {
    /// Forwards requests of root and of the agent's own user to `to`.
    pub fn new(to: mpsc::Sender<ControlRequest>, own_uid: u32) -> Self {
        Self {
            to,
            own_uid,
            body: Arc::new(Semaphore::new(1)),
        }
    }

    fn is_permitted(&self, peer: PeerProcess) -> bool {
        let is_permitted_uid = |uid| uid == 0 || uid == self.own_uid;
        peer.uid.is_some_and(is_permitted_uid)
    }

    async fn answer<T>(
        &self,
        question: ControlRequest,
        answer: oneshot::Receiver<Result<T, String>>,
    ) -> Result<T, Response> {
        // A full queue means that requests arrive faster than a file is written.
        if self.to.try_send(question).is_err() {
            let busy = "the agent does not accept configs now";
            return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, busy));
        }
        match answer.await {
            Ok(answered) => answered.map_err(|why| refuse(StatusCode::CONFLICT, &why)),
            Err(_) => {
                let stopping = "the agent is stopping";
                Err(refuse(StatusCode::SERVICE_UNAVAILABLE, stopping))
            }
        }
    }
}

fn refuse(code: StatusCode, why: &str) -> Response {
    (code, why.to_owned()).into_response()
}

#[cfg(test)]
mod tests;
