//! Counts what a vendor sent before it is decoded.
//!
//! Two bytes on the wire can become a structure of 250 in memory, so a limit on bytes alone bounds
//! nothing. Every part that takes memory of its own is counted on the encoded message first.

use std::marker::PhantomData;

use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::{
    api::v1::{FromAgent, FromVendor},
    limits::{HELLO_BYTES, MESSAGE_PARTS},
};

/// What is looked at before a message is decoded.
pub trait Guard {
    /// Refuses what would take too much memory; `first` says that it is the first of its stream.
    fn check(wire: &[u8], first: bool) -> Result<(), Status>;
}

impl Guard for FromVendor {
    fn check(wire: &[u8], first: bool) -> Result<(), Status> {
        if first && wire.len() > HELLO_BYTES {
            let found = wire.len();
            return Err(Status::resource_exhausted(format!(
                "the first message has {found} bytes; Hello has at most {HELLO_BYTES}"
            )));
        }
        match parts(wire, &FROM_VENDOR) {
            Some(found) if found > MESSAGE_PARTS => Err(Status::resource_exhausted(format!(
                "the message has {found} parts; at most {MESSAGE_PARTS} are read"
            ))),
            Some(_) => Ok(()),
            None => Err(Status::invalid_argument(
                "the message is not encoded as protobuf wants it",
            )),
        }
    }
}

impl Guard for FromAgent {
    /// The agent is trusted.
    fn check(_: &[u8], _: bool) -> Result<(), Status> {
        Ok(())
    }
}

/// A field that counts: its number, whether each byte of it counts, and what is counted inside.
struct Part(u32, Weight, Option<&'static Shape>);
type Shape = [Part];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// It is there once at most, whatever is sent.
    None,
    /// Each occurrence is one part.
    One,
    /// A packed list: each byte may be an element.
    Bytes,
}

const RECIPE: [Part; 5] = [
    Part(1, Weight::One, None),
    Part(2, Weight::One, None),
    Part(3, Weight::One, None),
    Part(4, Weight::One, None),
    Part(5, Weight::One, None),
];
const DEVICE: [Part; 3] = [
    Part(4, Weight::Bytes, None),
    Part(5, Weight::One, None),
    Part(6, Weight::None, Some(&RECIPE)),
];
const SNAPSHOT: [Part; 1] = [Part(3, Weight::One, Some(&DEVICE))];
const CHOICE: [Part; 1] = [Part(1, Weight::One, None)];
const ANSWER: [Part; 2] = [
    Part(2, Weight::None, Some(&RECIPE)),
    Part(4, Weight::None, Some(&CHOICE)),
];
const HELLO: [Part; 2] = [Part(1, Weight::One, None), Part(4, Weight::One, None)];
const FROM_VENDOR: [Part; 3] = [
    Part(1, Weight::None, Some(&HELLO)),
    Part(2, Weight::None, Some(&SNAPSHOT)),
    Part(3, Weight::None, Some(&ANSWER)),
];

/// How many parts the encoded message has; none when it is not encoded as protobuf wants it.
fn parts(mut wire: &[u8], shape: &Shape) -> Option<usize> {
    let mut found = 0_usize;
    while !wire.is_empty() {
        let key = varint(&mut wire)?;
        let field = u32::try_from(key >> 3).ok()?;
        let part = shape.iter().find(|part| part.0 == field);
        let mut body: &[u8] = &[];
        match key & 7 {
            0 => drop(varint(&mut wire)?),
            1 => drop(take(&mut wire, 8)?),
            2 => {
                let length = usize::try_from(varint(&mut wire)?).ok()?;
                body = take(&mut wire, length)?;
            }
            5 => drop(take(&mut wire, 4)?),
            // Groups nest without a length, and this contract has none.
            _ => return None,
        }
        let Some(Part(_, weight, inside)) = part else {
            continue;
        };
        found += match weight {
            Weight::None => 0,
            Weight::One => 1,
            Weight::Bytes => body.len().max(1),
        };
        if let Some(inside) = inside {
            found += parts(body, inside)?;
        }
    }
    Some(found)
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

/// The codec of this contract: protobuf, guarded.
#[derive(Debug)]
pub struct Guarded<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Guarded<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for Guarded<T, U>
where
    T: Message + Send + 'static,
    U: Message + Guard + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = GuardedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        GuardedDecoder {
            inner: ProstDecoder::default(),
            first: true,
        }
    }
}

/// Looks first, then decodes.
#[derive(Debug)]
pub struct GuardedDecoder<U> {
    inner: ProstDecoder<U>,
    first: bool,
}

impl<U: Message + Guard + Default> Decoder for GuardedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        use prost::bytes::Buf as _;
        let first = std::mem::take(&mut self.first);
        // The buffer is one piece; were it not, too little would be counted.
        if buf.chunk().len() < buf.remaining() {
            return Err(Status::internal("the message came in pieces"));
        }
        U::check(buf.chunk(), first)?;
        self.inner.decode(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vendor::api::v1::{
        Answer, Choice, Device, Hello, Node, Recipe, Snapshot, answer, from_vendor::Said,
    };

    fn encoded(said: Said) -> Vec<u8> {
        FromVendor { said: Some(said) }.encode_to_vec()
    }

    #[test]
    fn every_part_of_a_message_is_counted() {
        let device = Device {
            id: "a".into(),
            numa: vec![0, 1],
            attributes: [("k".to_owned(), "v".to_owned())].into(),
            recipe: Some(Recipe {
                nodes: vec![Node::default(), Node::default()],
                env: [("K".to_owned(), "V".to_owned())].into(),
                cdi: vec!["x".into()],
                ..Recipe::default()
            }),
            ..Device::default()
        };
        let snapshot = Snapshot {
            devices: vec![device.clone(), device],
            ..Snapshot::default()
        };
        let wire = encoded(Said::Snapshot(snapshot));
        assert_eq!(
            parts(&wire, &FROM_VENDOR),
            Some(2 * (1 + 2 + 1 + 2 + 1 + 1))
        );
        let choice = Choice {
            devices: vec!["a".into(), "b".into()],
        };
        let wire = encoded(Said::Answer(Answer {
            id: 1,
            answer: Some(answer::Answer::Choice(choice)),
        }));
        assert_eq!(parts(&wire, &FROM_VENDOR), Some(2));
    }

    #[test]
    fn a_message_of_nothing_but_small_parts_is_refused_before_it_is_decoded() {
        let snapshot = Snapshot {
            devices: vec![Device::default(); MESSAGE_PARTS + 1],
            ..Snapshot::default()
        };
        let wire = encoded(Said::Snapshot(snapshot));
        let refused = FromVendor::check(&wire, false).unwrap_err();
        assert!(refused.message().contains("parts"), "{refused}");
        let hello = Hello {
            resources: vec!["x".repeat(100); 1000],
            ..Hello::default()
        };
        let wire = encoded(Said::Hello(hello));
        assert!(FromVendor::check(&wire, true).is_err());
        assert!(FromVendor::check(&wire, false).is_ok());
    }

    #[test]
    fn what_is_no_protobuf_is_refused() {
        for wire in [&[0xff; 11][..], &[0x12, 0x05, 0x00], &[0x0b], &[0x80]] {
            assert!(FromVendor::check(wire, false).is_err(), "{wire:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(wire in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let counted = FromVendor::check(&wire, false);
            // Whatever decodes was understood by the counter, too.
            if FromVendor::decode(&wire[..]).is_ok() && counted.is_err() {
                let groups = counted.is_err_and(|status| status.code() == tonic::Code::InvalidArgument);
                proptest::prop_assert!(groups);
            }
        }
    }
}
