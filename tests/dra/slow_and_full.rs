//! Slow requests, full disks and changes while claims are prepared.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_claim_preparation_blocks_no_other_and_can_be_unprepared() {
    let stage = Stage::new().await;
    stage.claims.allocate("slow", &[("one", &named("ttyA"))]);
    stage.claims.allocate("quick", &[("one", &named("ttyB"))]);
    let answers = stage.claims.hang("slow");
    let (slow, ()) = tokio::join!(stage.prepare("slow"), async {
        until("it is asked for", async || {
            (stage.claims.asked() > 0).then_some(())
        })
        .await;
        stage.prepare("quick").await.unwrap();
        assert_eq!(stage.unprepare("slow").await, "");
    });
    let why = slow.unwrap_err();
    assert!(why.contains("claim lab/slow was unprepared"), "{why}");
    // A late answer of the cluster is ignored.
    drop(answers);
    stage.claims.allocate("another", &[("one", &named("ttyA"))]);
    stage.prepare("another").await.unwrap();
    assert_eq!(stage.spec("slow"), None);
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_concurrent_claims_for_one_device_one_gets_it() {
    let stage = Stage::new().await;
    for name in ["a", "b"] {
        stage.claims.allocate(name, &[("one", &named("ttyA"))]);
    }
    for round in 0..20 {
        let (a, b) = tokio::join!(stage.prepare("a"), stage.prepare("b"));
        assert_ne!(a.is_ok(), b.is_ok(), "round {round}: {a:?}, {b:?}");
        let why = a.err().or(b.err()).unwrap();
        assert!(why.contains("still in use by"), "{why}");
        for name in ["a", "b"] {
            assert_eq!(stage.unprepare(name).await, "");
        }
    }
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn devices_are_not_offered_to_claims_until_the_checkpoint_is_writable() {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    declare(&machine, "dra");
    // No file can replace this directory.
    std::fs::create_dir_all(machine.path(BOOK).join("x")).unwrap();
    let watcher = Watcher::start(machine.root());
    let agent = machine.agent();
    let published = watch::Sender::new(PublishedPool::default());
    let mut wish = agent.claims(FakeClaims::new(), published.subscribe());
    watcher.driver().await;
    agent
        .until("registered", |status| {
            let reason = status.devices.first().and_then(|one| one.reason.clone());
            reason.is_some_and(|reason| reason.contains("not published in a ResourceSlice"))
        })
        .await;
    let offers = |wish: &DesiredPool| wish.as_ref().map_or(0, |pool| pool.devices.len());
    assert_eq!(offers(&wish.borrow_and_update()), 0);
    std::fs::remove_dir_all(machine.path(BOOK)).unwrap();
    let offered = wish.wait_for(|wish| offers(wish) == 2);
    let offered = tokio::time::timeout(WAIT_TIMEOUT, offered).await;
    drop(offered.unwrap().unwrap());
    let book = std::fs::read_to_string(machine.path(BOOK)).unwrap();
    assert!(book.contains(TTY), "{book}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_now_resolves_elsewhere_fails_the_claim() {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    let opt = machine.path("opt/acme");
    std::fs::create_dir_all(&opt).unwrap();
    machine.write(
        "tty.yaml",
        "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {name: x}\nspec:\n  \
         resource: acme.dev/tty\n  serve: dra\n  match: [{path: \"/dev/tty?\"}]\n  \
         container: {mounts: [{from: /opt/acme, to: /acme}]}\n",
    );
    let stage = Stage::on(machine, FakeClaims::new()).await;
    for name in ["a", "b"] {
        stage.claims.allocate("c", &[("one", &named("ttyA"))]);
        stage.claims.allocate(name, &[("one", &named("ttyB"))]);
    }
    stage.prepare("c").await.unwrap();
    std::fs::remove_dir(&opt).unwrap();
    std::os::unix::fs::symlink("/etc", &opt).unwrap();
    let why = stage.prepare("a").await.unwrap_err();
    let leads = "/opt/acme leads to /etc, which a declaration must not mount into containers";
    assert!(why.ends_with(leads), "{why}");
    assert_eq!(stage.spec("a"), None);
    stage.agent.stop().await;
}
