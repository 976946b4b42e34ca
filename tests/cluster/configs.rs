//! The config that the Node names, and the policies that apply to it.

use std::sync::Arc;

use jiff::Timestamp;
use machinist_base::reason::Reason;
use machinist_cluster::machine_config_source::{
    ConfigReadError as Said, ConfigSource, ConfigSubscribers,
};
use machinist_ignition::{ClusterBaseline, ConfigRules, MachineConfig};
use machinist_plan::Policies;
use machinist_status::{Mode, Status, metrics::Metrics};
use machinist_testkit::WAIT_TIMEOUT;
use machinist_update::reconciler::DesiredConfig;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    node::{NODE, following, with_node},
    server::{InjectedFailure, Server},
};

const CONFIGS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigs";
const POLICIES: &str = "/apis/operator.openshift.io/v1/machineconfigurations/cluster";

/// An object as the API server returns it, with the metadata it adds.
fn machine_config(name: &str, mode: &Value) -> Value {
    json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {
            "name": name, "uid": "7", "generation": 1, "creationTimestamp": "2026-11-21T20:00:00Z",
            "annotations": {"machineconfiguration.openshift.io/generated-by-controller-version": "v1"},
            "ownerReferences": [{"apiVersion": "machineconfiguration.openshift.io/v1",
                "kind": "MachineConfigPool", "name": "worker", "uid": "8"}],
        },
        "spec": {
            "config": {"ignition": {"version": "3.4.0"}, "storage": {"files": [{
                "path": "/etc/example", "mode": mode, "contents": {"source": "data:,hunter2"},
            }]}},
            "extensions": [], "fips": false, "kernelArguments": [], "kernelType": "default",
            "baseOSExtensionsContainerImage": "", "osImageURL": "",
        },
    })
}

fn add(server: &Server, name: &str, mode: &Value) {
    server.put(&format!("{CONFIGS}/{name}"), machine_config(name, mode));
}

fn desire(server: &Server, config: &str) {
    server.edit(NODE, |node| {
        node["metadata"]["annotations"]["machineconfiguration.openshift.io/desiredConfig"] =
            json!(config);
    });
}

struct Reading {
    server: Server,
    desired: watch::Receiver<DesiredConfig>,
    policies: watch::Receiver<Option<Arc<Policies>>>,
    trouble: watch::Receiver<Option<Said>>,
    _tasks: (DropGuard, DropGuard),
}

impl Reading {
    async fn of(server: Server, own: machinist_cluster::node::OwnNode) -> Self {
        Self::with_base(server, own, false).await
    }

    async fn with_base(server: Server, own: machinist_cluster::node::OwnNode, first: bool) -> Self {
        let (desired, received) = watch::channel(DesiredConfig::default());
        let (policies, known) = watch::channel(None);
        let (trouble, output) = watch::channel(None);
        let status = Status::starting("/", Mode::Cluster, Timestamp::UNIX_EPOCH);
        let message = ConfigSubscribers {
            desired,
            policies,
            trouble,
            metrics: Metrics::new(watch::channel(Arc::new(status)).1),
        };
        let source = ConfigSource {
            cluster: server.cluster().await,
            node: own.clone(),
            rules: ConfigRules::default(),
            first,
        };
        let stop = CancellationToken::new();
        tokio::spawn(source.watch_config(message, stop.clone()));
        Self {
            server,
            desired: received,
            policies: known,
            trouble: output,
            _tasks: (following(&own), stop.drop_guard()),
        }
    }

    async fn until(&mut self, holds: impl FnMut(&DesiredConfig) -> bool) -> DesiredConfig {
        let waiting = self.desired.wait_for(holds);
        let waited = tokio::time::timeout(WAIT_TIMEOUT, waiting).await;
        let Ok(output) = waited else {
            panic!("not published; requests: {:#?}", self.server.requests())
        };
        output.unwrap().clone()
    }

    async fn until_config(&mut self, wanted: &str) {
        self.until(|it| matches!(it, DesiredConfig::Config(config, _) if config.name == wanted))
            .await;
    }

    async fn until_refused(&mut self, wanted: Reason) -> String {
        let refused = |it: &DesiredConfig| matches!(it, DesiredConfig::Refused(all) if all.iter().any(|it| it.reason == wanted));
        let DesiredConfig::Refused(refusals) = self.until(refused).await else {
            unreachable!()
        };
        refusals[0].to_string()
    }
}

#[tokio::test]
async fn the_desired_config_is_read_once_by_name() {
    let (server, own) = with_node().await;
    add(&server, "rendered-worker-1", &json!(420));
    add(&server, "rendered-worker-2", &json!(384));
    let mut reading = Reading::of(server.clone(), own).await;
    reading.until_config("rendered-worker-1").await;
    // The Node changes all the time; only another name causes a read.
    server.edit(NODE, |node| node["metadata"]["labels"]["x"] = json!("y"));
    desire(&server, "rendered-worker-2");
    reading.until_config("rendered-worker-2").await;
    let asked: Vec<_> = server.requests_starting(&format!("GET {CONFIGS}"));
    let asked: Vec<_> = asked
        .iter()
        .map(|it| it.what.rsplit('/').next().unwrap())
        .collect();
    assert_eq!(asked, ["rendered-worker-1", "rendered-worker-2"]);
    assert_eq!(
        *reading.policies.borrow(),
        None,
        "not found in this cluster"
    );
    assert_eq!(server.writes().len(), 0);
}

