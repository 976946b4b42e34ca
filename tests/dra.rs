//! Claims: the DRA driver against a kubelet's plugin watcher and calls, over a root in a temporary
//! directory.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

mod node_renames;
mod serve_mode;
mod slow_and_full;

use machinist_testkit::{WAIT_TIMEOUT, device_host, fake_claims, pod_resources};

use std::{collections::BTreeMap, sync::Arc};

use device_host::{Agent, Machine};
use fake_claims::{FakeClaims, Watcher, claim, until};
use machinist_device::{
    dra::{
        device_names::device_name,
        traits::{DesiredPool, PublishedPool},
    },
    resource_name::ResourceName,
};
use machinist_device_plugins::dra::api::{health, v1, v1beta1};
use pod_resources::FakePodResources;
use serde_json::{Value, json};
use tokio::sync::watch;
use tonic::transport::Channel;

const TTY: &str = "acme.dev/tty";
const BOOK: &str = "var/lib/machinist/claims.json";

fn declare(machine: &Machine, serve: &str) {
    let text = format!(
        "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: x}}\nspec:\n  \
         resource: {TTY}\n  serve: {serve}\n  match: [{{path: \"/dev/tty?\"}}]\n  \
         container: {{env: {{IDS: \"{{id}}\"}}}}\n"
    );
    machine.write("tty.yaml", &text);
}

fn named(id: &str) -> String {
    device_name(&ResourceName::new(TTY).unwrap(), id)
}

/// A machine, an agent that serves claims, and a kubelet that has registered its driver.
struct Stage {
    machine: Machine,
    agent: Agent,
    claims: Arc<FakeClaims>,
    published: watch::Sender<PublishedPool>,
    wish: watch::Receiver<DesiredPool>,
    watcher: Watcher,
    driver: Channel,
}

impl Stage {
    async fn new() -> Self {
        let machine = Machine::new();
        machine.plug("ttyA");
        machine.plug("ttyB");
        declare(&machine, "dra");
        Self::on(machine, FakeClaims::new()).await
    }

    async fn on(machine: Machine, claims: Arc<FakeClaims>) -> Self {
        let watcher = Watcher::start(machine.root());
        let agent = machine.agent();
        let published = watch::Sender::new(PublishedPool::default());
        let wish = agent.claims(claims.clone(), published.subscribe());
        let driver = watcher.driver().await;
        let stage = Self {
            machine,
            agent,
            claims,
            published,
            wish,
            watcher,
            driver,
        };
        stage.wait_for_pool(2).await;
        stage
    }

    /// Another agent on the same machine, with the same cluster.
    async fn again(self) -> Self {
        self.agent.stop().await;
        Self::on(self.machine, self.claims).await
    }

    async fn wait_for_pool(&self, devices: usize) {
        let mut wish = self.wish.clone();
        let waiting = wish.wait_for(|wish| {
            wish.as_ref()
                .is_some_and(|pool| pool.devices.len() == devices)
        });
        tokio::time::timeout(WAIT_TIMEOUT, waiting)
            .await
            .unwrap()
            .unwrap();
    }

    /// The kubelet's result for one claim.
    async fn prepare(&self, name: &str) -> Result<Vec<v1::Device>, String> {
        let mut client = v1::dra_plugin_client::DraPluginClient::new(self.driver.clone());
        let request = v1::NodePrepareResourcesRequest {
            claims: vec![claim(name)],
        };
        let answer = client.node_prepare_resources(request).await.unwrap();
        let mut claims = answer.into_inner().claims;
        let one = claims.remove(&claim(name).uid).unwrap();
        assert!(claims.is_empty());
        match one.error.is_empty() {
            true => Ok(one.devices),
            false => Err(one.error),
        }
    }

    async fn unprepare(&self, name: &str) -> String {
        let mut client = v1beta1::dra_plugin_client::DraPluginClient::new(self.driver.clone());
        let request = v1::NodeUnprepareResourcesRequest {
            claims: vec![claim(name)],
        };
        let answer = client.node_unprepare_resources(request).await.unwrap();
        let mut claims = answer.into_inner().claims;
        claims.remove(&claim(name).uid).unwrap().error
    }

