//! The gRPC codec of the vendor API, which measures a vendor's message before decoding it.
//!
//! A limit on bytes alone does not bound memory, see [`crate::wire`].

use std::marker::PhantomData;

use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::{
    api::v1::FromAgent,
    heard::FromVendor,
    limits::{HELLO_BYTES, MESSAGE_PARTS},
};
use crate::wire::{Part, Weight, parts};

/// A check of the encoded message.
pub trait Guard {
    /// Refuses a message that would need too much memory when decoded; `first` marks the first
    /// message of its stream.
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
            Ok(found) if found > MESSAGE_PARTS => Err(Status::resource_exhausted(format!(
                "the message has {found} parts; at most {MESSAGE_PARTS} are read"
            ))),
            Ok(_) => Ok(()),
            Err(why) => Err(Status::invalid_argument(format!("the message: {why}"))),
        }
    }
}

impl Guard for FromAgent {
    /// Messages of the agent are trusted.
    fn check(_: &[u8], _: bool) -> Result<(), Status> {
        Ok(())
    }
}

const RECIPE: [Part; 5] = [
    Part(1, Weight::One, None),
    Part(2, Weight::One, None),
    Part(3, Weight::One, None),
    Part(4, Weight::One, None),
    Part(5, Weight::One, None),
];
const DEVICE: [Part; 4] = [
    Part(4, Weight::Bytes, None),
    Part(5, Weight::One, None),
    Part(6, Weight::None, Some(&RECIPE)),
    Part(7, Weight::One, None),
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

/// The codec: protobuf with a [`Guard`].
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

/// A decoder that runs the guard before decoding.
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
        // The buffer must be contiguous; otherwise the guard would count only its first part.
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
        self as api, Answer, Choice, Device, Hello, Node, Recipe, Snapshot, answer,
        from_vendor::Said,
    };

    fn encoded(said: Said) -> Vec<u8> {
        api::FromVendor { said: Some(said) }.encode_to_vec()
    }

    #[test]
    fn every_part_of_a_message_is_counted() {
        let device = Device {
            id: "a".into(),
            numa: vec![0, 1],
            attributes: [("k".to_owned(), "v".to_owned())].into(),
            capacity: [("memory".to_owned(), "1Gi".to_owned())].into(),
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
            Ok(2 * (1 + 2 + 1 + 1 + 2 + 1 + 1))
        );
        let choice = Choice {
            devices: vec!["a".into(), "b".into()],
        };
        let wire = encoded(Said::Answer(Answer {
            id: 1,
            answer: Some(answer::Answer::Choice(choice)),
        }));
        assert_eq!(parts(&wire, &FROM_VENDOR), Ok(2));
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
            // Every message that decodes must also be one that the counter understood.
            if FromVendor::decode(&wire[..]).is_ok() && counted.is_err() {
                let groups = counted.is_err_and(|status| status.code() == tonic::Code::InvalidArgument);
                proptest::prop_assert!(groups);
            }
        }
    }
}
