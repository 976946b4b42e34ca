//! Reads a plugin's list stream incrementally, device by device.
//!
//! gRPC's own reader buffers a whole message before it is decoded, and keeps a buffer of that size
//! for as long as the stream lives. A list may have any number of devices, so here it is parsed as
//! it arrives, and only the devices that are kept are held in memory.

use std::{future::poll_fn, pin::Pin, sync::Arc, time::Duration};

use prost::bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::yield_now,
    time::{Instant, timeout_at},
};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Body as _, Service as _,
        http::{Method, Request, Response, StatusCode, Uri, Version, header},
    },
};

use super::{
    device_list::{ListBuilder, ListDecodeError, PluginDeviceList},
    plugin_client::PluginConnection,
};

/// Bytes that a plugin may send in one message: four times what the kubelet accepts, to which it is
/// cut.
const MAX_PLUGIN_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Maximum time for one list once it has begun; a trickle of bytes would block the vendor's other
/// lists.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// After this many chunks of a list, other tasks get their turn.
const CHUNKS_PER_TURN: usize = 16;

const LIST_AND_WATCH_PATH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
/// The frame of an empty message: uncompressed, length 0.
const EMPTY_FRAME: &str = "\0\0\0\0\0";
/// Bytes of the gRPC frame header: compression flag and length.
const FRAME_HEADER_BYTES: usize = 5;

/// Lets one list of a vendor be read at a time. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct DecodeTurn(Arc<Semaphore>);

impl Default for DecodeTurn {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

/// The message being read.
#[derive(Debug)]
struct PartialList {
    reading: ListBuilder,
    left: usize,
    until: Instant,
    _turn: OwnedSemaphorePermit,
}

/// The stream.
#[derive(Debug)]
pub(super) struct ListStream {
    body: Body,
    most: usize,
    turns: DecodeTurn,
    /// Received bytes that are not parsed yet.
    came: Bytes,
    head: Vec<u8>,
    begun: Option<PartialList>,
    pieces: usize,
}

impl ListStream {
    /// Opens the plugin's list stream; at most `most` devices of each list are kept.
    pub(super) async fn open(
        connection: &PluginConnection,
        most: usize,
        turns: DecodeTurn,
    ) -> Result<Self, Status> {
        let mut request = Request::new(Body::new(EMPTY_FRAME.to_owned()));
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = Uri::from_static(LIST_AND_WATCH_PATH);
        let headers = request.headers_mut();
        let grpc = header::HeaderValue::from_static("application/grpc");
        headers.insert(header::CONTENT_TYPE, grpc);
        headers.insert(header::TE, header::HeaderValue::from_static("trailers"));
        let mut channel = connection.channel();
        let broken = |error: tonic::transport::Error| Status::from_error(error.into());
        poll_fn(|cx| channel.poll_ready(cx)).await.map_err(broken)?;
        let answer = channel.call(request).await.map_err(broken)?;
        Ok(Self {
            body: taken(answer)?,
            most,
            turns,
            came: Bytes::new(),
            head: Vec::with_capacity(FRAME_HEADER_BYTES),
            begun: None,
            pieces: 0,
        })
    }

    /// The next list; `None` when the plugin ended its stream orderly. Safe to drop: the received
    /// part of a list stays.
    pub(super) async fn next(&mut self) -> Result<Option<PluginDeviceList>, Status> {
        loop {
            if let Some(list) = self.take().await? {
                return Ok(Some(list));
            }
            self.pieces += 1;
            if self.pieces.is_multiple_of(CHUNKS_PER_TURN) {
                yield_now().await;
            }
            let within = self.begun.as_ref().map(|begun| begun.until);
            let frame = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx));
            let frame = match within {
                None => frame.await,
                Some(until) => timeout_at(until, frame).await.map_err(|_| half())?,
            };
            let Some(frame) = frame else {
                return Err(Status::unknown("its stream failed"));
            };
            match frame?.into_data() {
                Ok(data) => self.came = data,
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        return self.over(&trailers);
                    }
                }
            }
        }
    }

    /// The end of the stream, from its trailers.
    fn over(&self, trailers: &header::HeaderMap) -> Result<Option<PluginDeviceList>, Status> {
        match Status::from_header_map(trailers) {
            Some(status) if status.code() != tonic::Code::Ok => Err(status),
            _ if self.begun.is_some() || !self.head.is_empty() => {
                Err(Status::data_loss("its stream ended within a list"))
            }
            _ => Ok(None),
        }
    }

    /// Parses what was received; returns the list that it completes.
    async fn take(&mut self) -> Result<Option<PluginDeviceList>, Status> {
        loop {
            let Some(begun) = &mut self.begun else {
                let now = (FRAME_HEADER_BYTES - self.head.len()).min(self.came.len());
                self.head.extend_from_slice(&self.came.split_to(now));
                if self.head.len() < FRAME_HEADER_BYTES {
                    return Ok(None);
                }
                self.begin().await?;
                continue;
            };
            let now = begun.left.min(self.came.len());
            let piece = self.came.split_to(now);
            begun.reading.feed(&piece).map_err(unreadable)?;
            begun.left -= now;
            if begun.left > 0 {
                return Ok(None);
            }
            let whole = self.begun.take().map(|begun| begun.reading.end());
            return whole.transpose().map_err(unreadable);
        }
    }

    /// Starts a message whose header is complete. Safe to drop while it waits for its turn: the
    /// header stays.
    async fn begin(&mut self) -> Result<(), Status> {
        let left = length(&self.head)?;
        let turn = Arc::clone(&self.turns.0).acquire_owned().await;
        let turn = turn.map_err(|_| Status::internal("lists are no longer read"))?;
        self.head.clear();
        self.begun = Some(PartialList {
            reading: ListBuilder::new(self.most),
            left,
            until: Instant::now() + LIST_TIMEOUT,
            _turn: turn,
        });
        Ok(())
    }
}

/// The response body, if the plugin accepted the call.
fn taken(answer: Response<Body>) -> Result<Body, Status> {
    if let Some(status) = Status::from_header_map(answer.headers())
        && status.code() != tonic::Code::Ok
    {
        return Err(status);
    }
    match answer.status() {
        StatusCode::OK => Ok(answer.into_body()),
        other => Err(Status::unknown(format!(
            "it answers with HTTP status {other}"
        ))),
    }
}

/// The message length from a frame header.
fn length(head: &[u8]) -> Result<usize, Status> {
    let (compressed, length) = head.split_first().unwrap_or((&0, &[]));
    if *compressed != 0 {
        return Err(Status::unimplemented(
            "its list is compressed, which was not requested",
        ));
    }
    let bytes = length.iter();
    let length = bytes.fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    match length {
        ..=MAX_PLUGIN_MESSAGE_BYTES => Ok(length),
        _ => Err(Status::resource_exhausted(format!(
            "its list has {length} bytes; at most {MAX_PLUGIN_MESSAGE_BYTES} are read"
        ))),
    }
}

fn unreadable(why: ListDecodeError) -> Status {
    Status::data_loss(format!("its list cannot be read: {why}"))
}

fn half() -> Status {
    let within = LIST_TIMEOUT.as_secs();
    Status::deadline_exceeded(format!("only part of a list received within {within} s"))
}

#[cfg(test)]
mod tests;
