//! Follows a plugin's list stream until it ends.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    device_list::PluginDeviceList,
    list_codec::{DecodeTurn, ListStream},
    plugin_client::{PluginConnection, status_text},
    task_events::PluginTaskEvent,
};
use machinist_device::ResourceName;

/// Minimum time between two lists that are read; the kubelet gets no faster updates either.
const MIN_LIST_INTERVAL: Duration = Duration::from_millis(50);
/// How many queued lists are skipped in favour of the latest; a plugin that sends more waits in its
/// own buffers.
const MAX_SKIPPED_LISTS: usize = 256;

/// Reads every list and forwards the latest. `limits` are the maximum number of devices and the
/// vendor's decode turn. Sends nothing after `stop`.
pub(super) async fn follow(
    resource: ResourceName,
    connection: PluginConnection,
    limits: (usize, DecodeTurn),
    events: mpsc::Sender<PluginTaskEvent>,
    stop: CancellationToken,
) {
    let number = connection.number;
    let received = |list: PluginDeviceList| PluginTaskEvent::ListReceived {
        resource: resource.clone(),
        number,
        list,
    };
    let reason = tokio::select! {
        // Safe to drop: the caller that stops it needs no more events.
        () = stop.cancelled() => return,
        ended = read(&connection, limits, &events, received) => match ended {
            Ok(()) => "it ended the stream".to_owned(),
            Err(status) => status_text(&status),
        },
    };
    let ended = PluginTaskEvent::StreamEnded {
        resource,
        number,
        reason,
    };
    // If the session is over, the event is not needed.
    let _ = events.send(ended).await;
}

async fn read(
    connection: &PluginConnection,
    (max_devices, decode_turn): (usize, DecodeTurn),
    events: &mpsc::Sender<PluginTaskEvent>,
    received: impl Fn(PluginDeviceList) -> PluginTaskEvent,
) -> Result<(), Status> {
    let mut lists = ListStream::open(connection, max_devices, decode_turn).await?;
    while let Some(first) = lists.next().await? {
        let mut latest = first;
        let mut end = None;
        for _ in 0..MAX_SKIPPED_LISTS {
            match lists.next().now_or_never() {
                None => break,
                Some(Ok(Some(newer))) => latest = newer,
                Some(result) => {
                    end = Some(result.map(drop));
                    break;
                }
            }
        }
        // The list that precedes the end of the stream stays in force until the plugin returns.
        let sent = events.send(received(latest)).await;
        match end {
            Some(end) => return end,
            None if sent.is_err() => break,
            None => sleep(MIN_LIST_INTERVAL).await,
        }
    }
    Ok(())
}