    /// The CDI spec of a claim, as a runtime would find it.
    fn spec(&self, name: &str) -> Option<Value> {
        let file = format!("var/run/cdi/dra.machinist.dev-{name}-uid.json");
        let text = std::fs::read(self.machine.path(&file)).ok()?;
        Some(serde_json::from_slice(&text).unwrap())
    }

    fn remove_spec(&self, name: &str) {
        let file = format!("var/run/cdi/dra.machinist.dev-{name}-uid.json");
        std::fs::remove_file(self.machine.path(&file)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dra_driver_is_registered_by_the_watcher_with_its_api_versions() {
    let stage = Stage::new().await;
    // Every kubelet that starts dials the sockets it finds, and a refusal is reported.
    let info = stage.watcher.register(Some("not today")).await;
    assert_eq!(
        (info.r#type.as_str(), info.name.as_str()),
        ("DRAPlugin", "dra.machinist.dev")
    );
    assert_eq!(
        info.endpoint,
        "/var/lib/kubelet/plugins/dra.machinist.dev/dra.sock"
    );
    assert_eq!(
        info.supported_versions,
        [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1alpha1.DRAResourceHealth"
        ]
    );
    let reported = |part: &'static str| {
        stage.agent.until(part, move |status| {
            let device = status.devices.first().filter(|one| !one.registered);
            let reason = device.and_then(|one| one.reason.as_deref());
            reason.is_some_and(|reason| reason.contains(part))
        })
    };
    reported("not today").await;
    stage.watcher.register(None).await;
    reported("not published in a ResourceSlice").await;
    stage
        .published
        .send_modify(|it| it.resources = Some([ResourceName::new(TTY).unwrap()].into()));
    let served = |status: &machinist_device::status::DevicesStatus| {
        status.devices.first().is_some_and(|it| it.registered)
    };
    stage.agent.until("it is served", served).await;
    // A socket that another process removes is created again.
    let path = stage.watcher.found().pop().unwrap();
    std::fs::remove_file(path).unwrap();
    stage.watcher.register(None).await;
    stage.agent.stop().await;
    assert!(
        stage.watcher.found().is_empty(),
        "an agent that stops leaves no sockets"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_node_prepare_returns_the_same_result() {
    let stage = Stage::new().await;
    let (a, b) = (named("ttyA"), named("ttyB"));
    stage
        .claims
        .allocate("c", &[("one/better", &a), ("one/better", &b)]);
    let first = stage.prepare("c").await.unwrap();
    let message: Vec<_> = first
        .iter()
        .map(|one| {
            (
                one.request_names.clone(),
                one.pool_name.as_str(),
                one.device_name.clone(),
            )
        })
        .collect();
    let one = || vec!["one".to_owned()];
    assert_eq!(message, [(one(), "node-1", a), (one(), "node-1", b)]);
    assert_eq!(
        first[0].cdi_device_ids,
        ["dra.machinist.dev/claim=c-uid-one"]
    );
    let spec = stage.spec("c").unwrap();
    let node = |name: &str| json!({"path": format!("/dev/{name}"), "hostPath": format!("/dev/{name}"), "permissions": "rw"});
    assert_eq!(
        spec["devices"],
        json!([{"name": "c-uid-one", "containerEdits": {
            "env": ["IDS=ttyA,ttyB"], "deviceNodes": [node("ttyA"), node("ttyB")],
        }}])
    );
    // Repeated from the checkpoint; a missing spec is written again.
    let asked = stage.claims.asked();
    stage.claims.fail(usize::MAX);
    stage.remove_spec("c");
    assert_eq!(stage.prepare("c").await.unwrap(), first);
    assert_eq!(stage.claims.asked(), asked, "no backend was called");
    assert_eq!(stage.spec("c"), Some(spec));
    assert_eq!(stage.unprepare("c").await, "");
    assert_eq!(stage.spec("c"), None);
    assert_eq!(stage.unprepare("c").await, "", "also when it is over");
    assert_eq!(stage.unprepare("never-prepared").await, "");
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_claim_preparation_is_reported_by_name_and_can_be_retried() {
    let stage = Stage::new().await;
    let why = stage.prepare("c").await.unwrap_err();
    assert!(why.contains("claim lab/c not found"), "{why}");
    stage.claims.fail(1);
    stage.claims.allocate("c", &[("one", &named("ttyA"))]);
    let why = stage.prepare("c").await.unwrap_err();
    assert!(why.contains("API server unreachable"), "{why}");
    assert_eq!(stage.spec("c"), None);
    stage.prepare("c").await.unwrap();
    // A device belongs to one claim until that is released.
    stage.claims.allocate("d", &[("one", &named("ttyA"))]);
    let why = stage.prepare("d").await.unwrap_err();
    assert!(why.contains("still in use by claim lab/c"), "{why}");
    stage.unprepare("c").await;
    stage.prepare("d").await.unwrap();
    // Or until the claim no longer exists in the cluster and no container uses the device.
    let pods = FakePodResources::default();
    let _serving = pods.serve(stage.machine.root());
    pods.claimed("runs-on", &[&named("ttyA")]);
    stage.claims.allocate("e", &[("one", &named("ttyA"))]);
    stage.claims.delete("d");
    let why = stage.prepare("e").await.unwrap_err();
    assert!(why.contains("still in use by claim lab/d"), "{why}");
    pods.take("runs-on");
    stage.prepare("e").await.unwrap();
    assert_eq!(stage.spec("d"), None);
    // A missing device is named; once it exists again it is prepared.
    stage.machine.unplug("ttyB");
    stage
        .agent
        .until("it is gone", |status| {
            status.devices[0].devices[1].health == "Unhealthy"
        })
        .await;
    stage.claims.allocate("f", &[("one", &named("ttyB"))]);
    let why = stage.prepare("f").await.unwrap_err();
    assert!(
        why.contains(&named("ttyB")) && why.contains("unhealthy"),
        "{why}"
    );
    stage.machine.plug("ttyB");
    until("it is prepared", async || stage.prepare("f").await.ok()).await;
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_claims_from_kubelet_or_cluster_are_rejected() {
    let stage = Stage::new().await;
    for (name, object) in [
        ("a", "{"),
        ("b", "[]"),
        ("c", r#"{"metadata": {"uid": "c-uid"}}"#),
        (
            "d",
            r#"{"metadata": {"uid": "another"}, "status": {"allocation": {}}}"#,
        ),
        (
            "e",
            r#"{"metadata": {"uid": "e-uid"}, "status": {"allocation": {"devices": {"results": [
            {"request": "r", "driver": "dra.machinist.dev", "pool": "../..", "device": "x"}]}}}}"#,
        ),
        (
            "f",
            r#"{"metadata": {"uid": "f-uid"}, "status": {"allocation": {"devices": {"results": [
            {"request": "r", "driver": "dra.machinist.dev", "pool": "node-1", "device": "../../etc/shadow"}]}}}}"#,
        ),
    ] {
        stage.claims.put(name, object);
        let why = stage.prepare(name).await.unwrap_err();
        assert!(why.contains("claim"), "{name}: {why}");
        assert_eq!(stage.spec(name), None, "{name}");
    }
    let mut client = v1::dra_plugin_client::DraPluginClient::new(stage.driver.clone());
    let bad = |uid: &str| v1::Claim {
        uid: uid.to_owned(),
        ..claim("c")
    };
    let request = v1::NodePrepareResourcesRequest {
        claims: vec![bad(""), bad("../../etc/passwd"), bad(&"x".repeat(1000))],
    };
    let answer = client.node_prepare_resources(request).await.unwrap();
    let claims = answer.into_inner().claims;
    assert_eq!(claims.len(), 3);
    assert!(
        claims
            .values()
            .all(|one| one.error.contains("is not a valid UID"))
    );
    // A claim without devices of ours is ignored.
    stage.claims.allocate("g", &[]);
    assert_eq!(stage.prepare("g").await.unwrap(), []);
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_claims_survive_an_agent_restart_and_a_reboot() {
    let stage = Stage::new().await;
    stage.claims.allocate("c", &[("one", &named("ttyA"))]);
    let first = stage.prepare("c").await.unwrap();
    let spec = stage.spec("c");
    let stage = stage.again().await;
    assert_eq!(stage.prepare("c").await.unwrap(), first);
    // A boot empties /var/run; the kubelet remembers the claim.
    stage.remove_spec("c");
    let foreign = stage.machine.path("var/run/cdi/acme.json");
    std::fs::write(&foreign, "{}").unwrap();
    let left = stage
        .machine
        .path("var/run/cdi/dra.machinist.dev-left.json");
    std::fs::write(&left, "{}").unwrap();
    stage.machine.boot("boot-2");
    let stage = stage.again().await;
    until("the spec is there again", async || {
        (stage.spec("c") == spec).then_some(())
    })
    .await;
    assert!(foreign.exists() && !left.exists());
    assert_eq!(stage.unprepare("c").await, "");
    let stage = stage.again().await;
    assert_eq!(stage.spec("c"), None);
    // A damaged checkpoint is set aside; CDI specs stay, since their claims are unknown.
    stage.prepare("c").await.unwrap();
    let book = stage.machine.path(BOOK);
    stage.agent.stop().await;
    let mut bytes = std::fs::read(&book).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&book, bytes).unwrap();
    let stage = Stage::on(stage.machine, stage.claims).await;
    assert_eq!(stage.spec("c"), spec);
    assert_eq!(stage.unprepare("c").await, "");
    assert_eq!(stage.spec("c"), None);
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_claims_are_unprepared_when_no_container_has_their_devices() {
    let pods = FakePodResources::default();
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    declare(&machine, "dra");
    let _serving = pods.serve(machine.root());
    let stage = Stage::on(machine, FakeClaims::new()).await;
    stage.claims.allocate("c", &[("one", &named("ttyA"))]);
    stage.claims.allocate("d", &[("one", &named("ttyB"))]);
    stage.prepare("c").await.unwrap();
    stage.prepare("d").await.unwrap();
    pods.claimed("runs-on", &[&named("ttyB")]);
    stage.agent.handle.ask_holders().await;
    let status = stage.agent.handle.status_now();
    let holders: Vec<_> = status.devices[0]
        .devices
        .iter()
        .map(|one| one.holder.as_deref())
        .collect();
    assert_eq!(holders, [None, Some("lab/runs-on/main")]);
    stage.claims.delete("c");
    stage.claims.delete("d");
    // A restarted kubelet.
    stage.watcher.register(None).await;
    until("the claim is forgotten", async || {
        stage.spec("c").is_none().then_some(())
    })
    .await;
    assert!(stage.spec("d").is_some(), "a pod still has it");
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dra_device_health_is_published_at_once_and_completely() {
    let stage = Stage::new().await;
    let mut client =
        health::dra_resource_health_client::DraResourceHealthClient::new(stage.driver.clone());
    let request = health::NodeWatchResourcesRequest {};
    let mut stream = client
        .node_watch_resources(request)
        .await
        .unwrap()
        .into_inner();
    let health_of = |list: health::NodeWatchResourcesResponse| -> BTreeMap<String, (i32, String)> {
        let devices = list.devices.into_iter();
        let each = devices.map(|one| (one.device.unwrap().device_name, (one.health, one.message)));
        each.collect()
    };
    let first = health_of(stream.message().await.unwrap().unwrap());
    assert_eq!(first.len(), 2);
    assert!(first.values().all(|(health, _)| *health == 1));
    stage.machine.unplug("ttyB");
    let sick = async {
        loop {
            let list = health_of(stream.message().await.unwrap().unwrap());
            let (health, why) = list[&named("ttyB")].clone();
            if health == 2 {
                return (list.len(), why);
            }
        }
    };
    let (count, why) = tokio::time::timeout(WAIT_TIMEOUT, sick).await.unwrap();
    assert_eq!(count, 2);
    assert!(!why.is_empty());
    // A call is answered meanwhile, and the stream ends with the agent.
    stage.claims.allocate("c", &[("one", &named("ttyA"))]);
    let prepared = tokio::time::timeout(WAIT_TIMEOUT, stage.prepare("c"));
    prepared.await.unwrap().unwrap();
    stage.agent.stop().await;
    let ended = async { while let Ok(Some(_)) = stream.message().await {} };
    tokio::time::timeout(WAIT_TIMEOUT, ended).await.unwrap();
}
