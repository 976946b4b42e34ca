//! Marks of the last version on a Node, operators' requests and their answers, and a MachineConfigNode.

use std::time::Duration;

use jiff::Timestamp;
use machinist_base::{backoff::Backoff, clock::Clock, digest::Digest, reason::Reason};
use machinist_cluster::{
    events::Events,
    machine_config_node,
    node::{Cordon, DesiredNodeStatus, NodeFitness, OwnNode, Uncordon},
    node_commands::{self, CordonRequest, DryRun},
    node_writer::{WriteRate, maintain_node},
    publisher::{self, ExternalWriters},
    update_cancel,
};
use machinist_kube_api::{
    ConfigVersion, DrainRequest, MachineConfigNodeStatus, NodeCondition, NodeConditionKind,
    NodeUpdateState, Progress, Taint, keys,
};
use machinist_status::readiness::{Gate, GateEffect, GateName, Gates};
use machinist_update::{
    journal::ConfigName,
    node_port::Blocker,
    phase::Phase,
    reconciler::{UpdateConfigState, UpdateReport},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::last_version::{fixture, server::Server};

const NODE: &str = "/api/v1/nodes/a";
const PROGRESS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfignodes/a";
const OLD: &str = "rendered-worker-1";
const NEW: &str = "rendered-worker-2";
const THEN: &str = "2026-11-21T22:00:00Z";

const QUICK: WriteRate = WriteRate {
    heartbeat: Duration::from_secs(3600),
    gap: Duration::from_millis(1),
    words: Duration::from_millis(1),
    retry: Backoff::new(Duration::from_millis(20), Duration::from_millis(100)),
};

/// The Node without machinist, except for the config that it is on.
fn plain() -> Value {
    let condition =
        json!({"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "a", "uid": "first",
            "annotations": {keys::protocol::DESIRED_CONFIG: NEW},
            "labels": {"node-role.kubernetes.io/worker": ""},
        },
        "spec": {"taints": [{"key": "example.com/x", "effect": "NoExecute", "value": "x"}]},
        "status": {"conditions": [condition], "nodeInfo": {"bootID": "boot-1"}},
    })
}

fn config(name: &str) -> Option<ConfigName> {
    Some(ConfigName::new(name, Digest::of(name.as_bytes())))
}

fn at() -> Timestamp {
    THEN.parse().unwrap()
}

fn report(phase: Phase, current: &str) -> UpdateReport {
    UpdateReport {
        phase,
        config: UpdateConfigState {
            current: config(current),
            desired: config(NEW),
        },
        boot: Some("boot-1".to_owned()),
        ..UpdateReport::default()
    }
}

/// In the middle of a drain that a disruption budget blocks.
fn draining() -> UpdateReport {
    let blocker = Blocker {
        kind: "Pod".to_owned(),
        namespace: "shop".to_owned(),
        name: "web-1".to_owned(),
        reason: Reason::DrainBlockedByBudget,
        message: "its budget allows no disruption".to_owned(),
        since: at(),
    };
    UpdateReport {
        blockers: vec![blocker],
        cordoned: Some(at()),
        ..report(Phase::Draining, OLD)
    }
}

fn gates() -> Gates {
    let gate = Gate {
        name: GateName::DiskSpace.into(),
        open: true,
        effect: GateEffect::Hold,
        since: at(),
        reason: Reason::Ok,
        message: String::new(),
    };
    [gate].into_iter().collect()
}

const DUTIES: ExternalWriters = ExternalWriters {
    config: true,
    readiness: true,
};

fn notice(report: &UpdateReport) -> DesiredNodeStatus {
    publisher::desired_node_status(report, &gates(), None, DUTIES).unwrap()
}

/// What the agent adds to the report of a node with a device that wants a taint and a label.
fn with_devices(notice: DesiredNodeStatus) -> DesiredNodeStatus {
    let label = format!("{}acme.dev-serial", keys::label::RESOURCE_PREFIX);
    let mut notice = notice;
    let present = Some(keys::label::PRESENT.to_owned());
    notice.labels.insert(label, present);
    notice.taints.push(Taint {
        key: "acme.dev/serial".to_owned(),
        effect: "NoSchedule".to_owned(),
        rest: Default::default(),
    });
    notice.fitness = Some(NodeFitness::default());
    let request = DrainRequest::Drain(NEW.to_owned()).to_string();
    let annotations = &mut notice.annotations;
    annotations.insert(keys::protocol::DESIRED_DRAIN, Some(request));
    annotations.insert(keys::annotation::CANCELLED, Some(NEW.to_owned()));
    notice
}