/// Waits until this config is published.
async fn published(reading: &mut Reading, wanted: &str) -> Arc<MachineConfig> {
    let named = |it: &DesiredConfig| matches!(it, DesiredConfig::Config(config, _) if config.name == wanted);
    match reading.until(named).await {
        DesiredConfig::Config(config, _) => config,
        _ => unreachable!(),
    }
}

#[tokio::test]
async fn a_first_config_is_published_with_the_nodes_current_config() {
    let (server, own) = with_node().await;
    let mut before = machine_config("rendered-worker-0", &json!(420));
    // Nothing else of it is validated: it need not be acceptable here.
    before["spec"]["config"]["storage"]["disks"] =
        json!([{"device": "/dev/sda", "wipeTable": true}]);
    before["spec"]["config"]["storage"]["files"][0]["path"] = json!("relative");
    before["spec"]["baseOSExtensionsContainerImage"] = json!("quay.io/extensions@sha256:1");
    server.put(&format!("{CONFIGS}/rendered-worker-0"), before);
    add(&server, "rendered-worker-1", &json!(420));
    server.edit(NODE, |node| {
        node["metadata"]["annotations"]["machineconfiguration.openshift.io/currentConfig"] =
            json!("rendered-worker-0");
    });
    let mut reading = Reading::with_base(server.clone(), own.clone(), true).await;
    let config = published(&mut reading, "rendered-worker-1").await;
    let ClusterBaseline::Node(Some(before)) = &config.before else {
        panic!("{:?}", config.before)
    };
    let image = before.config.extensions_image.as_deref();
    assert_eq!(image, Some("quay.io/extensions@sha256:1"));
    assert!(before.has_disk_layout && before.config.disk_layout.contains_key("disks"));

    // Where the machine is on a config already, that one is used, and the other is not read.
    let asked = server
        .requests_starting(&format!("GET {CONFIGS}/rendered-worker-0"))
        .len();
    let mut reading = Reading::of(server.clone(), own).await;
    let config = published(&mut reading, "rendered-worker-1").await;
    assert!(
        matches!(config.before, ClusterBaseline::Node(None)),
        "{:?}",
        config.before
    );
    let after = server
        .requests_starting(&format!("GET {CONFIGS}/rendered-worker-0"))
        .len();
    assert_eq!(after, asked);
}

#[tokio::test]
async fn a_first_config_equal_to_the_current_config_is_its_own_baseline() {
    let (server, own) = with_node().await;
    add(&server, "rendered-worker-1", &json!(420));
    server.edit(NODE, |node| {
        node["metadata"]["annotations"]["machineconfiguration.openshift.io/currentConfig"] =
            json!("rendered-worker-1");
    });
    let mut reading = Reading::with_base(server, own, true).await;
    let config = published(&mut reading, "rendered-worker-1").await;
    assert!(
        matches!(config.before, ClusterBaseline::Node(Some(_))),
        "{:?}",
        config.before
    );
    // The origin of an entry has no line and column, because only the API server has the text.
    let origin = &config.files.values().next().unwrap().origin;
    assert_eq!((origin.line, origin.column), (None, None));
    assert!(origin.field.is_some() && origin.file.is_some());
}

#[tokio::test]
async fn a_first_config_is_read_even_if_the_nodes_current_config_is_deleted() {
    let (server, own) = with_node().await;
    add(&server, "rendered-worker-1", &json!(420));
    server.edit(NODE, |node| {
        node["metadata"]["annotations"]["machineconfiguration.openshift.io/currentConfig"] =
            json!("rendered-worker-0");
    });
    let mut reading = Reading::with_base(server, own, true).await;
    let config = published(&mut reading, "rendered-worker-1").await;
    assert!(
        matches!(config.before, ClusterBaseline::Node(None)),
        "{:?}",
        config.before
    );
}

#[tokio::test]
async fn a_missing_config_is_reported_and_read_once_it_exists() {
    let (server, own) = with_node().await;
    let mut reading = Reading::of(server.clone(), own).await;
    let output = reading.until_refused(Reason::ConfigNotFound).await;
    assert!(
        output.contains("MachineConfig rendered-worker-1 not found"),
        "{output}"
    );
    add(&server, "rendered-worker-1", &json!(420));
    reading.until_config("rendered-worker-1").await;
}

