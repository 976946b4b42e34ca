//! The slices of a node: written once, and again only when another client changes or deletes them.

use std::{collections::BTreeSet, sync::Arc};

use machinist_cluster::{
    node::OwnNode,
    resource_slices::{self, SliceReconciler},
};
use machinist_device::{
    ResourceName, SmallMap,
    dra::{
        pool::{Pool, PoolDevice, UNHEALTHY_TAINT},
        traits::{DesiredPool, PublishedPool},
    },
};
use machinist_testkit::WAIT_TIMEOUT;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    node::{NODE, with_node},
    server::{InjectedFailure, Server},
};

const GROUP: &str = "/apis/resource.k8s.io";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

fn device(name: &str, taints: &[&'static str]) -> PoolDevice {
    PoolDevice {
        name: name.to_owned(),
        resource: ResourceName::new("acme.dev/x").unwrap(),
        attributes: SmallMap::default(),
        capacity: SmallMap::default(),
        taints: taints.iter().copied().collect(),
    }
}

fn pool(count: usize) -> DesiredPool {
    let devices = (0..count).map(|n| device(&format!("d{n}"), &[]));
    Some(Arc::new(Pool {
        devices: devices.collect(),
    }))
}

fn unhealthy_pool() -> DesiredPool {
    let devices = vec![device("d0", &[UNHEALTHY_TAINT]), device("d1", &[])];
    Some(Arc::new(Pool { devices }))
}

struct Stage {
    server: Server,
    node: OwnNode,
    wish: watch::Sender<DesiredPool>,
    published: watch::Receiver<PublishedPool>,
    _stop: DropGuard,
}

impl Stage {
    async fn new(versions: &[&str], before: u64) -> Self {
        let (server, node) = with_node().await;
        let versions = versions.iter().map(|version| json!({"version": version}));
        server.put(
            GROUP,
            json!({"kind": "APIGroup", "versions": versions.collect::<Vec<_>>()}),
        );
        node.read().await.unwrap();
        Self::on(server, node, before)
    }

    fn on(server: Server, node: OwnNode, before: u64) -> Self {
        let wish = watch::Sender::new(None);
        let (tell, published) = watch::channel(PublishedPool {
            generation: before,
            ..PublishedPool::default()
        });
        let stop = CancellationToken::new();
        let cluster = node.cluster().clone();
        let slices = SliceReconciler::new(cluster, node.clone(), wish.subscribe(), tell);
        tokio::spawn(slices.reconcile_slices(stop.clone()));
        Self {
            server,
            node,
            wish,
            published,
            _stop: stop.drop_guard(),
        }
    }

    async fn until(&self, what: &str, holds: impl Fn(&[Value]) -> bool) {
        let all = |server: &Server| {
            let paths = server.below(SLICES);
            paths
                .iter()
                .map(|path| server.object(path))
                .collect::<Vec<_>>()
        };
        self.server.until(what, |server| holds(&all(server))).await;
    }

    /// Waits until the server has this many devices in this many slices, all of this generation.
    async fn wait_for_slices(&self, devices: usize, slices: usize, generation: u64) {
        let what = format!("{devices} devices in {slices} slices of generation {generation}");
        self.until(&what, |all| {
            let count = |slice: &Value| slice["spec"]["devices"].as_array().map_or(0, Vec::len);
            let whole =
                json!({"name": "a", "generation": generation, "resourceSliceCount": slices});
            all.iter().map(count).sum::<usize>() == devices
                && all.len() == slices
                && all.iter().all(|slice| slice["spec"]["pool"] == whole)
        })
        .await;
    }

    async fn until_published(&self, holds: impl FnMut(&PublishedPool) -> bool) {
        let mut published = self.published.clone();
        let waiting = published.wait_for(holds);
        let found = tokio::time::timeout(WAIT_TIMEOUT, waiting).await;
        assert!(found.is_ok(), "{:?}", self.published.borrow());
    }

    fn writes(&self) -> usize {
        self.server.writes().len()
    }
}

#[tokio::test]
async fn resource_slices_are_written_only_on_change_with_a_new_generation() {
    let stage = Stage::new(&["v1beta1", "v1"], 6).await;
    assert_eq!(
        stage.server.requests_starting("GET /apis").len(),
        0,
        "no slices desired, no request"
    );
    stage.wish.send_replace(pool(130));
    stage.wait_for_slices(130, 2, 7).await;
    let slice = stage
        .server
        .object(&format!("{SLICES}/a-dra.machinist.dev-0"));
    assert_eq!(slice["spec"]["driver"], "dra.machinist.dev");
    assert_eq!(slice["spec"]["nodeName"], "a");
    assert_eq!(slice["metadata"]["ownerReferences"][0]["kind"], "Node");
    let message = BTreeSet::from([ResourceName::new("acme.dev/x").unwrap()]);
    stage
        .until_published(|it| it.generation == 7 && it.resources.as_ref() == Some(&message))
        .await;
    // Neither equal content nor the end of a watch causes a write.
    stage.server.until_watched().await;
    let writes = stage.writes();
    stage.wish.send_replace(pool(130));
    stage.server.end_watches(true);
    stage
        .server
        .until("another watch", |it| {
            it.requests_starting(&format!("GET {SLICES}")).len() >= 4
        })
        .await;
    assert_eq!(stage.writes(), writes);
    stage.wish.send_replace(pool(1));
    stage.wait_for_slices(1, 1, 8).await;
    stage.wish.send_replace(pool(0));
    stage.until("none", <[Value]>::is_empty).await;
    stage
        .until_published(|it| it.resources == Some(BTreeSet::new()))
        .await;
}

#[tokio::test]
async fn resource_slices_deleted_or_changed_by_others_are_restored() {
    let stage = Stage::new(&["v1"], 0).await;
    stage.wish.send_replace(pool(2));
    stage.wait_for_slices(2, 1, 1).await;
    stage.server.until_watched().await;
    let path = format!("{SLICES}/a-dra.machinist.dev-0");
    // A kubelet that starts deletes all slices of its node: the content is unchanged, so the
    // generation stays the same.
    stage.server.remove(&path);
    stage.wait_for_slices(2, 1, 1).await;
    stage
        .server
        .edit(&path, |slice| slice["spec"]["devices"] = json!([]));
    stage.wait_for_slices(2, 1, 1).await;
    // The slices are owned by their Node and deleted with it; they belong to the new object of a
    // Node that is registered again.
    let owner = |slice: &Value| slice["metadata"]["ownerReferences"][0]["uid"].clone();
    assert_eq!(owner(&stage.server.object(&path)), "first");
    stage
        .server
        .edit(NODE, |node| node["metadata"]["uid"] = json!("second"));
    stage.node.read().await.unwrap();
    stage.server.remove(&path);
    stage
        .until("slices of the second", |all| {
            all.iter().map(owner).eq([json!("second")])
        })
        .await;
    // A slice of an earlier agent, for instance, whose pool has another generation.
    let mut old = stage.server.object(&path);
    old["metadata"]["name"] = json!("a-dra.machinist.dev-7");
    old["spec"]["pool"]["generation"] = json!(41);
    stage
        .server
        .put(&format!("{SLICES}/a-dra.machinist.dev-7"), old);
    stage.wait_for_slices(2, 1, 42).await;
    // The next agent continues with the existing slices.
    let writes = stage.writes();
    let (server, node) = (stage.server.clone(), stage.node.clone());
    drop(stage);
    let stage = Stage::on(server, node, 42);
    stage.wish.send_replace(pool(2));
    stage
        .until_published(|it| it.generation == 42 && it.resources.is_some())
        .await;
    assert_eq!(stage.writes(), writes);
}

#[tokio::test]
async fn tainted_devices_are_omitted_from_slices_without_taint_support() {
    let stage = Stage::new(&["v1"], 0).await;
    stage.wish.send_replace(unhealthy_pool());
    stage.wait_for_slices(2, 1, 1).await;
    stage.server.until_watched().await;
    let path = format!("{SLICES}/a-dra.machinist.dev-0");
    let taint = stage.server.object(&path)["spec"]["devices"][0]["taints"][0].clone();
    assert_eq!(taint["key"], "machinist.dev/unhealthy");
    // A taint that stays keeps its time.
    let Some(more) = unhealthy_pool() else {
        panic!()
    };
    let mut more = Pool::clone(&more);
    more.devices.push(device("d2", &[]));
    stage.wish.send_replace(Some(Arc::new(more)));
    stage.wait_for_slices(3, 1, 2).await;
    assert_eq!(
        stage.server.object(&path)["spec"]["devices"][0]["taints"][0],
        taint
    );

    let stage = Stage::new(&["v1"], 0).await;
    stage.server.drop_taints();
    stage.wish.send_replace(unhealthy_pool());
    stage
        .until("one device", |all| {
            all.iter()
                .all(|slice| slice["spec"]["devices"].as_array().unwrap().len() == 1)
                && !all.is_empty()
        })
        .await;
}

#[tokio::test]
async fn slices_are_published_after_an_outage_or_to_an_older_api_version() {
    let stage = Stage::new(&["v1beta1"], 0).await;
    stage.server.trouble(
        "GET /apis/resource.k8s.io",
        InjectedFailure::Code(500, "InternalError"),
    );
    stage.wish.send_replace(pool(1));
    stage.until_published(|it| it.problem.is_some()).await;
    let old = SLICES.replace("/v1/", "/v1beta1/");
    stage
        .server
        .until("the older version", |it| it.below(&old).len() == 1)
        .await;
    let slice = stage.server.object(&format!("{old}/a-dra.machinist.dev-0"));
    assert!(slice["spec"]["devices"][0]["basic"].is_object(), "{slice}");
    stage.until_published(|it| it.problem.is_none()).await;

    let (server, node) = with_node().await;
    let stage = Stage::on(server, node, 0);
    stage.wish.send_replace(pool(1));
    stage
        .until_published(|it| {
            let why = it.problem.as_deref().unwrap_or_default();
            why.contains("does not serve resource.k8s.io") && it.resources == Some(BTreeSet::new())
        })
        .await;
}

#[tokio::test]
async fn a_cluster_without_a_supported_slice_version_counts_as_without_slices() {
    for versions in [&["v1alpha3"][..], &[]] {
        let stage = Stage::new(versions, 0).await;
        stage.wish.send_replace(pool(1));
        stage.until_published(|it| it.problem.is_some()).await;
        let message = stage.published.borrow().clone();
        let why = message.problem.unwrap_or_default();
        assert!(why.contains("does not serve resource.k8s.io"), "{why}");
        assert_eq!(message.resources, Some(BTreeSet::new()));
    }
}

#[tokio::test]
async fn a_removed_slice_api_version_does_not_count_as_without_slices() {
    let stage = Stage::new(&["v1"], 0).await;
    stage.server.trouble(
        &format!("GET {SLICES}"),
        InjectedFailure::Code(404, "NotFound"),
    );
    stage.wish.send_replace(pool(1));
    stage.until_published(|it| it.problem.is_some()).await;
    let message = stage.published.borrow().clone();
    assert_eq!(message.resources, None, "slices may exist: {message:?}");
    stage.wait_for_slices(1, 1, 1).await;
}

#[tokio::test]
async fn slice_writes_are_rate_limited_for_constantly_changing_devices() {
    let stage = Stage::new(&["v1"], 0).await;
    let changing = {
        let wish = stage.wish.clone();
        tokio::spawn(async move {
            for round in 0.. {
                wish.send_replace(pool(1 + round % 7));
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        })
    };
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    changing.abort();
    // Without a rate limit some 25; the first few are immediate, then one every five seconds.
    let writes = stage.writes();
    assert!((5..=14).contains(&writes), "{writes}");
}

#[tokio::test]
async fn cleanup_deletes_the_nodes_resource_slices() {
    let stage = Stage::new(&["v1"], 0).await;
    stage.wish.send_replace(pool(1));
    stage.wait_for_slices(1, 1, 1).await;
    let cluster = stage.node.cluster().clone();
    let server = stage.server.clone();
    drop(stage);
    assert_eq!(
        resource_slices::remove(&cluster, "a", true).await.unwrap(),
        1
    );
    assert_eq!(server.below(SLICES).len(), 1, "dry run: no write");
    assert_eq!(
        resource_slices::remove(&cluster, "a", false).await.unwrap(),
        1
    );
    assert_eq!(
        resource_slices::remove(&cluster, "a", false).await.unwrap(),
        0
    );
    server.trouble(
        &format!("GET {SLICES}"),
        InjectedFailure::Code(403, "Forbidden"),
    );
    assert_eq!(
        resource_slices::remove(&cluster, "a", false).await.unwrap(),
        0
    );
    assert!(!server.object(NODE).is_null());
}
