//! Accepts HTTP/2 requests whose `:authority` is a path.
//!
//! Many gRPC libraries, when they dial a socket by its path, send that path where HTTP/2 has the
//! host name: unchanged or percent-encoded. The kubelet's library ignores it; ours ends such a
//! stream as malformed. Nothing here depends on the value, so it is replaced by one letter before
//! the library reads it.
//!
//! Header blocks are compressed (RFC 7541), and a header that was sent once may later be referenced
//! by its index in a table. The replacement is no longer than any value, so the reader's table
//! never drops an entry that the sender still has in its own, and indexes stay valid.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
    time::{Instant, Sleep, sleep_until},
};

/// Bytes of one read. Most messages are smaller.
const READ_CHUNK_BYTES: usize = 4096;

/// Bytes of the connection preface (RFC 9113, 3.4).
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
/// Bytes of the largest frame that the library accepts; it rejects larger ones itself.
const MAX_FRAME_BYTES: usize = 16 * 1024;

/// The rate limit's cost of a frame with little or no data: each such frame has to be processed,
/// and most are answered.
const SMALL_FRAME_COST: Duration = Duration::from_millis(2);
/// This many frames at once are not delayed.
const BURST_FRAMES: u32 = 1000;
/// Bytes of a data frame that costs nothing here: its content is limited elsewhere.
const MIN_FREE_DATA_BYTES: usize = 1024;

const DATA: u8 = 0x0;
const HEADERS: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The index of `:authority` in the static table.
const AUTHORITY_INDEX: usize = 1;
const AUTHORITY_NAME: &[u8] = b":authority";
/// The same name in the static Huffman code.
const AUTHORITY_NAME_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
/// An encoded string of one letter.
const REPLACEMENT_VALUE: &[u8] = &[1, b'a'];

/// A connection that replaces path authorities in the data read from it, and limits the rate of
/// small frames.
#[derive(Debug)]
pub struct AuthorityRewrite {
    stream: UnixStream,
    frames: FrameSplitter,
    /// Data that was received and has not been read by the library.
    ready: Vec<u8>,
    /// The time until which the received frames use up the rate limit; see [`SMALL_FRAME_COST`].
    paid: Instant,
    wait: Option<Pin<Box<Sleep>>>,
}

impl AuthorityRewrite {
    /// Wraps a connection from which nothing was read yet.
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            frames: FrameSplitter::new(),
            ready: Vec::new(),
            paid: Instant::now(),
            wait: None,
        }
    }

    /// Waits until further frames are allowed. A flood of pings, settings or empty frames stays in
    /// the socket.
    fn poll_pace(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (now, count) = (Instant::now(), std::mem::take(&mut self.frames.small));
        let rested = now
            .checked_sub(SMALL_FRAME_COST * BURST_FRAMES)
            .unwrap_or(now);
        self.paid = self.paid.max(rested) + SMALL_FRAME_COST * count;
        if self.paid > now && self.wait.is_none() {
            self.wait = Some(Box::pin(sleep_until(self.paid)));
        }
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
            self.wait = None;
        }
        Poll::Ready(())
    }

    /// The underlying connection, for its peer credentials.
    pub const fn stream(&self) -> &UnixStream {
        &self.stream
    }
}

