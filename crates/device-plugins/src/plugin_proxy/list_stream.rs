//! Follows a plugin's list stream until it ends.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    device_list::PluginDeviceList,
    list_codec::{DecodeTurn, ListStream},
    plugin_client::{PluginConnection, words},
    task_events::PluginTaskEvent,
};
use machinist_device::ResourceName;

/// Minimum time between two lists that are read; the kubelet gets no faster updates either.
const MIN_LIST_INTERVAL: Duration = Duration::from_millis(50);
/// How many queued lists are skipped in favour of the latest; a plugin that sends more waits in its
/// own buffers.
const MAX_SKIPPED_LISTS: usize = 256;

/// Reads every list and forwards the latest. `bounds` are the maximum number of devices and the
/// vendor's turns. Sends nothing after `stopped`.
pub(super) async fn follow(
    resource: ResourceName,
    connection: PluginConnection,
    bounds: (usize, DecodeTurn),
    to: mpsc::Sender<PluginTaskEvent>,
    stopped: CancellationToken,
) {
    let number = connection.number;
    let heard = |list: PluginDeviceList| PluginTaskEvent::Heard {
        resource: resource.clone(),
        number,
        list,
    };
    let why = tokio::select! {
        // Safe to drop: the caller that stops it needs no more events.
        () = stopped.cancelled() => return,
        ended = read(&connection, bounds, &to, heard) => match ended {
            Ok(()) => "it ended the stream".to_owned(),
            Err(status) => words(&status),
        },
    };
    let ended = PluginTaskEvent::Ended {
        resource,
        number,
        why,
    };
    // If the session is over, the event is not needed.
    let _ = to.send(ended).await;
}

async fn read(
    connection: &PluginConnection,
    (most, turns): (usize, DecodeTurn),
    to: &mpsc::Sender<PluginTaskEvent>,
    heard: impl Fn(PluginDeviceList) -> PluginTaskEvent,
) -> Result<(), Status> {
    let mut lists = ListStream::open(connection, most, turns).await?;
    while let Some(first) = lists.next().await? {
        let mut latest = first;
        let mut end = None;
        for _ in 0..MAX_SKIPPED_LISTS {
            match lists.next().now_or_never() {
                None => break,
                Some(Ok(Some(newer))) => latest = newer,
                Some(over) => {
                    end = Some(over.map(drop));
                    break;
                }
            }
        }
        // The list that precedes the end of the stream stays in force until the plugin returns.
        let sent = to.send(heard(latest)).await;
        match end {
            Some(end) => return end,
            None if sent.is_err() => break,
            None => sleep(MIN_LIST_INTERVAL).await,
        }
    }
    Ok(())
}
