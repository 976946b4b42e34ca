use prost::Message as _;

use super::*;
use crate::kubelet::api::v1beta1 as api;

fn lists() -> ListStream {
    ListStream {
        body: Body::empty(),
        most: 10,
        turns: DecodeTurn::default(),
        came: Bytes::new(),
        head: Vec::new(),
        begun: None,
        pieces: 0,
    }
}

fn framed(ids: &[&str]) -> Vec<u8> {
    let device = |id: &&str| api::Device {
        id: (*id).to_owned(),
        health: "Healthy".to_owned(),
        topology: None,
    };
    let devices = ids.iter().map(device).collect();
    let message = api::ListAndWatchResponse { devices }.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], length.as_slice(), &message].concat()
}

#[tokio::test]
async fn device_lists_are_decoded_wherever_the_stream_is_split() {
    let stream = [framed(&["a", "b"]), framed(&[]), framed(&["c"])].concat();
    for size in 1..=stream.len() {
        let (mut lists, mut found) = (lists(), Vec::new());
        for piece in stream.chunks(size) {
            lists.came = Bytes::copy_from_slice(piece);
            while let Some(list) = lists.take().await.unwrap() {
                found.push(list.devices.keys().cloned().collect::<Vec<_>>().join(","));
            }
        }
        assert_eq!(found, ["a,b", "", "c"], "{size}");
        assert!(lists.over(&header::HeaderMap::new()).is_ok());
    }
}

#[tokio::test]
async fn a_partial_list_blocks_the_vendors_other_lists_and_its_end_is_an_error() {
    let (mut one, whole) = (lists(), framed(&["a", "b"]));
    one.came = Bytes::copy_from_slice(&whole[..whole.len() - 1]);
    assert_eq!(one.take().await.unwrap(), None);
    let mut two = lists();
    two.turns = one.turns.clone();
    two.came = Bytes::from(whole);
    let waits = tokio::time::timeout(Duration::from_millis(20), two.take());
    assert!(waits.await.is_err(), "one at a time");
    let ended = one.over(&header::HeaderMap::new()).unwrap_err();
    assert_eq!(ended.message(), "its stream ended within a list");
    drop(one);
    assert_eq!(two.take().await.unwrap().unwrap().devices.len(), 2);
}

#[tokio::test]
async fn a_too_large_or_compressed_list_is_rejected_by_its_header() {
    for (head, why) in [
        ([0, 1, 0, 0, 1], "its list has 16777217 bytes"),
        ([1, 0, 0, 0, 1], "its list is compressed"),
    ] {
        let mut lists = lists();
        lists.came = Bytes::copy_from_slice(&head);
        let refused = lists.take().await.unwrap_err();
        assert!(refused.message().starts_with(why), "{refused}");
    }
}
