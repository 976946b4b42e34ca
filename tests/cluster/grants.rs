//! Grants of a controller on our Node: found, acknowledged together with the cordon, and ended.

use jiff::Timestamp;
use machinist_cluster::node::{Cordon, update_grant};
use machinist_pool::{Grant, GrantKind, GrantOutcome, grant_ends};
use serde_json::{Value, json};

use super::{
    node::{NODE, with_node},
    server::{InjectedFailure, Server},
};

const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/machinist-system/leases/machinist-controller";
const CONFIG: &str = "rendered-worker-1";

fn grant() -> Grant {
    Grant {
        id: "g1".to_owned(),
        kind: GrantKind::Config,
        pool: "worker".to_owned(),
        node: "a".to_owned(),
        uid: "first".to_owned(),
        target: CONFIG.to_owned(),
        time: Timestamp::UNIX_EPOCH,
        acknowledged: false,
        failed: false,
        rollback: false,
        rest: std::collections::BTreeMap::new(),
    }
}

fn place(server: &Server, grant: &Grant) {
    let text = grant.to_annotation();
    server.edit(NODE, |node| {
        node["metadata"]["annotations"]["machinist.dev/grant"] = json!(text);
    });
}

fn annotation(server: &Server, name: &str) -> Value {
    server.object(NODE)["metadata"]["annotations"][name].clone()
}

#[tokio::test]
async fn a_controller_is_responsible_while_its_lease_has_a_holder() {
    let server = Server::start().await;
    let cluster = server.cluster().await;
    assert!(!cluster.has_grant_controller().await.unwrap());
    for (spec, expected) in [
        (json!({}), false),
        (json!({"holderIdentity": ""}), false),
        // A controller that is down for a while stays responsible.
        (
            json!({"holderIdentity": "pod-1", "renewTime": "2020-01-01T00:00:00.000000Z"}),
            true,
        ),
    ] {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "machinist-controller", "namespace": "machinist-system"},
            "spec": spec,
        });
        server.put(LEASE, lease);
        assert_eq!(cluster.has_grant_controller().await.unwrap(), expected);
    }
    server.trouble("GET", InjectedFailure::Code(403, "Forbidden"));
    assert!(!cluster.has_grant_controller().await.unwrap());
    server.trouble("GET", InjectedFailure::Code(500, "InternalError"));
    assert!(cluster.has_grant_controller().await.is_err());
}

#[tokio::test]
async fn a_grant_is_acknowledged_in_the_patch_that_cordons() {
    let (server, own) = with_node().await;
    assert_eq!(own.cordon(CONFIG, true).await.unwrap(), Cordon::NotGranted);
    assert_eq!(server.writes().len(), 0);
    place(&server, &grant());
    // An operator of the machine has pinned it to another config: the grant is not for that update.
    assert_eq!(
        own.cordon("pinned", false).await.unwrap(),
        Cordon::ByMachinist
    );
    assert!(annotation(&server, "machinist.dev/grant-acknowledged").is_null());
    own.uncordon().await.unwrap();
    let writes = server.writes().len();
    assert_eq!(own.cordon(CONFIG, true).await.unwrap(), Cordon::ByMachinist);
    assert_eq!(server.writes().len(), writes + 1);
    assert_eq!(server.object(NODE)["spec"]["unschedulable"], true);
    assert_eq!(
        annotation(&server, "machinist.dev/grant-acknowledged"),
        "g1"
    );
    assert_eq!(own.cordon(CONFIG, true).await.unwrap(), Cordon::ByMachinist);
    assert_eq!(server.writes().len(), writes + 1, "nothing is left to do");
    // The controller has set another target inside the grant.
    server.edit(NODE, |node| {
        let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("machinist.dev/grant-acknowledged");
    });
    assert_eq!(own.cordon(CONFIG, true).await.unwrap(), Cordon::ByMachinist);
    assert_eq!(
        annotation(&server, "machinist.dev/grant-acknowledged"),
        "g1"
    );
}

#[tokio::test]
async fn a_grant_that_is_withdrawn_meanwhile_is_not_acknowledged() {
    let (server, own) = with_node().await;
    let withdraw = |node: &mut Value| {
        let annotations = node["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove("machinist.dev/grant");
    };
    place(&server, &grant());
    server.trouble("PATCH", InjectedFailure::Meanwhile(withdraw));
    assert_eq!(own.cordon(CONFIG, true).await.unwrap(), Cordon::NotGranted);
    assert!(server.object(NODE)["spec"].get("unschedulable").is_none());
    place(&server, &grant());
    server.trouble("PATCH", InjectedFailure::Meanwhile(withdraw));
    assert_eq!(own.acknowledge_grant(CONFIG).await.unwrap(), Some(false));
    assert!(annotation(&server, "machinist.dev/grant-acknowledged").is_null());
}

#[tokio::test]
async fn a_grant_permits_only_its_node_kind_and_target() {
    let (server, own) = with_node().await;
    let wrong = |change: fn(&mut Grant)| {
        let mut grant = grant();
        change(&mut grant);
        grant
    };
    for grant in [
        wrong(|grant| grant.uid = "an earlier Node".to_owned()),
        wrong(|grant| grant.kind = GrantKind::Reboot),
        wrong(|grant| grant.target = "rendered-worker-2".to_owned()),
    ] {
        place(&server, &grant);
        assert_eq!(own.acknowledge_grant(CONFIG).await.unwrap(), Some(false));
    }
    server.edit(NODE, |node| {
        node["metadata"]["annotations"]["machinist.dev/grant"] = json!("{");
    });
    assert_eq!(own.acknowledge_grant(CONFIG).await.unwrap(), Some(false));
    place(&server, &grant());
    assert_eq!(own.acknowledge_grant(CONFIG).await.unwrap(), Some(true));
    assert!(server.object(NODE)["spec"].get("unschedulable").is_none());
}

#[tokio::test]
async fn the_end_mark_replaces_the_grant() {
    let (server, own) = with_node().await;
    place(&server, &grant());
    own.acknowledge_grant(CONFIG).await.unwrap();
    let view = own.read().await.unwrap().unwrap();
    let mark = grant().end(
        GrantOutcome::RolledBack,
        "VerifyFailed",
        Timestamp::UNIX_EPOCH,
    );
    let person = |node: &mut Value| node["metadata"]["labels"]["x"] = json!("y");
    server.trouble("PATCH", InjectedFailure::Meanwhile(person));
    let conflict = own.end_grant(&view, mark.clone()).await.unwrap_err();
    assert!(conflict.is_conflict(), "{conflict}");
    let view = own.read().await.unwrap().unwrap();
    own.end_grant(&view, mark.clone()).await.unwrap();
    let view = own.read().await.unwrap().unwrap();
    assert_eq!(update_grant(&view), None);
    assert_eq!(grant_ends(&view).unwrap(), std::slice::from_ref(&mark));
    for name in ["machinist.dev/grant", "machinist.dev/grant-acknowledged"] {
        assert!(annotation(&server, name).is_null());
    }
    let writes = server.writes().len();
    own.end_grant(&view, mark).await.unwrap();
    assert_eq!(server.writes().len(), writes, "it has ended already");
}
