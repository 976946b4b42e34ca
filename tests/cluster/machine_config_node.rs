//! The MachineConfigNode: created where its kind exists, written only on change.

use jiff::Timestamp;
use machinist_base::clock::Clock;
use machinist_cluster::machine_config_node;
use machinist_kube_api::{
    ConfigVersion, MachineConfigNodeStatus, NodeCondition, NodeImageSetStatus, Progress,
};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    node::{NODE, following, node, with_node},
    server::{InjectedFailure, Server},
};

const OURS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfignodes/a";
const SPEC: &str = "PATCH /apis/machineconfiguration.openshift.io/v1/machineconfignodes/a";
const STATUS: &str = "PATCH /apis/machineconfiguration.openshift.io/v1/machineconfignodes/a/status";

fn status(updated: Progress, at: &str) -> MachineConfigNodeStatus {
    let condition = |kind: &str, status| NodeCondition {
        kind: kind.to_owned(),
        status,
        reason: kind.to_owned(),
        message: "words".to_owned(),
        last_transition_time: at.parse::<Timestamp>().unwrap(),
    };
    MachineConfigNodeStatus {
        conditions: vec![
            condition("Cordoned", Progress::False),
            condition("Updated", updated),
        ],
        config_version: Some(ConfigVersion {
            current: "rendered-worker-0".to_owned(),
            desired: "rendered-worker-1".to_owned(),
        }),
        observed_generation: None,
        pinned_image_sets: Vec::new(),
    }
}

const EARLY: &str = "2026-11-21T20:00:00Z";
const LATE: &str = "2026-11-21T22:00:00Z";

type Told = watch::Sender<Option<MachineConfigNodeStatus>>;

async fn keeping(
    server: &Server,
    own: &machinist_cluster::node::OwnNode,
) -> (Told, [DropGuard; 2]) {
    let (report, received) = watch::channel(None);
    let stop = CancellationToken::new();
    let cluster = server.cluster().await;
    tokio::spawn(machine_config_node::maintain_status(
        cluster,
        own.clone(),
        watch::channel(None).1,
        received,
        Clock::system(),
        stop.clone(),
    ));
    (report, [following(own), stop.drop_guard()])
}

fn is(server: &Server, updated: &str) -> bool {
    server.object(OURS)["status"]["conditions"][1]["status"] == updated
}

#[tokio::test]
async fn machine_config_node_is_created_and_written_only_on_change() {
    let (server, own) = with_node().await;
    let (report, _tasks) = keeping(&server, &own).await;
    report.send_replace(Some(status(Progress::False, EARLY)));
    server
        .until("the first conditions", |it| is(it, "False"))
        .await;
    let object = server.object(OURS);
    let made = server.requests_starting(SPEC)[0].body.clone();
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "first");
    assert_eq!(made["spec"]["pool"]["name"], "worker");
    assert_eq!(
        made["spec"]["configVersion"]["desired"],
        "rendered-worker-1"
    );
    assert_eq!(
        object["status"]["configVersion"]["current"],
        "rendered-worker-0"
    );
    assert_eq!(server.writes().len(), 2);
    assert!(
        server
            .writes()
            .iter()
            .all(|it| it.query.contains("fieldManager=machinist"))
    );

    // The same status with another time causes no write, and an unchanged condition keeps its time.
    report.send_replace(Some(status(Progress::False, LATE)));
    report.send_replace(Some(status(Progress::True, LATE)));
    server.until("the change", |it| is(it, "True")).await;
    let conditions = server.object(OURS)["status"]["conditions"].clone();
    assert_eq!(conditions[0]["lastTransitionTime"], EARLY);
    assert_eq!(conditions[1]["lastTransitionTime"], LATE);
    assert_eq!(server.requests_starting(STATUS).len(), 2);
    assert_eq!(server.writes().len(), 3);

    // A Node that was registered again has another UID for the owner reference.
    server.remove(NODE);
    let mut again = node();
    again["metadata"]["uid"] = json!("second");
    server.put(NODE, again);
    let owned = |server: &Server| {
        let last = server.writes().pop().unwrap().body;
        last["metadata"]["ownerReferences"][0]["uid"] == "second"
    };
    server.until("the new owner", owned).await;
}

