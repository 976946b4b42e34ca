//! Opens a watch on objects of one kind.

use std::{fmt::Debug, time::Duration};

use futures_util::Stream;
use kube::{
    Api, Resource, ResourceExt as _,
    api::{WatchEvent, WatchParams},
};
use serde::de::DeserializeOwned;
use tokio_stream::StreamExt as _;

use crate::{Cluster, ClusterError, ClusterErrorKind};
use machinist_base::backoff::jitter;

/// Server-side watch timeout in seconds. The last quarter is random, so that agents that started
/// together do not reconnect together.
const WATCH_MAX_SECS: u32 = 280;

/// A healthy server sends a bookmark about once a minute even without changes; a watch that is
/// silent for longer than this is considered broken.
const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(100);

/// What a watch reports about one object.
#[derive(Debug)]
pub enum WatchChange<K> {
    /// It was created or changed.
    Applied(K),
    /// It was deleted.
    Deleted(K),
    /// Nothing changed; the server is alive.
    Bookmark,
}

/// Opens a watch on the objects of `kind` that `params` select, from a resource version. `object`
/// names them in messages. Each change comes with the resource version from which another watch
/// continues after it. The stream ends when the server closes the watch or is silent.
pub(crate) async fn open_watch<K>(
    cluster: &Cluster,
    kind: &K::DynamicType,
    object: String,
    params: WatchParams,
    version: &str,
) -> Result<
    impl Stream<Item = Result<(WatchChange<K>, String), ClusterError>> + Send + use<K>,
    ClusterError,
>
where
    K: Resource<DynamicType: Send + Sync> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let params = &params.timeout(timeout_secs());
    let watch = |client| async move {
        Api::<K>::all_with(client, kind)
            .watch(params, version)
            .await
    };
    let events = cluster.request("watch", object.clone(), watch).await?;
    // Not through `request`: a watch has a timeout of its own.
    let events = Box::pin(events).timeout(WATCH_IDLE_TIMEOUT);
    let broken = move |why| ClusterError {
        act: "watch",
        object: object.clone(),
        why,
    };
    Ok(events.map_while(Result::ok).map(move |event| {
        let observed = event.map_err(ClusterErrorKind::of).and_then(observe);
        observed.map_err(&broken)
    }))
}

fn timeout_secs() -> u32 {
    // At most a quarter of a small number.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let drawn = (f64::from(WATCH_MAX_SECS / 4) * jitter()) as u32;
    WATCH_MAX_SECS - WATCH_MAX_SECS / 4 + drawn
}

fn observe<K: Resource>(
    event: WatchEvent<K>,
) -> Result<(WatchChange<K>, String), ClusterErrorKind> {
    let version = |object: &K| object.resource_version().unwrap_or_default();
    Ok(match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            let version = version(&object);
            (WatchChange::Applied(object), version)
        }
        WatchEvent::Deleted(object) => {
            let version = version(&object);
            (WatchChange::Deleted(object), version)
        }
        WatchEvent::Bookmark(mark) => (WatchChange::Bookmark, mark.metadata.resource_version),
        WatchEvent::Error(status) => return Err(ClusterErrorKind::Answered(status)),
    })
}
