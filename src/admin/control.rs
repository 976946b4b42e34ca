//! What a person may ask the running agent for, over the control socket.
//!
//! A request is judged by the peer's credentials before a byte of its body is read, and one body at a time
//! is in memory.
//!
//! The question is answered at once – it was passed on, or why not –, and what becomes of it is read
//! from the status. So nothing is held open while an update runs, and a command that is stopped stops
//! nothing.

use std::{future::poll_fn, pin::Pin, sync::Arc};

use axum::{
    body::{Body, HttpBody},
    extract::{ConnectInfo, State},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{CONTROL_SOCKET, guard::Peer};

/// Where it is asked.
pub(super) const PATH: &str = "/config";
/// The header that says which command asks.
pub(super) const BY: &str = "machinist-by";
/// The header with the config's name; its portable form is the body.
pub(super) const NAME: &str = "machinist-config";
/// The largest config that is taken: as large as one may be, in base64.
pub(super) const LARGEST: usize = 768 << 20;

/// What is asked.
#[derive(Debug)]
pub enum Question {
    /// To take the machine to a config.
    Take(Ask),
    /// Which config the source asks for. The answer goes here.
    Wanted(oneshot::Sender<Result<WantedConfig, String>>),
}

/// The config that the source asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedConfig {
    /// Its name.
    pub name: String,
    /// Its portable form.
    pub config: Vec<u8>,
}

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
    to: mpsc::Sender<Question>,
    own_uid: u32,
    /// The permit to hold a request's body in memory.
    body: Arc<Semaphore>,
}

/// Answers a command that came over the status socket.
pub(super) async fn elsewhere() -> Response {
    refuse(
        StatusCode::FORBIDDEN,
        &format!("this socket takes no commands; they go to {CONTROL_SOCKET}"),
    )
}

pub(super) async fn ask(
    ConnectInfo(peer): ConnectInfo<Peer>,
    State(control): State<Control>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if !control.hears(peer) {
        return refuse(
            StatusCode::FORBIDDEN,
            "only root may ask the agent to change the machine",
        );
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let (Some(by), Some(name)) = (header(BY), header(NAME)) else {
        return refuse(StatusCode::BAD_REQUEST, "the question names no config");
    };
    let Ok(_permit) = control.body.try_acquire() else {
        let busy = "the agent is reading another config; try again";
        return refuse(StatusCode::SERVICE_UNAVAILABLE, busy);
    };
    let config = match read(body, LARGEST).await {
        Ok(config) => config,
        Err(refusal) => return refusal,
    };
    let (reply, answer) = oneshot::channel();
    let ask = Ask {
        by: by.to_owned(),
        name: name.to_owned(),
        config,
        reply,
    };
    match control.answer(Question::Take(ask), answer).await {
        Ok(taken) => {
            let body = serde_json::to_vec(&taken).unwrap_or_default();
            ([(CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(refusal) => refusal,
    }
}

/// Its files may be secret, so it is told to those alone who might ask for one.
pub(super) async fn wanted(
    ConnectInfo(peer): ConnectInfo<Peer>,
    State(control): State<Control>,
) -> Response {
    if !control.hears(peer) {
        return refuse(
            StatusCode::FORBIDDEN,
            "only root may read the config that the agent follows",
        );
    }
    let (reply, answer) = oneshot::channel();
    match control.answer(Question::Wanted(reply), answer).await {
        Ok(WantedConfig { name, config }) => {
            let kind = (CONTENT_TYPE.as_str(), "application/json".to_owned());
            ([kind, (NAME, name)], config).into_response()
        }
        Err(refusal) => refusal,
    }
}

/// Reads a request's body of at most `longest` bytes.
async fn read(mut body: Body, longest: usize) -> Result<Vec<u8>, Response> {
    let too_large = || {
        let why = format!("a config may have at most {longest} bytes");
        refuse(StatusCode::PAYLOAD_TOO_LARGE, &why)
    };
    // Memory is used as the bytes come, and not copied on the way.
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

impl Control {
    /// Passes questions of root and of the agent's own user to `to`.
    pub fn new(to: mpsc::Sender<Question>, own_uid: u32) -> Self {
        Self {
            to,
            own_uid,
            body: Arc::new(Semaphore::new(1)),
        }
    }

    fn hears(&self, peer: Peer) -> bool {
        let heard = |uid| uid == 0 || uid == self.own_uid;
        peer.uid.is_some_and(heard)
    }

    async fn answer<T>(
        &self,
        question: Question,
        answer: oneshot::Receiver<Result<T, String>>,
    ) -> Result<T, Response> {
        // A full queue is a person who asks faster than a file is written.
        if self.to.try_send(question).is_err() {
            let busy = "the agent takes no configs now";
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
