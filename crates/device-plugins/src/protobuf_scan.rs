//! Examines protobuf messages in their encoded form, before they are decoded.
//!
//! Two bytes on the wire can become a structure of 250 in memory, so a limit on bytes alone does
//! not bound memory. Every part that allocates memory is therefore counted in the encoded message
//! first.

/// A field that counts: its number, how it counts, and the shape of its content.
#[derive(Debug)]
pub struct CountedField(pub u32, pub FieldCost, pub Option<&'static MessageShape>);

/// The fields of a message that count; all others need no memory of their own.
pub type MessageShape = [CountedField];

/// How an occurrence of a field counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldCost {
    /// Not at all: the decoded message holds it once at most.
    None,
    /// Each occurrence is one part.
    One,
    /// A packed list: each byte may be an element.
    Bytes,
}

/// The bytes are not valid protobuf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not valid protobuf")]
pub struct Malformed;

/// Counts the parts of the encoded message.
pub fn parts(wire: &[u8], shape: &MessageShape) -> Result<usize, Malformed> {
    let mut found = 0;
    for field in fields(wire) {
        let (number, body) = field?;
        let Some(CountedField(_, weight, inside)) = shape.iter().find(|part| part.0 == number)
        else {
            continue;
        };
        found += match weight {
            FieldCost::None => 0,
            FieldCost::One => 1,
            FieldCost::Bytes => body.len().max(1),
        };
        if let Some(inside) = inside {
            found += parts(body, inside)?;
        }
    }
    Ok(found)
}

/// The fields of an encoded message by number, in order; fields that are not length-delimited have
/// an empty body. Ends with the first error.
fn fields(mut wire: &[u8]) -> impl Iterator<Item = Result<(u32, &[u8]), Malformed>> {
    std::iter::from_fn(move || {
        if wire.is_empty() {
            return None;
        }
        let field = field(&mut wire).ok_or(Malformed);
        if field.is_err() {
            wire = &[];
        }
        Some(field)
    })
}

/// The encoded message with the texts at `path` (the numbers of nested fields) replaced where
/// `with` returns a replacement. All other bytes are unchanged.
pub fn replaced(
    mut wire: &[u8],
    path: &[u32],
    with: &impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let (first, deeper) = path.split_first()?;
    let mut out = Vec::with_capacity(wire.len());
    while !wire.is_empty() {
        let whole = wire;
        let (number, body) = field(&mut wire)?;
        let raw = &whole[..whole.len() - wire.len()];
        let is_text = raw.first().is_some_and(|key| key & 7 == 2);
        let new = match (number == *first && is_text, deeper.is_empty()) {
            (false, _) => None,
            (true, true) => with(body),
            (true, false) => Some(replaced(body, deeper, with)?),
        };
        match new {
            Some(new) => {
                put_varint(u64::from(number) << 3 | 2, &mut out);
                put_varint(new.len() as u64, &mut out);
                out.extend(new);
            }
            None => out.extend_from_slice(raw),
        }
    }
    Some(out)
}

fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while let low @ 0x80.. = number {
        out.push(low.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn field<'a>(wire: &mut &'a [u8]) -> Option<(u32, &'a [u8])> {
    let key = varint(wire)?;
    let mut body: &[u8] = &[];
    match key & 7 {
        0 => drop(varint(wire)?),
        1 => drop(take(wire, 8)?),
        2 => {
            let length = usize::try_from(varint(wire)?).ok()?;
            body = take(wire, length)?;
        }
        5 => drop(take(wire, 4)?),
        // Groups nest without a length, and no contract here uses them.
        _ => return None,
    }
    Some((u32::try_from(key >> 3).ok()?, body))
}

fn take<'a>(wire: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (head, rest) = wire.split_at_checked(length)?;
    *wire = rest;
    Some(head)
}

