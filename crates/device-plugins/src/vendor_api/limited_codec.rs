//! The gRPC codec of the vendor API, which measures a vendor's message before decoding it.
//!
//! A limit on bytes alone does not bound memory, see [`crate::protobuf_scan`].

use std::marker::PhantomData;

use prost::Message;
use tonic::{
    Status,
    codec::{Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::{
    api::v1::FromAgent,
    lazy_messages::LazyFromVendor,
    limits::{MAX_HELLO_BYTES, MAX_MESSAGE_PARTS},
};
use crate::protobuf_scan::{CountedField, FieldCost, parts};

/// A check of the encoded message.
pub trait SizeGuard {
    /// Refuses a message that would need too much memory when decoded; `first` marks the first
    /// message of its stream.
    fn check(wire: &[u8], first: bool) -> Result<(), Status>;
}

impl SizeGuard for LazyFromVendor {
    fn check(wire: &[u8], first: bool) -> Result<(), Status> {
        if first && wire.len() > MAX_HELLO_BYTES {
            let found = wire.len();
            return Err(Status::resource_exhausted(format!(
                "the first message has {found} bytes; Hello has at most {MAX_HELLO_BYTES}"
            )));
        }
        match parts(wire, &FROM_VENDOR_SHAPE) {
            Ok(found) if found > MAX_MESSAGE_PARTS => Err(Status::resource_exhausted(format!(
                "the message has {found} parts; at most {MAX_MESSAGE_PARTS} are read"
            ))),
            Ok(_) => Ok(()),
            Err(why) => Err(Status::invalid_argument(format!("the message: {why}"))),
        }
    }
}

impl SizeGuard for FromAgent {
    /// Messages of the agent are trusted.
    fn check(_: &[u8], _: bool) -> Result<(), Status> {
        Ok(())
    }
}

const DEVICE_SPEC_SHAPE: [CountedField; 5] = [
    CountedField(1, FieldCost::One, None),
    CountedField(2, FieldCost::One, None),
    CountedField(3, FieldCost::One, None),
    CountedField(4, FieldCost::One, None),
    CountedField(5, FieldCost::One, None),
];
const DEVICE_SHAPE: [CountedField; 4] = [
    CountedField(4, FieldCost::Bytes, None),
    CountedField(5, FieldCost::One, None),
    CountedField(6, FieldCost::None, Some(&DEVICE_SPEC_SHAPE)),
    CountedField(7, FieldCost::One, None),
];
const SNAPSHOT_SHAPE: [CountedField; 1] = [CountedField(3, FieldCost::One, Some(&DEVICE_SHAPE))];
const PREFERRED_SHAPE: [CountedField; 1] = [CountedField(1, FieldCost::One, None)];
const RESPONSE_SHAPE: [CountedField; 2] = [
    CountedField(2, FieldCost::None, Some(&DEVICE_SPEC_SHAPE)),
    CountedField(4, FieldCost::None, Some(&PREFERRED_SHAPE)),
];
const HELLO_SHAPE: [CountedField; 2] = [
    CountedField(1, FieldCost::One, None),
    CountedField(4, FieldCost::One, None),
];
const FROM_VENDOR_SHAPE: [CountedField; 3] = [
    CountedField(1, FieldCost::None, Some(&HELLO_SHAPE)),
    CountedField(2, FieldCost::None, Some(&SNAPSHOT_SHAPE)),
    CountedField(3, FieldCost::None, Some(&RESPONSE_SHAPE)),
];

/// The codec: protobuf with a [`SizeGuard`].
#[derive(Debug)]
pub struct LimitedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for LimitedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for LimitedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + SizeGuard + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = LimitedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        LimitedDecoder {
            inner: ProstDecoder::default(),
            first: true,
        }
    }
}

/// A decoder that runs the guard before decoding.
#[derive(Debug)]
pub struct LimitedDecoder<U> {
    inner: ProstDecoder<U>,
    first: bool,
}

impl<U: Message + SizeGuard + Default> Decoder for LimitedDecoder<U> {
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
    use crate::vendor_api::api::v1::{
        self as api, Answer, Choice, Device, Hello, Node, Recipe, Snapshot, answer,
        from_vendor::Said,
    };

    fn encoded(said: Said) -> Vec<u8> {
        api::FromVendor { said: Some(said) }.encode_to_vec()
    }

    #[test]
    fn every_field_counts_towards_the_message_limit() {
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
            parts(&wire, &FROM_VENDOR_SHAPE),
            Ok(2 * (1 + 2 + 1 + 1 + 2 + 1 + 1))
        );
        let choice = Choice {
            devices: vec!["a".into(), "b".into()],
        };
        let wire = encoded(Said::Answer(Answer {
            id: 1,
            answer: Some(answer::Answer::Choice(choice)),
        }));
        assert_eq!(parts(&wire, &FROM_VENDOR_SHAPE), Ok(2));
    }

    #[test]
    fn a_message_of_many_small_parts_is_rejected_before_decoding() {
        let snapshot = Snapshot {
            devices: vec![Device::default(); MAX_MESSAGE_PARTS + 1],
            ..Snapshot::default()
        };
        let wire = encoded(Said::Snapshot(snapshot));
        let refused = LazyFromVendor::check(&wire, false).unwrap_err();
        assert!(refused.message().contains("parts"), "{refused}");
        let hello = Hello {
            resources: vec!["x".repeat(100); 1000],
            ..Hello::default()
        };
        let wire = encoded(Said::Hello(hello));
        assert!(LazyFromVendor::check(&wire, true).is_err());
        assert!(LazyFromVendor::check(&wire, false).is_ok());
    }

    #[test]
    fn invalid_protobuf_is_rejected() {
        for wire in [&[0xff; 11][..], &[0x12, 0x05, 0x00], &[0x0b], &[0x80]] {
            assert!(LazyFromVendor::check(wire, false).is_err(), "{wire:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn message_size_check_never_panics(wire in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let counted = LazyFromVendor::check(&wire, false);
            // Every message that decodes must also be one that the counter understood.
            if LazyFromVendor::decode(&wire[..]).is_ok() && counted.is_err() {
                let groups = counted.is_err_and(|status| status.code() == tonic::Code::InvalidArgument);
                proptest::prop_assert!(groups);
            }
        }
    }
}