/// Keeps the Node as `desired_node_status` until the guards are dropped.
fn keeping(
    own: &OwnNode,
    notice: DesiredNodeStatus,
) -> (watch::Sender<Option<DesiredNodeStatus>>, [DropGuard; 2]) {
    let (to, received) = watch::channel(Some(notice));
    let (stop, follows) = (CancellationToken::new(), CancellationToken::new());
    let (tell, _) = Events::new();
    let clock = Clock::from_fn(at);
    tokio::spawn(maintain_node(
        own.clone(),
        received,
        tell,
        clock,
        QUICK,
        stop.clone(),
    ));
    tokio::spawn(own.clone().watch_node(follows.clone()));
    (to, [stop.drop_guard(), follows.drop_guard()])
}

fn has_condition(server: &Server, kind: &str, status: &str) -> bool {
    let node = server.object(NODE);
    let all = node["status"]["conditions"].as_array().unwrap().clone();
    all.iter()
        .any(|one| one["type"] == kind && one["status"] == status)
}

async fn serving(node: Value) -> (Server, OwnNode) {
    let server = Server::start().await;
    server.put(NODE, node);
    let own = OwnNode::new(server.cluster().await, "a");
    (server, own)
}

fn yaml(object: &Value) -> String {
    serde_saphyr::to_string(object).unwrap()
}

/// A Node as the last version left it.
async fn node(name: &str) -> (Server, OwnNode) {
    if fixture::is_wanted("node-draining.yaml") {
        write_draining().await;
    }
    if fixture::is_wanted("node-requests.yaml") {
        write_requests().await;
    }
    let text = String::from_utf8(fixture::read(name)).unwrap();
    serving(serde_saphyr::from_str(&text).unwrap()).await
}

async fn write_draining() {
    let (server, own) = serving(plain()).await;
    own.cordon("rendered-worker-1", false).await.unwrap();
    let _keeps = keeping(&own, with_devices(notice(&draining())));
    let written = |server: &Server| {
        let node = server.object(NODE);
        let taints = node["spec"]["taints"].as_array().unwrap().len();
        let drains = has_condition(server, keys::condition::DRAIN, "True");
        let labels = node["metadata"]["labels"].as_object().unwrap().len();
        taints == 3 && labels == 3 && drains
    };
    server.until("everything is written", written).await;
    fixture::write("node-draining.yaml", yaml(&server.object(NODE)));
}

async fn write_requests() {
    let (server, own) = serving(plain()).await;
    own.cordon("rendered-worker-1", false).await.unwrap();
    let cluster = server.cluster().await;
    let ask = async |config: &str| {
        let wanted = Some(config.to_owned());
        let asked =
            update_cancel::request_cancel(&cluster, "a", DryRun::None, |_| Some(wanted.clone()))
                .await;
        drop(asked.unwrap());
    };
    ask(OLD).await;
    own.answer_cancel(OLD, Some("it is too late"))
        .await
        .unwrap();
    let refused = server.object(NODE)["metadata"]["annotations"].clone();
    ask(NEW).await;
    let wish = CordonRequest::Cordon { keep: true };
    node_commands::apply_cordon(&cluster, "a", wish, DryRun::None)
        .await
        .unwrap();
    server.edit(NODE, |node| {
        let annotations = &mut node["metadata"]["annotations"];
        // As documented, with kubectl.
        annotations[keys::annotation::FORCE_DRAIN] = json!("the budget is wrong");
        // A request removes the answer to an earlier one; an agent may answer that one later.
        let answer = keys::annotation::CANCEL_REFUSED;
        annotations[answer] = refused[answer].clone();
    });
    fixture::write("node-requests.yaml", yaml(&server.object(NODE)));
}

