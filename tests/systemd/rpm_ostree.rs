//! Transactions of rpm-ostree over D-Bus.

use std::{collections::BTreeSet, time::Duration};

use machinist_systemd::Systemd;
use machinist_testkit::fake_rpm_ostree::FakeRpmOstree;
use machinist_update::os::{BackgroundError, PackageChange, RpmOstree as _, TransactionKind};

use super::LIMIT;

fn names(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|one| (*one).to_owned()).collect()
}

fn change(image: Option<&str>) -> PackageChange {
    PackageChange {
        image: image.map(str::to_owned),
        install: names(&["kernel-rt-core", "usbguard"]),
        uninstall: names(&["sysstat"]),
        remove: names(&["kernel"]),
        restore: names(&["kernel-modules"]),
    }
}

/// The names of a request's options, in their order.
fn options(own: &str, keep_image: Option<&str>) -> Vec<String> {
    let common = [
        "allow-inactive",
        "idempotent-layering",
        "initiating-command-line",
    ];
    let all = common.into_iter().chain([own]).chain(keep_image);
    let mut all: Vec<String> = all.map(str::to_owned).collect();
    all.sort();
    all
}

#[tokio::test]
async fn rpm_ostree_gets_each_change_in_one_transaction() {
    for image in [None, Some("ostree-unverified-registry:q.io/os@sha256:ab")] {
        let wanted = change(image);
        let expected = wanted.clone();
        let daemon = FakeRpmOstree::new(move |change, _| {
            assert_eq!(*change, expected);
            Ok(())
        });
        let client = Systemd::new(daemon.lines());
        for kind in [TransactionKind::Download, TransactionKind::Stage] {
            client.change_packages(&wanted, kind, LIMIT).await.unwrap();
        }
        let keep_image = image.is_none().then_some("no-pull-base");
        let all = [
            options("download-only", keep_image),
            options("lock-finalization", keep_image),
        ];
        assert_eq!(daemon.requests(), all);
        assert_eq!(daemon.clients(), ["machinist", "machinist"]);
    }
}

#[tokio::test]
async fn a_failed_transaction_has_the_words_of_rpm_ostree() {
    let daemon = FakeRpmOstree::new(|_, _| Err("Packages not found: usbguard".to_owned()));
    let client = Systemd::new(daemon.lines());
    let change = change(None);
    let failed = client
        .change_packages(&change, TransactionKind::Stage, LIMIT)
        .await;
    let Err(BackgroundError::Failed(error)) = failed else {
        panic!("{failed:?}");
    };
    assert_eq!(
        error.to_string(),
        "rpm-ostree: Packages not found: usbguard"
    );
    // Without a daemon the error names the bus.
    let nothing = Systemd::new(machinist_systemd::BusAddresses::none());
    let failed = nothing
        .change_packages(&change, TransactionKind::Stage, LIMIT)
        .await;
    assert!(
        matches!(failed, Err(BackgroundError::Failed(_))),
        "{failed:?}"
    );
}

#[tokio::test]
async fn a_transaction_is_cancelled_after_its_limit_and_after_a_dropped_request() {
    let daemon = FakeRpmOstree::new(|_, _| Ok(()));
    daemon.get_stuck();
    let client = Systemd::new(daemon.lines());
    let change = change(None);
    let short = Duration::from_millis(200);
    let ended = client
        .change_packages(&change, TransactionKind::Download, short)
        .await;
    assert!(matches!(ended, Err(BackgroundError::TimedOut)), "{ended:?}");
    assert_eq!(daemon.cancelled(), 1);
    let dropped = client.change_packages(&change, TransactionKind::Download, LIMIT);
    assert!(tokio::time::timeout(short, dropped).await.is_err());
    client.cancel_change().await.unwrap();
    assert_eq!(daemon.cancelled(), 2);
    client.cancel_change().await.unwrap();
    assert_eq!(daemon.cancelled(), 2);
}

/// rpm-ostree holds libostree's lock from the creation of a transaction.
#[tokio::test]
async fn a_transaction_that_was_not_started_ends_with_its_request() {
    let daemon = FakeRpmOstree::new(|_, _| Ok(()));
    let client = Systemd::new(daemon.lines());
    let change = change(None);
    let download = || client.change_packages(&change, TransactionKind::Download, LIMIT);
    daemon.set_silent(true);
    let short = Duration::from_millis(200);
    assert!(tokio::time::timeout(short, download()).await.is_err());
    assert_eq!(daemon.requests().len(), 1);
    client.cancel_change().await.unwrap();
    wait_until_idle(&daemon).await;
    daemon.set_silent(false);
    download().await.unwrap();
    wait_until_idle(&daemon).await;
}

/// The daemon exits only without clients.
async fn wait_until_idle(daemon: &FakeRpmOstree) {
    let idle = async {
        while !daemon.is_idle() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, idle).await.unwrap();
}