#[tokio::test]
async fn machine_config_node_starts_with_the_nodes_desired_config() {
    let (server, own) = with_node().await;
    let (report, _tasks) = keeping(&server, &own).await;
    let mut early = status(Progress::False, EARLY);
    early.config_version.as_mut().unwrap().desired = "rendered-worker-0".to_owned();
    report.send_replace(Some(early));
    let desired = |server: &Server, name: &str| {
        let object = server.object(OURS);
        let at = |part: &str| object[part]["configVersion"]["desired"] == name;
        at("spec") && at("status")
    };
    let first = |server: &Server| desired(server, "rendered-worker-1");
    server.until("the Node's desired config", first).await;
    server.edit(NODE, |node| {
        node["metadata"]["annotations"]["machineconfiguration.openshift.io/desiredConfig"] =
            json!("rendered-worker-2");
    });
    let second = |server: &Server| desired(server, "rendered-worker-2");
    server.until("another desired config", second).await;
    let old = |it: &super::server::RecordedRequest| {
        it.body
            .to_string()
            .contains(r#""desired":"rendered-worker-0""#)
    };
    assert!(!server.writes().iter().any(old));
}

/// Independent of whether the Node or the report is known first.
#[tokio::test]
async fn a_new_desired_config_is_never_published_as_updated() {
    for by_report in [false, true] {
        let (server, own) = with_node().await;
        let (report, _tasks) = keeping(&server, &own).await;
        report.send_replace(Some(status(Progress::True, EARLY)));
        server
            .until("it is on the first", |it| is(it, "True"))
            .await;
        let known = server.writes().len();
        if by_report {
            let mut next = status(Progress::False, LATE);
            next.config_version.as_mut().unwrap().desired = "rendered-worker-2".to_owned();
            report.send_replace(Some(next));
        }
        server.edit(NODE, |node| {
            node["metadata"]["annotations"]["machineconfiguration.openshift.io/desiredConfig"] =
                json!("rendered-worker-2");
        });
        let is_new = |it: &Server| {
            let object = it.object(OURS);
            let at = |part: &str| object[part]["configVersion"]["desired"] == "rendered-worker-2";
            at("spec") && at("status")
        };
        server.until("the second", is_new).await;
        assert!(is(&server, "False"));
        let late = server.object(OURS)["status"]["conditions"][1]["lastTransitionTime"].clone();
        assert_ne!(late, EARLY);
        // The object is never left with the new name and the old condition.
        let mut updated = json!("True");
        for write in &server.writes()[known..] {
            let is_status = write.body["status"].is_object();
            if is_status {
                updated = write.body["status"]["conditions"][1]["status"].clone();
            }
            let part = if is_status { "status" } else { "spec" };
            if write.body[part]["configVersion"]["desired"] == "rendered-worker-2" {
                assert_eq!(updated, "False", "{by_report}: {}", write.body);
            }
        }
    }
}

/// The reports of the last steps may come faster than they can be written.
#[tokio::test]
async fn every_update_step_is_written_before_it_ends() {
    const STEPS: [&str; 8] = [
        "AppliedFilesAndOS",
        "RebootedNode",
        "Resumed",
        "UpdateComplete",
        "Cordoned",
        "Uncordoned",
        "NodeDegraded",
        "Updated",
    ];
    let (server, own) = with_node().await;
    let (report, _tasks) = keeping(&server, &own).await;
    let steps = |of: &dyn Fn(&str) -> Progress| {
        let mut steps = status(Progress::False, EARLY);
        let template = steps.conditions.remove(0);
        let condition = |kind: &&str| NodeCondition {
            kind: (*kind).to_owned(),
            status: of(kind),
            ..template.clone()
        };
        steps.conditions = STEPS.iter().map(condition).collect();
        Some(steps)
    };
    let read = |body: &serde_json::Value, kind: &str| {
        let mut all = body["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten();
        let found = all.find(|it| it["type"] == kind);
        found.map_or_else(String::new, |it| it["status"].as_str().unwrap().to_owned())
    };
    for cordoned in [true, false] {
        report.send_replace(steps(&|kind| match kind {
            "AppliedFilesAndOS" => Progress::True,
            "Cordoned" if cordoned => Progress::True,
            "RebootedNode" => Progress::Unknown,
            _ => Progress::False,
        }));
        let reboots = |it: &Server| read(&it.object(OURS), "RebootedNode") == "Unknown";
        server.until("the reboot", reboots).await;
        let known = server.writes().len();
        let end = |kind: &str| match kind {
            "Updated" => Progress::True,
            _ => Progress::False,
        };
        report.send_replace(steps(&end));
        let updated = |it: &Server| read(&it.object(OURS), "Updated") == "True";
        server.until("the end", updated).await;
        let writes = server.writes().split_off(known);
        assert_eq!(writes.len(), 2, "{writes:?}");
        let seen = STEPS.map(|kind| read(&writes[0].body, kind) == "True");
        let expected = [true, true, true, true, cordoned, cordoned, false, false];
        assert_eq!(seen, expected, "{}", writes[0].body);
        let seen = STEPS.map(|kind| read(&writes[1].body, kind) == "True");
        assert_eq!(
            seen,
            [false, false, false, false, false, false, false, true]
        );
    }
}

#[tokio::test]
async fn an_agent_start_does_not_rewrite_an_unchanged_machine_config_node() {
    let (server, own) = with_node().await;
    {
        let (report, _tasks) = keeping(&server, &own).await;
        report.send_replace(Some(status(Progress::True, EARLY)));
        server.until("it is written", |it| is(it, "True")).await;
    }
    let (report, _tasks) = keeping(&server, &own).await;
    report.send_replace(Some(status(Progress::True, LATE)));
    let again = |it: &Server| {
        it.requests_starting(SPEC)
            .iter()
            .filter(|it| it.body["spec"].is_object())
            .count()
            == 2
    };
    server.until("it is applied again", again).await;
    report.send_replace(Some(status(Progress::False, LATE)));
    server.until("the next change", |it| is(it, "False")).await;
    assert_eq!(
        server.requests_starting(STATUS).len(),
        2,
        "the first one and the change"
    );
}

#[tokio::test]
async fn without_the_machine_config_node_crd_only_one_request_is_made() {
    let (server, own) = with_node().await;
    server.trouble(SPEC, InjectedFailure::Code(404, "NotFound"));
    let (report, _tasks) = keeping(&server, &own).await;
    report.send_replace(Some(status(Progress::False, EARLY)));
    server
        .until("one try", |it| it.requests_starting(SPEC).len() == 1)
        .await;
    for updated in [Progress::True, Progress::False, Progress::True] {
        report.send_replace(Some(status(updated, EARLY)));
        tokio::task::yield_now().await;
    }
    // A request of another task completes: time enough for an unwanted request.
    own.read().await.unwrap();
    own.read().await.unwrap();
    assert_eq!(server.writes().len(), 1);
}

/// The API server refuses a lower generation in the entry of a set.
#[tokio::test]
async fn a_set_of_images_that_was_created_again_is_a_new_entry() {
    let (server, own) = with_node().await;
    let (report, _tasks) = keeping(&server, &own).await;
    let with_set = |name: &str, generation| {
        let set = NodeImageSetStatus {
            name: name.to_owned(),
            desired_generation: Some(generation),
            ..NodeImageSetStatus::default()
        };
        Some(MachineConfigNodeStatus {
            pinned_image_sets: vec![set],
            ..status(Progress::True, EARLY)
        })
    };
    let is = |generation: i64| {
        move |server: &Server| {
            server.object(OURS)["status"]["pinnedImageSets"][0]["desiredGeneration"] == generation
        }
    };
    report.send_replace(with_set("a", 7));
    server.until("the set", is(7)).await;
    report.send_replace(with_set("a", 8));
    server.until("the next generation", is(8)).await;
    assert_eq!(server.requests_starting(STATUS).len(), 2);
    report.send_replace(with_set("a", 1));
    server.until("the new set", is(1)).await;
    let writes = server.requests_starting(STATUS);
    assert_eq!(writes.len(), 4);
    assert!(writes[2].body["status"]["pinnedImageSets"].is_null());
}