fn varint(wire: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *take(wire, 1)?.first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// An incremental parser for a message that arrives in chunks and is never in memory as a whole: it
/// extracts the bodies of one field, up to a maximum size.
#[derive(Debug)]
pub struct StreamSplitter {
    /// The field to extract.
    number: u32,
    /// Bytes of the longest body that is extracted.
    longest: usize,
    at: ParserState,
    /// A varint, or a body to extract, as far as received.
    held: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParserState {
    Key,
    /// The value of a numeric field.
    Number,
    /// The length of a body; whether it is to be extracted.
    Length(bool),
    /// This many bytes are skipped.
    Skip(usize),
    /// This many bytes form a body to extract.
    Body(usize),
}

/// The results of [`StreamSplitter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitItem<'a> {
    /// A complete body of the field.
    Body(&'a [u8]),
    /// A body that exceeds the maximum size.
    TooLong,
}

/// No varint has more bytes.
const MAX_VARINT_BYTES: usize = 10;

impl StreamSplitter {
    /// Starts a message.
    pub const fn new(number: u32, longest: usize) -> Self {
        Self {
            number,
            longest,
            at: ParserState::Key,
            held: Vec::new(),
        }
    }

    /// Parses the next chunk; `found` receives the bodies that it completes.
    pub fn feed(
        &mut self,
        mut came: &[u8],
        mut found: impl FnMut(SplitItem<'_>),
    ) -> Result<(), Malformed> {
        while !came.is_empty() {
            match self.at {
                ParserState::Skip(left) => {
                    let now = left.min(came.len());
                    came = came.get(now..).unwrap_or_default();
                    self.at = if now == left {
                        ParserState::Key
                    } else {
                        ParserState::Skip(left - now)
                    };
                }
                ParserState::Body(length) => {
                    let now = (length - self.held.len()).min(came.len());
                    self.held
                        .extend_from_slice(take(&mut came, now).unwrap_or_default());
                    if self.held.len() == length {
                        found(SplitItem::Body(&self.held));
                        self.held.clear();
                        self.at = ParserState::Key;
                    }
                }
                ParserState::Key | ParserState::Number | ParserState::Length(_) => {
                    if let Some(value) = self.number(&mut came)? {
                        self.on_number(value, &mut found)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the message may end here.
    pub fn is_whole(&self) -> bool {
        self.at == ParserState::Key && self.held.is_empty()
    }

    /// Parses one more byte of a varint; returns its value after the last one.
    fn number(&mut self, came: &mut &[u8]) -> Result<Option<u64>, Malformed> {
        let byte = take(came, 1).and_then(<[u8]>::first).copied();
        self.held.extend(byte);
        match byte {
            Some(byte) if byte < 0x80 => {
                let value = varint(&mut self.held.as_slice()).ok_or(Malformed);
                self.held.clear();
                value.map(Some)
            }
            _ if self.held.len() >= MAX_VARINT_BYTES => Err(Malformed),
            _ => Ok(None),
        }
    }

    fn on_number(
        &mut self,
        value: u64,
        found: &mut impl FnMut(SplitItem<'_>),
    ) -> Result<(), Malformed> {
        self.at = match (self.at, value & 7) {
            (ParserState::Length(wanted), _) => {
                let length = usize::try_from(value).map_err(|_| Malformed)?;
                match (wanted, length) {
                    (true, 0) => {
                        found(SplitItem::Body(&[]));
                        ParserState::Key
                    }
                    (true, length) if length <= self.longest => ParserState::Body(length),
                    (true, length) => {
                        found(SplitItem::TooLong);
                        ParserState::Skip(length)
                    }
                    (false, 0) => ParserState::Key,
                    (false, length) => ParserState::Skip(length),
                }
            }
            (ParserState::Key, 0) => ParserState::Number,
            (ParserState::Key, 1) => ParserState::Skip(8),
            (ParserState::Key, 2) => ParserState::Length(value >> 3 == u64::from(self.number)),
            (ParserState::Key, 5) => ParserState::Skip(4),
            (ParserState::Key, _) => return Err(Malformed),
            _ => ParserState::Key,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
