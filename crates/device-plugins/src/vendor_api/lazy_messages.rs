//! The vendor's messages as the agent decodes them: devices of a snapshot stay encoded until each
//! is read.
//!
//! Decoded, they take ten times the memory, and all of them at once. Fields and numbers are those
//! of `proto/machinist/vendor/v1/`; a test compares the two.

use prost::{DecodeError, Message as _, bytes::Bytes};

use super::api::v1 as api;

/// [`api::FromVendor`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct LazyFromVendor {
    /// The message's one field.
    #[prost(oneof = "LazyPayload", tags = "1, 2, 3, 4")]
    pub said: Option<LazyPayload>,
}

/// The kinds of message.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum LazyPayload {
    /// Identifies the vendor.
    #[prost(message, tag = "1")]
    Hello(api::Hello),
    /// All devices of a resource.
    #[prost(message, tag = "2")]
    Snapshot(LazySnapshot),
    /// The answer to a question.
    #[prost(message, tag = "3")]
    Answer(api::Answer),
    /// A sign of life.
    #[prost(message, tag = "4")]
    Heartbeat(api::Heartbeat),
}

/// [`api::Snapshot`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct LazySnapshot {
    /// The resource, one of those in Hello.
    #[prost(string, tag = "1")]
    pub resource: String,
    /// The snapshot's generation.
    #[prost(uint64, tag = "2")]
    pub generation: u64,
    /// Encoded [`api::Device`]s.
    #[prost(bytes = "bytes", repeated, tag = "3")]
    pub devices: Vec<Bytes>,
    /// The operations for which the agent has to ask the vendor.
    #[prost(message, optional, tag = "4")]
    pub asks: Option<api::Asks>,
}

/// Decodes one device of a snapshot.
pub(super) fn device(encoded: &Bytes) -> Result<api::Device, DecodeError> {
    api::Device::decode(&encoded[..])
}

#[cfg(test)]
impl From<api::Snapshot> for LazySnapshot {
    fn from(said: api::Snapshot) -> Self {
        let devices = said.devices.iter();
        Self {
            resource: said.resource,
            generation: said.generation,
            devices: devices.map(|one| one.encode_to_vec().into()).collect(),
            asks: said.asks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lazy_messages_decode_every_field() {
        let device = |id: &str| api::Device {
            id: id.to_owned(),
            reason: "hot".to_owned(),
            ..api::Device::default()
        };
        let snapshot = api::Snapshot {
            resource: "acme.dev/x".to_owned(),
            generation: 7,
            devices: vec![device("a"), device("b")],
            asks: Some(api::Asks {
                allocate: true,
                ..api::Asks::default()
            }),
        };
        let hello = api::Hello {
            vendor: "acme".to_owned(),
            ..api::Hello::default()
        };
        let answer = api::Answer {
            id: 5,
            ..api::Answer::default()
        };
        let beat = api::Heartbeat::default();
        use api::from_vendor::Said as Says;
        for (says, heard) in [
            (Says::Hello(hello.clone()), LazyPayload::Hello(hello)),
            (
                Says::Snapshot(snapshot.clone()),
                LazyPayload::Snapshot(snapshot.clone().into()),
            ),
            (Says::Answer(answer.clone()), LazyPayload::Answer(answer)),
            (Says::Heartbeat(beat), LazyPayload::Heartbeat(beat)),
        ] {
            let wire = api::FromVendor { said: Some(says) }.encode_to_vec();
            assert_eq!(LazyFromVendor::decode(&wire[..]).unwrap().said, Some(heard));
        }
        let heard = LazySnapshot::from(snapshot.clone());
        assert_eq!(device_ids(&heard), ["a", "b"]);
        assert_eq!(heard.encoded_len(), snapshot.encoded_len());
    }

    fn device_ids(heard: &LazySnapshot) -> Vec<String> {
        let devices = heard.devices.iter();
        devices.map(|one| super::device(one).unwrap().id).collect()
    }
}
