//! The watch on PinnedImageSets.

use std::time::Duration;

use machinist_cluster::pinned_image_sets::{ImageSets, watch_image_sets};
use machinist_testkit::WAIT_TIMEOUT;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::cluster::server::{InjectedFailure, Server};

const SETS: &str = "/apis/machineconfiguration.openshift.io/v1/pinnedimagesets";

fn object(name: &str, generation: i64, images: &[&str]) -> Value {
    let images: Vec<Value> = images.iter().map(|name| json!({"name": name})).collect();
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "PinnedImageSet",
        "metadata": {"name": name, "generation": generation, "labels": {"role": "worker"}},
        "spec": {"pinnedImages": images},
    })
}

async fn known(sets: &mut watch::Receiver<ImageSets>, names: &[&str]) -> ImageSets {
    let is_known = |sets: &ImageSets| match sets {
        ImageSets::Known(sets) => sets.keys().eq(names),
        _ => false,
    };
    let waiting = sets.wait_for(is_known);
    let found = tokio::time::timeout(WAIT_TIMEOUT, waiting).await;
    found.unwrap().unwrap().clone()
}

#[tokio::test]
async fn sets_follow_the_cluster() {
    let server = Server::start().await;
    server.put(&format!("{SETS}/a"), object("a", 1, &["x", "y"]));
    let (to, mut sets) = watch::channel(ImageSets::default());
    let stop = CancellationToken::new();
    let watching = tokio::spawn(watch_image_sets(server.cluster().await, to, stop.clone()));
    let ImageSets::Known(listed) = known(&mut sets, &["a"]).await else {
        unreachable!()
    };
    let set = &listed["a"];
    assert_eq!((set.generation, set.images.len()), (1, 2));
    assert_eq!(set.labels["role"], "worker");
    server.until_watched().await;
    server.put(&format!("{SETS}/b"), object("b", 1, &["z"]));
    known(&mut sets, &["a", "b"]).await;
    server.remove(&format!("{SETS}/a"));
    known(&mut sets, &["b"]).await;
    stop.cancel();
    watching.await.unwrap();
}

#[tokio::test]
async fn a_missing_kind_is_no_error_and_asked_for_rarely() {
    let server = Server::start().await;
    let (to, sets) = watch::channel(ImageSets::default());
    let stop = CancellationToken::new();
    let watching = tokio::spawn(watch_image_sets(server.cluster().await, to, stop.clone()));
    server.until("a list", |it| !it.requests().is_empty()).await;
    // Other failures are repeated after a second.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(server.requests().len(), 1);
    assert_eq!(*sets.borrow(), ImageSets::Unknown, "it may be served later");
    stop.cancel();
    watching.await.unwrap();
}

#[tokio::test]
async fn known_sets_survive_an_api_server_that_does_not_serve_the_kind_yet() {
    let server = Server::start().await;
    server.put(&format!("{SETS}/a"), object("a", 1, &["x"]));
    let (to, mut sets) = watch::channel(ImageSets::default());
    let stop = CancellationToken::new();
    let watching = tokio::spawn(watch_image_sets(server.cluster().await, to, stop.clone()));
    known(&mut sets, &["a"]).await;
    server.until_watched().await;
    server.trouble(
        &format!("GET {SETS}"),
        InjectedFailure::Code(404, "NotFound"),
    );
    let before = server.requests().len();
    server.end_watches(false);
    server
        .until("a refused watch", |it| it.requests().len() > before)
        .await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    known(&mut sets, &["a"]).await;
    stop.cancel();
    watching.await.unwrap();
}
