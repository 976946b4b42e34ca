//! A plugin's list, followed until its stream ends.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    dial::{Connection, words},
    list::List,
    lists::{Lists, Turns},
    session::Event,
};
use crate::device::ResourceName;

/// The least time between two lists that are taken: the kubelet is told no faster.
const PACE: Duration = Duration::from_millis(50);
/// How many lists that came meanwhile are skipped at once; a plugin that sends more waits in its own
/// buffers.
const MOST_SKIPPED: usize = 256;

/// Reads every list and passes on the latest; `bounds` are the devices that are kept, and the vendor's turns.
/// Says nothing when it is `stopped`.
pub(super) async fn follow(
    resource: ResourceName,
    connection: Connection,
    bounds: (usize, Turns),
    to: mpsc::Sender<Event>,
    stopped: CancellationToken,
) {
    let number = connection.number;
    let heard = |list: List| Event::Heard {
        resource: resource.clone(),
        number,
        list,
    };
    let why = tokio::select! {
        // Safe to drop: whoever stops it wants to hear nothing more.
        () = stopped.cancelled() => return,
        ended = read(&connection, bounds, &to, heard) => match ended {
            Ok(()) => "it ended the stream".to_owned(),
            Err(status) => words(&status),
        },
    };
    let ended = Event::Ended {
        resource,
        number,
        why,
    };
    // A session that is over does not need to know.
    let _ = to.send(ended).await;
}

async fn read(
    connection: &Connection,
    (most, turns): (usize, Turns),
    to: &mpsc::Sender<Event>,
    heard: impl Fn(List) -> Event,
) -> Result<(), Status> {
    let mut lists = Lists::open(connection, most, turns).await?;
    while let Some(first) = lists.next().await? {
        let mut latest = first;
        let mut end = None;
        for _ in 0..MOST_SKIPPED {
            match lists.next().now_or_never() {
                None => break,
                Some(Ok(Some(newer))) => latest = newer,
                Some(over) => {
                    end = Some(over.map(drop));
                    break;
                }
            }
        }
        // Said before the end, so it is what the devices are until the plugin is back.
        let sent = to.send(heard(latest)).await;
        match end {
            Some(end) => return end,
            None if sent.is_err() => break,
            None => sleep(PACE).await,
        }
    }
    Ok(())
}