impl AsyncRead for AuthorityRewrite {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        // A header frame is held back until it is complete.
        while this.ready.is_empty() {
            let mut room = [0; READ_CHUNK_BYTES];
            let mut came = ReadBuf::new(&mut room);
            ready!(this.poll_pace(cx));
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut came))?;
            if came.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.frames.feed(came.filled(), &mut this.ready);
        }
        let now = this.ready.len().min(buf.remaining());
        buf.put_slice(&this.ready[..now]);
        this.ready.drain(..now);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for AuthorityRewrite {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// One direction of one connection, split into frames.
#[derive(Debug)]
struct FrameSplitter {
    /// Bytes still to be passed on unchanged.
    pass: usize,
    /// A frame header, and for header frames the data after it.
    held: Vec<u8>,
    /// Small frames received since the last poll.
    small: u32,
}

impl FrameSplitter {
    fn new() -> Self {
        Self {
            pass: PREFACE_BYTES,
            held: Vec::new(),
            small: 0,
        }
    }

    /// Processes received data and adds to `out` the part that can be read.
    fn feed(&mut self, mut came: &[u8], out: &mut Vec<u8>) {
        while !came.is_empty() {
            if self.pass > 0 {
                let (now, later) = came.split_at(self.pass.min(came.len()));
                out.extend_from_slice(now);
                self.pass -= now.len();
                came = later;
                continue;
            }
            let wanted = self.wanted() - self.held.len();
            let (now, later) = came.split_at(wanted.min(came.len()));
            self.held.extend_from_slice(now);
            came = later;
            if self.held.len() == FRAME_HEADER_BYTES
                && (self.held[3] != DATA || self.length() < MIN_FREE_DATA_BYTES)
            {
                self.small += 1;
            }
            if self.held.len() == FRAME_HEADER_BYTES && !self.is_block() {
                self.pass = self.length();
                out.append(&mut self.held);
            } else if self.held.len() >= FRAME_HEADER_BYTES && self.held.len() == self.wanted() {
                let frame = std::mem::take(&mut self.held);
                match rewritten(&frame) {
                    Some(changed) => out.extend(changed),
                    None => out.extend(frame),
                }
            }
        }
    }

    /// The length that the held data needs.
    fn wanted(&self) -> usize {
        match self.held.len() >= FRAME_HEADER_BYTES && self.is_block() {
            true => FRAME_HEADER_BYTES + self.length(),
            false => FRAME_HEADER_BYTES,
        }
    }

    fn length(&self) -> usize {
        let bytes = self.held.iter().take(3);
        bytes.fold(0, |length, byte| length << 8 | usize::from(*byte))
    }

    /// Whether it is a complete header frame: plugins' headers are far too small to be split.
    fn is_block(&self) -> bool {
        let (kind, flags) = (self.held.get(3), self.held.get(4));
        kind == Some(&HEADERS)
            && flags.is_some_and(|flags| flags & END_HEADERS != 0)
            && self.length() <= MAX_FRAME_BYTES
    }
}

/// The frame with another authority; `None` if it cannot be parsed, in which case the library
/// reports the error.
fn rewritten(frame: &[u8]) -> Option<Vec<u8>> {
    let (head, mut rest) = frame.split_at_checked(FRAME_HEADER_BYTES)?;
    let mut flags = *head.get(4)?;
    if flags & PADDED != 0 {
        let (padding, body) = rest.split_first()?;
        rest = body.get(..body.len().checked_sub(usize::from(*padding))?)?;
        flags &= !PADDED;
    }
    let priority = if flags & PRIORITY != 0 { 5 } else { 0 };
    let (priority, block) = rest.split_at_checked(priority)?;
    let block = replaced(block)?;
    let length = u32::try_from(priority.len() + block.len()).ok()?;
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([HEADERS, flags]);
    frame.extend_from_slice(head.get(5..)?);
    frame.extend_from_slice(priority);
    frame.extend(block);
    Some(frame)
}

/// A header block with another authority.
fn replaced(block: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(block.len());
    let mut rest = block;
    while let Some(first) = rest.first() {
        let field = rest;
        let bits = match first {
            // An index into the tables.
            0x80.. => 7,
            // A value that is added to the table.
            0x40..0x80 => 6,
            // A new size of the table.
            0x20..0x40 => 5,
            // A value that is not added.
            ..0x20 => 4,
        };
        let (index, mut value) = integer(rest, bits)?;
        let mut ours = index == AUTHORITY_INDEX;
        if matches!(bits, 5 | 7) {
            rest = value;
            out.extend_from_slice(before(field, rest));
            continue;
        }
        if index == 0 {
            let (name, after) = string(value)?;
            ours = name == AUTHORITY_NAME || name == AUTHORITY_NAME_HUFFMAN;
            value = after;
        }
        let (text, after) = string(value)?;
        if ours && !text.is_empty() {
            out.extend_from_slice(before(field, value));
            out.extend_from_slice(REPLACEMENT_VALUE);
        } else {
            out.extend_from_slice(before(field, after));
        }
        rest = after;
    }
    Some(out)
}

/// The part of `all` before `rest`, which is its end.
fn before<'a>(all: &'a [u8], rest: &[u8]) -> &'a [u8] {
    all.get(..all.len() - rest.len()).unwrap_or(all)
}

/// Decodes an integer whose first `bits` are the last of the first byte; returns also the rest.
fn integer(bytes: &[u8], bits: u8) -> Option<(usize, &[u8])> {
    let (first, mut rest) = bytes.split_first()?;
    let mask = (1_usize << bits) - 1;
    let mut value = usize::from(*first) & mask;
    if value < mask {
        return Some((value, rest));
    }
    // No length or index needs more than three further bytes.
    for shift in [0, 7, 14] {
        let (byte, after) = rest.split_first()?;
        rest = after;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((value, rest));
        }
    }
    None
}

/// Splits off an encoded string, Huffman-coded or not; returns also the rest.
fn string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = integer(bytes, 7)?;
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests;
