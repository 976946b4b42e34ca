//! A protobuf message that is forwarded byte for byte, so that fields unknown to this version are
//! kept.

use prost::{
    DecodeError, Message,
    bytes::{Buf, BufMut, Bytes, BytesMut},
    encoding::{DecodeContext, WireType, skip_field},
};

/// The bytes of one message, such as a plugin's `AllocateResponse`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawMessage(pub Bytes);

impl RawMessage {
    /// Merges messages by concatenation, which appends repeated fields, as protobuf defines it.
    pub fn joined(mut all: Vec<Self>) -> Self {
        if all.len() == 1 {
            return all.pop().unwrap_or_default();
        }
        let length = all.iter().map(|one| one.0.len()).sum();
        let mut joined = BytesMut::with_capacity(length);
        for one in &all {
            joined.extend_from_slice(&one.0);
        }
        Self(joined.freeze())
    }
}

impl Message for RawMessage {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.0);
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn decode(mut buf: impl Buf) -> Result<Self, DecodeError> {
        Ok(Self(buf.copy_to_bytes(buf.remaining())))
    }

    fn merge(&mut self, buf: impl Buf) -> Result<(), DecodeError> {
        *self = Self::joined(vec![std::mem::take(self), Self::decode(buf)?]);
        Ok(())
    }

    /// Never called: a whole message is read at once, and this one is no field of another.
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        skip_field(wire_type, tag, buf, ctx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::api::v1beta1 as api;

    fn answer(name: &str) -> api::AllocateResponse {
        let one = api::ContainerAllocateResponse {
            envs: [(name.to_owned(), "1".to_owned())].into(),
            ..Default::default()
        };
        api::AllocateResponse {
            container_responses: vec![one],
        }
    }

    #[test]
    fn unknown_fields_stay_in_the_message() {
        let mut bytes = answer("A").encode_to_vec();
        // Two fields of some later version: field 15, a number, and field 16, a text.
        bytes.extend_from_slice(&[0x78, 0x2a, 0x82, 0x01, 0x02, b'h', b'i']);
        let relayed = RawMessage::decode(bytes.as_slice()).unwrap();
        assert_eq!(relayed.encode_to_vec(), bytes);
        assert_eq!(relayed.encoded_len(), bytes.len());
        let copy = api::AllocateResponse::decode(relayed.0).unwrap();
        assert_eq!(copy, answer("A"));
    }

    #[test]
    fn responses_for_several_containers_are_joined_in_order() {
        let [one, two] = ["A", "B"].map(|name| RawMessage(answer(name).encode_to_vec().into()));
        let both = RawMessage::joined(vec![one, two]);
        let copy = api::AllocateResponse::decode(both.0).unwrap();
        let names = copy.container_responses.iter();
        let names: Vec<_> = names.flat_map(|one| one.envs.keys()).collect();
        assert_eq!(names, ["A", "B"]);
    }

    #[test]
    fn joining_responses_takes_linear_time() {
        let one = RawMessage(answer("A").encode_to_vec().into());
        let start = std::time::Instant::now();
        let all = RawMessage::joined(vec![one.clone(); 1_000_000]);
        assert_eq!(all.0.len(), one.0.len() * 1_000_000);
        // Copying the whole message for each answer would move terabytes.
        let took = start.elapsed();
        assert!(took < std::time::Duration::from_secs(60), "{took:?}");
    }
}
