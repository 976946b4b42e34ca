//! PID 1's own socket, `/run/systemd/private`, which works without a bus.
//!
//! PID 1 puts `org.freedesktop.systemd1` into the sender field of all its messages there. That is
//! not a unique name, so zbus refuses such a message and closes the connection. On a connection
//! between two peers the sender has no meaning, so the field is removed before zbus reads the
//! message.

use std::{
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::{OwnedReadHalf, OwnedWriteHalf},
};
use zbus::{
    Connection, Guid,
    connection::{
        Builder,
        socket::{ReadHalf, Socket, Split, WriteHalf},
    },
    export::async_trait::async_trait,
};

/// Every message starts with this many bytes, which contain the length of the rest (D-Bus
/// specification, "Message Format").
const FIXED_HEADER_BYTES: usize = 16;
/// The longest message that the specification allows: 128 MiB.
const MAX_DBUS_MESSAGE_BYTES: usize = 1 << 27;
/// The header field that carries the sender.
const SENDER_FIELD: u8 = 7;
/// A D-Bus server answers `AUTH` with `OK` and 32 digits; a longer line is from something else.
const MAX_AUTH_LINE_BYTES: usize = 512;

/// Authenticates as this process's user and turns the stream into a connection.
pub(super) async fn connect(stream: UnixStream) -> zbus::Result<Connection> {
    stream.set_nonblocking(true)?;
    let mut stream = tokio::net::UnixStream::from_std(stream)?;
    let guid = authenticate(&mut stream).await?;
    let (reader, writer) = stream.into_split();
    Builder::authenticated_socket(SocketLine { reader, writer }, guid)
        .p2p()
        .build()
        .await
}

async fn authenticate(stream: &mut tokio::net::UnixStream) -> zbus::Result<Guid<'static>> {
    let uid = nix::unistd::geteuid().to_string();
    let hex: String = uid.bytes().map(|digit| format!("{digit:02x}")).collect();
    let hello = format!("\0AUTH EXTERNAL {hex}\r\nBEGIN\r\n");
    stream.write_all(hello.as_bytes()).await?;
    // Byte by byte, because the first message may follow the line immediately.
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        if line.len() == MAX_AUTH_LINE_BYTES {
            return Err(zbus::Error::Handshake("the answer is too long".to_owned()));
        }
        line.push(stream.read_u8().await?);
    }
    let line = String::from_utf8_lossy(&line);
    let Some(guid) = line.strip_prefix("OK ") else {
        let refused = format!("refused: {}", line.trim_end());
        return Err(zbus::Error::Handshake(refused));
    };
    Ok(Guid::try_from(guid.trim_end())?.to_owned())
}

#[derive(Debug)]
struct SocketLine {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
}

impl Socket for SocketLine {
    type ReadHalf = MessageReader;
    type WriteHalf = Writer;

    fn split(self) -> Split<MessageReader, Writer> {
        let reader = MessageReader {
            from: self.reader,
            message: Vec::new(),
            given: 0,
        };
        Split::new(reader, Writer(self.writer))
    }
}

/// Reads whole messages and returns their bytes.
#[derive(Debug)]
struct MessageReader {
    from: OwnedReadHalf,
    message: Vec<u8>,
    given: usize,
}

impl MessageReader {
    async fn next_message(&mut self) -> io::Result<Vec<u8>> {
        let mut message = vec![0; FIXED_HEADER_BYTES];
        self.from.read_exact(&mut message).await?;
        let frame = MessageFrame::of(&message)?;
        message.resize(frame.total(), 0);
        self.from
            .read_exact(&mut message[FIXED_HEADER_BYTES..])
            .await?;
        Ok(frame.without_sender(message))
    }
}