#[tokio::test]
async fn a_rejected_config_name_is_read_again_after_removal_and_return() {
    let (server, own) = with_node().await;
    let mut reading = Reading::of(server.clone(), own).await;
    reading.until_refused(Reason::ConfigNotFound).await;
    desire(&server, "");
    reading
        .until(|it| matches!(it, DesiredConfig::Nothing))
        .await;
    desire(&server, "rendered-worker-1");
    reading.until_refused(Reason::ConfigNotFound).await;
    add(&server, "rendered-worker-1", &json!(420));
    reading.until_config("rendered-worker-1").await;
    // A config that was read stays; without another name no further request is made.
    desire(&server, "");
    desire(&server, "nosuch");
    reading.until_refused(Reason::ConfigNotFound).await;
}

#[tokio::test]
async fn an_invalid_config_name_is_rejected_without_a_request() {
    let (server, own) = with_node().await;
    add(&server, "rendered-worker-1", &json!(420));
    let mut reading = Reading::of(server.clone(), own).await;
    reading.until_config("rendered-worker-1").await;
    let asked = server.requests_starting(&format!("GET {CONFIGS}")).len();
    for name in ["Bad Name/../x", "../../secrets", "rendered-worker-1?x=1"] {
        desire(&server, name);
        let named = |it: &DesiredConfig| matches!(it, DesiredConfig::Refused(all) if all[0].to_string().contains(name));
        let DesiredConfig::Refused(refusals) = reading.until(named).await else {
            unreachable!()
        };
        assert_eq!(refusals[0].reason, Reason::ConfigNotFound);
        assert_eq!(*reading.trouble.borrow(), None);
    }
    let elsewhere = |it: &&super::server::RecordedRequest| it.what.contains("secrets");
    assert_eq!(server.requests().iter().filter(elsewhere).count(), 0);
    assert_eq!(
        server.requests_starting(&format!("GET {CONFIGS}")).len(),
        asked
    );
    desire(&server, "rendered-worker-1");
    reading.until_config("rendered-worker-1").await;
}

#[tokio::test]
async fn a_config_refusal_names_object_and_field_and_no_file_contents() {
    let (server, own) = with_node().await;
    add(&server, "rendered-worker-1", &json!(99_999));
    let mut reading = Reading::of(server.clone(), own).await;
    let output = reading.until_refused(Reason::ValueInvalid).await;
    assert!(
        output.contains("MachineConfig rendered-worker-1"),
        "{output}"
    );
    assert!(
        output.contains("spec.config.storage.files[0].mode"),
        "{output}"
    );
    assert!(!output.contains("hunter2"), "{output}");
}

#[tokio::test]
async fn an_outage_keeps_the_last_config_and_is_reported_until_it_ends() {
    let (server, own) = with_node().await;
    add(&server, "rendered-worker-1", &json!(420));
    add(&server, "rendered-worker-2", &json!(384));
    let mut reading = Reading::of(server.clone(), own).await;
    reading.until_config("rendered-worker-1").await;
    server.trouble(
        &format!("GET {CONFIGS}"),
        InjectedFailure::Code(500, "InternalError"),
    );
    // The policies cannot be read: the built-in ones must not replace them.
    server.trouble(
        &format!("GET {POLICIES}"),
        InjectedFailure::Code(403, "Forbidden"),
    );
    desire(&server, "rendered-worker-2");
    let mut trouble = reading.trouble.clone();
    for expected in [Reason::ApiServerUnreachable, Reason::ApiServerForbidden] {
        let output = trouble
            .wait_for(|it| it.as_ref().is_some_and(|it| it.reason == expected))
            .await;
        drop(output.unwrap());
        let now = reading.desired.borrow().clone();
        assert!(
            matches!(now, DesiredConfig::Config(config, _) if config.name == "rendered-worker-1")
        );
    }
    reading.until_config("rendered-worker-2").await;
    assert_eq!(*reading.trouble.borrow(), None);
}

#[tokio::test]
async fn cluster_policies_are_published_before_their_config() {
    let (server, own) = with_node().await;
    add(&server, "rendered-worker-1", &json!(420));
    let spec = json!({"managementState": "Managed", "nodeDisruptionPolicy": {"files": [
        {"path": "/etc/example", "actions": [{"type": "None"}]},
    ]}});
    let object =
        json!({"kind": "MachineConfiguration", "metadata": {"name": "cluster"}, "spec": spec});
    server.put(POLICIES, object.clone());
    let mut reading = Reading::of(server.clone(), own).await;
    reading.until_config("rendered-worker-1").await;
    let expected = Policies::from_machine_configuration(&object).unwrap();
    assert_eq!(reading.policies.borrow().as_deref(), Some(&expected));

    add(&server, "rendered-worker-2", &json!(384));
    server.edit(POLICIES, |object| {
        object["spec"]["nodeDisruptionPolicy"]["files"][0]["actions"] = json!([{"type": "Dance"}]);
    });
    desire(&server, "rendered-worker-2");
    let output = reading.until_refused(Reason::ValueInvalid).await;
    assert!(output.contains("MachineConfiguration cluster"), "{output}");
}