#[tokio::test]
async fn a_cordon_of_the_last_version_is_recognised_and_removed() {
    let (server, own) = node("node-draining.yaml").await;
    let view = own.read().await.unwrap().unwrap();
    assert!(view.is_cordoned() && view.has_cordon_mark());
    assert_eq!(view.state(), Some(NodeUpdateState::Working));
    assert_eq!(
        (view.current_config(), view.desired_config()),
        (Some(OLD), Some(NEW))
    );
    assert_eq!(
        view.desired_drain(),
        Some(DrainRequest::Drain(NEW.to_owned()))
    );
    assert_eq!(view.cancelled(), Some(NEW));
    assert_eq!(
        own.cordon("rendered-worker-1", false).await.unwrap(),
        Cordon::ByMachinist
    );
    assert_eq!(server.writes().len(), 0);
    assert_eq!(own.uncordon().await.unwrap(), Uncordon::Done);
    assert!(server.object(NODE)["spec"]["unschedulable"].is_null());
    assert_eq!(own.uncordon().await.unwrap(), Uncordon::NotOurs);
}

#[tokio::test]
async fn drain_annotations_of_the_last_version_are_removed_after_the_update() {
    let (server, own) = node("node-draining.yaml").await;
    let marked = server.object(NODE);
    own.uncordon().await.unwrap();
    // No device is left, and the node is ready.
    let mut done = notice(&report(Phase::Idle, NEW));
    done.fitness = Some(NodeFitness {
        uid: plain()["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        fit: true,
    });
    done.annotations.insert(keys::annotation::CANCELLED, None);
    let keeps = keeping(&own, done.clone());
    let rests = |server: &Server| {
        let node = server.object(NODE);
        has_condition(server, keys::condition::READY, "True")
            && has_condition(server, keys::condition::DRAIN, "False")
            && node["spec"]["taints"] == plain()["spec"]["taints"]
            && node["metadata"]["labels"] == plain()["metadata"]["labels"]
    };
    server.until("rest", rests).await;
    drop(keeps);
    let node = server.object(NODE);
    let left = node["metadata"]["annotations"].as_object().unwrap();
    let ours = |name: &&String| name.contains("machinist");
    assert_eq!(left.keys().find(ours), None);
    assert_eq!(left[keys::protocol::STATE], "Done");
    // One condition of each kind, and no kind that only the last version knew.
    let kinds = |node: &Value| {
        let all = node["status"]["conditions"].as_array().unwrap().clone();
        let kinds = all
            .iter()
            .map(|one| one["type"].as_str().unwrap().to_owned());
        kinds.filter(|kind| kind != "Ready").collect::<Vec<_>>()
    };
    let known = done.conditions.iter().map(|one| one.kind.to_owned());
    assert_eq!(kinds(&node), known.collect::<Vec<_>>());
    assert_eq!(kinds(&marked).len(), 4);
}

#[tokio::test]
async fn uninstall_removes_all_node_keys_of_the_last_version() {
    let (server, own) = node("node-draining.yaml").await;
    let left = own.clean_up_node(false).await.unwrap().unwrap();
    assert!(left.uncordoned && !left.kept_cordoned);
    assert_eq!(left.conditions.len(), 4);
    let node = server.object(NODE);
    assert_eq!(node["spec"], plain()["spec"]);
    assert_eq!(node["metadata"]["labels"], plain()["metadata"]["labels"]);
    assert_eq!(node["status"], plain()["status"]);
    let annotations = node["metadata"]["annotations"].as_object().unwrap();
    let ours = |name: &&String| name.contains("machinist");
    assert_eq!(annotations.keys().find(ours), None);
}

#[tokio::test]
async fn operator_requests_and_replies_of_the_last_version_are_understood() {
    let (server, own) = node("node-requests.yaml").await;
    let view = own.read().await.unwrap().unwrap();
    assert!(view.keeps_cordon());
    assert_eq!(view.forced_drain(), Some("the budget is wrong"));
    assert_eq!(view.cancel(), Some(NEW));
    let cluster = server.cluster().await;
    let mut standing = update_cancel::read_annotations(&cluster, "a")
        .await
        .unwrap();
    assert_eq!(standing.asked.as_deref(), Some(NEW));
    // The answer counts once its request is gone.
    standing.asked = None;
    assert_eq!(standing.refusal(OLD), Some("it is too late"));
    own.answer_cancel(NEW, Some("also too late")).await.unwrap();
    let standing = update_cancel::read_annotations(&cluster, "a")
        .await
        .unwrap();
    assert_eq!(standing.refusal(NEW), Some("also too late"));
    assert_eq!(own.uncordon().await.unwrap(), Uncordon::KeptByOperator);
    assert_eq!(server.object(NODE)["spec"]["unschedulable"], true);
    let before =
        node_commands::apply_cordon(&cluster, "a", CordonRequest::Uncordon, DryRun::None).await;
    assert!(before.unwrap().kept);
    let node = server.object(NODE);
    assert!(node["spec"]["unschedulable"].is_null());
}

fn progress(phase: Phase) -> MachineConfigNodeStatus {
    let report = UpdateReport {
        phase,
        ..draining()
    };
    MachineConfigNodeStatus {
        conditions: publisher::conditions(&report, false, Some("JobFailed: x"), &[], at()),
        config_version: Some(ConfigVersion {
            current: OLD.to_owned(),
            desired: NEW.to_owned(),
        }),
        observed_generation: None,
        pinned_image_sets: Vec::new(),
    }
}

/// Publishes `status` in the MachineConfigNode until it is written.
async fn publishes(server: &Server, own: &OwnNode, status: MachineConfigNodeStatus) {
    let (_told, received) = watch::channel(Some(status));
    let stop = CancellationToken::new();
    let _guards = [stop.clone().drop_guard()];
    let pool = watch::channel(Some("worker".to_owned())).1;
    let cluster = server.cluster().await;
    tokio::spawn(own.clone().watch_node(stop.clone()));
    let keeping = machine_config_node::maintain_status(
        cluster,
        own.clone(),
        pool,
        received,
        Clock::system(),
        stop,
    );
    tokio::spawn(keeping);
    let is_there = |server: &Server| !server.object(PROGRESS)["status"].is_null();
    server.until("it is written", is_there).await;
    let spec = format!("PATCH {PROGRESS}");
    server
        .until("the spec", |it| !it.requests_starting(&spec).is_empty())
        .await;
}

#[tokio::test]
async fn progress_of_the_last_version_is_read_and_keeps_its_times() {
    const NAME: &str = "machineconfignode.yaml";
    if fixture::is_wanted(NAME) {
        let (server, own) = serving(plain()).await;
        publishes(&server, &own, progress(Phase::Draining)).await;
        fixture::write(NAME, yaml(&server.object(PROGRESS)));
    }
    let (server, own) = serving(plain()).await;
    let text = String::from_utf8(fixture::read(NAME)).unwrap();
    server.put(PROGRESS, serde_saphyr::from_str(&text).unwrap());
    let cluster = server.cluster().await;
    let read = machine_config_node::read(&cluster, "a").await.unwrap();
    let read = read.unwrap();
    // Messages are free text.
    let facts = |status: &MachineConfigNodeStatus| {
        let conditions = status.conditions.iter();
        let fact = |one: &NodeCondition| {
            let (kind, reason) = (one.kind.clone(), one.reason.clone());
            (kind, one.status, reason, one.last_transition_time)
        };
        conditions.map(fact).collect::<Vec<_>>()
    };
    assert_eq!(facts(&read), facts(&progress(Phase::Draining)));
    assert_eq!(
        read.config_version,
        progress(Phase::Draining).config_version
    );
    let status = |kind: NodeConditionKind| {
        let mut all = read.conditions.iter();
        all.find(|one| one.kind == kind.as_str()).unwrap().status
    };
    assert_eq!(status(NodeConditionKind::Cordoned), Progress::True);
    assert_eq!(status(NodeConditionKind::Drained), Progress::Unknown);
    assert_eq!(status(NodeConditionKind::Uncordoned), Progress::False);
    // A later agent keeps the time of what has not changed.
    let mut later = progress(Phase::Draining);
    for condition in &mut later.conditions {
        condition.last_transition_time = Timestamp::now();
    }
    publishes(&server, &own, later).await;
    let now = machine_config_node::read(&cluster, "a").await.unwrap();
    assert_eq!(facts(&now.unwrap()), facts(&read));
}
