//! The managed upgrade's object, and that its absence has no effect.

use std::time::Duration;

use machinist_cluster::{ClusterErrorKind, UpgradeConfig};
use serde_json::json;

use super::server::{InjectedFailure, Server};

const OBJECT: &str = "/apis/upgrade.managed.openshift.io/v1alpha1/namespaces/\
                      openshift-managed-upgrade-operator/upgradeconfigs/managed-upgrade-config";

#[tokio::test]
async fn upgrade_config_drain_timeout_and_start_time_are_read() {
    let server = Server::start().await;
    let cluster = server.cluster().await;
    assert_eq!(cluster.upgrade_config().await.unwrap(), None);
    server.put(
        OBJECT,
        json!({
            "metadata": {"name": "managed-upgrade-config"},
            "spec": {
                "type": "OSD", "upgradeAt": "2020-06-20T12:00:00Z", "PDBForceDrainTimeout": 120,
                "capacityReservation": true, "desired": {"channel": "fast-4.4", "version": "4.4.6"},
            },
        }),
    );
    let expected = UpgradeConfig {
        not_before: Some("2020-06-20T12:00:00Z".parse().unwrap()),
        force_after: Some(Duration::from_secs(120 * 60)),
    };
    assert_eq!(cluster.upgrade_config().await.unwrap(), Some(expected));
    // An unset number is zero, and budgets then block for ever.
    server.edit(OBJECT, |object| {
        object["spec"] = json!({"PDBForceDrainTimeout": 0})
    });
    let read = cluster.upgrade_config().await.unwrap();
    assert_eq!(read, Some(UpgradeConfig::default()));
}

#[tokio::test]
async fn a_forbidden_upgrade_config_is_ignored_and_an_outage_is_an_error() {
    let server = Server::start().await;
    let cluster = server.cluster().await;
    server.trouble("GET", InjectedFailure::Code(403, "Forbidden"));
    assert_eq!(cluster.upgrade_config().await.unwrap(), None);
    server.trouble("GET", InjectedFailure::Code(503, "ServiceUnavailable"));
    let error = cluster.upgrade_config().await.unwrap_err();
    assert_eq!(error.code(), 503);
    server.put(
        OBJECT,
        json!({"metadata": {}, "spec": {"upgradeAt": "at noon"}}),
    );
    let error = cluster.upgrade_config().await.unwrap_err();
    assert!(
        matches!(error.why, ClusterErrorKind::NotUnderstood),
        "{error:?}"
    );
}