#[async_trait]
impl ReadHalf for MessageReader {
    async fn recvmsg(&mut self, buffer: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
        if self.given == self.message.len() {
            self.message = match self.next_message().await {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Vec::new(),
                message => message?,
            };
            self.given = 0;
        }
        let rest = &self.message[self.given..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        // We did not offer to accept descriptors, so PID 1 passes none.
        Ok((count, Vec::new()))
    }
}

#[derive(Debug)]
struct Writer(OwnedWriteHalf);

#[async_trait]
impl WriteHalf for Writer {
    async fn sendmsg(&mut self, buffer: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<usize> {
        self.0.write(buffer).await
    }

    async fn close(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}

/// The layout of one message.
#[derive(Clone, Copy)]
struct MessageFrame {
    little: bool,
    fields: usize,
    body: usize,
}

impl MessageFrame {
    fn of(fixed: &[u8]) -> io::Result<Self> {
        let little = match fixed[0] {
            b'l' => true,
            b'B' => false,
            _ => return Err(io::Error::other("no D-Bus message")),
        };
        let length = |at| number(fixed, at, little).unwrap_or_default();
        let frame = Self {
            little,
            fields: length(12),
            body: length(4),
        };
        if frame.fields > MAX_DBUS_MESSAGE_BYTES
            || frame.body > MAX_DBUS_MESSAGE_BYTES
            || frame.total() > MAX_DBUS_MESSAGE_BYTES
        {
            return Err(io::Error::other("a D-Bus message longer than 128 MiB"));
        }
        Ok(frame)
    }

    fn total(self) -> usize {
        to_eight(FIXED_HEADER_BYTES + self.fields) + self.body
    }

    /// The message without its sender; unchanged if it has none or is malformed.
    fn without_sender(self, mut message: Vec<u8>) -> Vec<u8> {
        let end = FIXED_HEADER_BYTES + self.fields;
        let mut previous = FIXED_HEADER_BYTES;
        let mut start = FIXED_HEADER_BYTES;
        while start < end {
            let Some(stop) = self.field_end(&message, start).filter(|stop| *stop <= end) else {
                return message;
            };
            if message[start] != SENDER_FIELD {
                previous = stop;
                start = to_eight(stop);
                continue;
            }
            let next = to_eight(stop);
            // Fields start at multiples of eight, so the others keep their alignment.
            let fields = if next < end {
                self.fields - (next - start)
            } else {
                previous - FIXED_HEADER_BYTES
            };
            let Ok(length) = u32::try_from(fields) else {
                return message;
            };
            let length = if self.little {
                length.to_le_bytes()
            } else {
                length.to_be_bytes()
            };
            message[12..16].copy_from_slice(&length);
            message.drain(start..next);
            return message;
        }
        message
    }

    /// The end of the field that starts at `start`: its code, a signature of one letter, a value.
    fn field_end(self, message: &[u8], start: usize) -> Option<usize> {
        let value = start + 4;
        match message.get(start + 1..value)? {
            [1, b's' | b'o', 0] => Some(value + 4 + number(message, value, self.little)? + 1),
            [1, b'g', 0] => Some(value + 1 + usize::from(*message.get(value)?) + 1),
            [1, b'u', 0] => Some(value + 4),
            _ => None,
        }
        .filter(|stop| *stop <= message.len())
    }
}

fn number(bytes: &[u8], at: usize, little: bool) -> Option<usize> {
    let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    let number = if little {
        u32::from_le_bytes(four)
    } else {
        u32::from_be_bytes(four)
    };
    usize::try_from(number).ok()
}

fn to_eight(at: usize) -> usize {
    at.next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use zbus::Message;

    use super::*;

    fn bytes_of(message: &Message) -> Vec<u8> {
        let mut bytes = message.data().to_vec();
        // Each message has its own serial number.
        bytes[8..12].fill(1);
        bytes
    }

    fn signal(sender: Option<&str>) -> Vec<u8> {
        let mut signal = Message::signal("/org/freedesktop/systemd1", "a.b.Manager", "JobRemoved");
        if let Some(sender) = sender {
            signal = signal.sender(sender);
        }
        bytes_of(&signal.build(&(7_u32, "a.service", "done")).unwrap())
    }

    fn stripped(bytes: Vec<u8>) -> Vec<u8> {
        let frame = MessageFrame::of(&bytes[..FIXED_HEADER_BYTES]).unwrap();
        assert_eq!(frame.total(), bytes.len());
        frame.without_sender(bytes)
    }

    #[test]
    fn stripping_the_sender_gives_the_same_dbus_message_as_without_one() {
        for sender in [":1.7", ":1.77777", ":org.freedesktop.systemd"] {
            let with = signal(Some(sender));
            assert_ne!(with, signal(None));
            assert_eq!(stripped(with), signal(None), "{sender}");
        }
        assert_eq!(stripped(signal(None)), signal(None));
    }

    #[test]
    fn stripping_a_last_sender_field_leaves_no_padding() {
        // fields: MEMBER "Hi" (8 + 3 bytes, 5 of padding), SENDER ":1.7" (8 + 5 bytes)
        let fixed = |fields: u8| [b'l', 4, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, fields, 0, 0, 0];
        let member = [3, 1, b's', 0, 2, 0, 0, 0, b'H', b'i', 0, 0, 0, 0, 0, 0];
        let sender = [
            7, 1, b's', 0, 4, 0, 0, 0, b':', b'1', b'.', b'7', 0, 0, 0, 0,
        ];
        let with = [fixed(29), member, sender].concat();
        assert_eq!(stripped(with), [fixed(11), member].concat());
    }

    #[test]
    fn dbus_messages_with_invalid_lengths_are_rejected() {
        let mut bytes = signal(None);
        bytes[4..8].fill(0xff);
        assert!(MessageFrame::of(&bytes[..FIXED_HEADER_BYTES]).is_err());
        assert!(MessageFrame::of(b"GET / HTTP/1.1\r\n").is_err());
    }
}
