//! Starts, crashes and restarts: of the program, of the agent, of the vendor's file.

use machinist_device_plugins::vendor_api::api::v1::{
    self as api, Reason, from_agent, from_vendor::Said,
};
use tonic::Code;

use machinist_testkit::{
    WAIT_TIMEOUT,
    device_host::Machine,
    vendor_program::{device, listed, lists, vendor_is, wait},
};

fn machine() -> Machine {
    let machine = Machine::new();
    machine.plug("acme0");
    machine.plug("acme1");
    machine.vendor("acme", "");
    machine
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_advertises_devices_and_reports_their_health() {
    let machine = machine();
    let agent = machine.agent();
    let (mut program, welcome) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    assert_eq!(
        (welcome.api_version.as_str(), welcome.grace_ms),
        ("v1", 1000)
    );
    assert_eq!(welcome.limits.unwrap().devices, 1000);
    assert_eq!(welcome.kept, []);
    program
        .offer("acme.dev/x", 1, vec![device("acme0"), device("acme1")])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy", "x/acme1=Healthy"]).await;
    let mut hot = device("acme1");
    (hot.health, hot.reason) = (api::Health::Unhealthy.into(), "92 °C".into());
    program
        .offer("acme.dev/x", 2, vec![device("acme0"), hot])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy", "x/acme1=Unhealthy (92 °C)"]).await;
    program
        .offer("acme.dev/x", 3, vec![device("acme0")])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_vendor_session_keeps_devices_for_the_grace_and_can_resume() {
    let machine = machine();
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    program
        .offer("acme.dev/x", 5, vec![device("acme0")])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    program.close().await;
    vendor_is(&agent, "acme", |one| one.lapsing.is_some()).await;
    assert_eq!(listed(&agent.handle.status_now()), ["x/acme0=Healthy"]);
    let status = agent
        .until("lapsed", |status| listed(status)[0].contains("Unhealthy"))
        .await;
    let shown = &listed(&status)[0];
    assert!(
        shown.contains("vendor acme is disconnected: it closed its session"),
        "{shown}"
    );
    let (mut program, welcome) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    assert_eq!(welcome.kept[0].generation, 5);
    lists(&agent, &["x/acme0=Healthy"]).await;
    let old = program
        .offer("acme.dev/x", 4, vec![device("acme1")])
        .await
        .unwrap_err();
    assert_eq!(old.reason(), Reason::GenerationOld);
    assert!(old.message.contains("older than 5"), "{}", old.message);
    program
        .offer("acme.dev/x", 5, vec![device("acme0")])
        .await
        .unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_grace_starts_also_if_a_vendor_dies_during_a_snapshot() {
    let machine = machine();
    let agent = machine.agent();
    for round in 0..20 {
        let (program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
        let snapshot = api::Snapshot {
            resource: "acme.dev/x".into(),
            generation: round + 1,
            devices: vec![device("acme0")],
            asks: None,
        };
        program.send_message(Said::Snapshot(snapshot)).await;
        // Before, during and after the check of the socket.
        tokio::time::sleep(std::time::Duration::from_micros(round * 100)).await;
        drop(program);
        vendor_is(&agent, "acme", |one| {
            one.instance.is_none() && one.lapsing.is_some()
        })
        .await;
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_vendor_instance_waits_for_the_first_and_starts_afresh() {
    let machine = machine();
    let agent = machine.agent();
    let (mut first, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    first
        .offer("acme.dev/x", 9, vec![device("acme0")])
        .await
        .unwrap();
    let refused = machine
        .hello("acme", "two", &["acme.dev/x"])
        .await
        .err()
        .unwrap();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(
        refused
            .message()
            .contains("instance \"one\" of vendor acme already has a session"),
        "{refused}"
    );
    let (mut again, welcome) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    assert_eq!(welcome.kept.len(), 1);
    assert_eq!(
        first.wait_for_end().await.code(),
        Code::Aborted,
        "the dead stream is replaced"
    );
    again
        .offer("acme.dev/x", 10, vec![device("acme0")])
        .await
        .unwrap();
    drop(again);
    vendor_is(&agent, "acme", |one| one.instance.is_none()).await;
    let (mut second, welcome) = machine.hello("acme", "two", &["acme.dev/x"]).await.unwrap();
    assert_eq!(welcome.kept, []);
    second
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_never_republishes_its_devices_loses_them_after_grace() {
    let machine = machine();
    let agent = machine.agent();
    let (mut first, _) = machine
        .hello("acme", "one", &["acme.dev/x", "acme.dev/y"])
        .await
        .unwrap();
    first
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    first
        .offer("acme.dev/y", 1, vec![device("acme1")])
        .await
        .unwrap();
    drop(first);
    vendor_is(&agent, "acme", |one| one.instance.is_none()).await;
    let (_second, _) = machine.hello("acme", "two", &["acme.dev/x"]).await.unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    let expected = "x/acme0=Unhealthy (vendor acme has not offered it again since it reconnected)";
    lists(&agent, &[expected]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_agent_restores_vendor_devices_at_once() {
    let machine = machine();
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    program
        .offer("acme.dev/x", 7, vec![device("acme0")])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    agent.stop().await;
    assert_eq!(program.wait_for_end().await.code(), Code::Unavailable);
    let agent = machine.agent();
    assert_eq!(listed(&agent.handle.status_now()), ["x/acme0=Healthy"]);
    agent
        .until("lapsed", |status| {
            listed(status)[0].contains("has not connected since the agent started")
        })
        .await;
    let (mut program, welcome) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    assert_eq!(welcome.kept, [], "another agent received the generations");
    program
        .offer("acme.dev/x", 7, vec![device("acme0")])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    agent.stop().await;
    std::fs::remove_file(machine.path("etc/machinist/vendors.d/acme.yaml")).unwrap();
    let agent = machine.agent();
    lists(&agent, &[]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_vendor_file_removes_everything_and_its_return_starts_afresh() {
    let machine = machine();
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    program
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    std::fs::remove_file(machine.path("etc/machinist/vendors.d/acme.yaml")).unwrap();
    let last = program.wait_for_end().await;
    assert!(
        last.message().contains("no file declares vendor acme"),
        "{last}"
    );
    lists(&agent, &[]).await;
    let socket = machine.vendor_socket("acme");
    wait("the socket goes", || !socket.exists()).await;
    machine.vendor("acme", "");
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    program
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    agent.stop().await;
    assert!(!socket.exists(), "an agent that stops leaves no socket");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leftovers_of_undeclared_vendors_are_removed_once_all_files_are_readable() {
    let machine = machine();
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    program
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    agent.stop().await;
    let file = |name: &str| machine.path("etc/machinist/vendors.d").join(name);
    std::fs::remove_file(file("acme.yaml")).unwrap();
    // The broken file may be the one that declares acme.
    std::fs::write(file("other.yaml"), "{").unwrap();
    let agent = machine.agent();
    agent
        .until("the change to be reported", |status| {
            !status.problems.is_empty()
        })
        .await;
    lists(&agent, &["x/acme0=Healthy"]).await;
    std::fs::remove_file(file("other.yaml")).unwrap();
    lists(&agent, &[]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_vendor_file_applies_to_the_next_message() {
    let machine = machine();
    let agent = machine.agent();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let both = vec![device("acme0"), device("acme1")];
    program.offer("acme.dev/x", 1, both.clone()).await.unwrap();
    machine.vendor("acme", "  limits: {devices: 1}\n");
    let mut generation = 2;
    let began = std::time::Instant::now();
    let rejected = loop {
        match program.offer("acme.dev/x", generation, both.clone()).await {
            Err(rejected) => break rejected,
            Ok(()) => generation += 1,
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        assert!(began.elapsed() < WAIT_TIMEOUT, "the file is not applied");
    };
    assert_eq!(rejected.reason(), Reason::Limit);
    assert!(
        rejected.message.contains("2 devices are more than the 1"),
        "{}",
        rejected.message
    );
    lists(&agent, &["x/acme0=Healthy", "x/acme1=Healthy"]).await;
    // A resource that is no longer allowed is withdrawn, and the program is notified.
    machine.vendor_of("acme", "[acme.dev/y]", "");
    let from_agent::Said::Rejected(rejected) = program.next().await.unwrap() else {
        panic!("it is not notified");
    };
    assert_eq!(rejected.reason(), Reason::ResourceForbidden);
    assert_eq!(
        rejected.message,
        "vendor acme may not offer acme.dev/x any more"
    );
    lists(&agent, &[]).await;
    machine.vendor("acme", "  users: [4242]\n");
    assert_eq!(program.wait_for_end().await.code(), Code::PermissionDenied);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_owner_of_a_resource_is_rejected_until_the_first_is_removed() {
    let machine = machine();
    machine.vendor("other", "");
    let agent = machine.agent();
    let (mut first, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    first
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    let (mut second, _) = machine
        .hello("other", "one", &["acme.dev/x"])
        .await
        .unwrap();
    let taken = second
        .offer("acme.dev/x", 1, vec![device("acme1")])
        .await
        .unwrap_err();
    assert_eq!(taken.reason(), Reason::ResourceTaken);
    assert_eq!(
        taken.message,
        "acme.dev/x is already offered by vendor acme"
    );
    lists(&agent, &["x/acme0=Healthy"]).await;
    std::fs::remove_file(machine.path("etc/machinist/vendors.d/acme.yaml")).unwrap();
    let freed = second.next().await.unwrap();
    assert!(matches!(freed, from_agent::Said::Accepted(one) if one.generation == 1));
    lists(&agent, &["x/acme1=Healthy"]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_declaration_waiting_for_a_resource_name_is_scanned_once_it_owns_it() {
    let machine = machine();
    let agent = machine.agent();
    let (mut first, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    first
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    machine.declare("x.yaml", "acme.dev/x", "/dev/acme1", 1);
    agent
        .until("it waits", |status| !status.problems.is_empty())
        .await;
    lists(&agent, &["x/acme0=Healthy"]).await;
    std::fs::remove_file(machine.path("etc/machinist/vendors.d/acme.yaml")).unwrap();
    lists(&agent, &["x/acme1=Healthy"]).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_crash_of_one_vendor_does_not_affect_another() {
    let machine = machine();
    machine.vendor("other", "");
    let agent = machine.agent();
    let (mut first, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    first
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    let (mut second, _) = machine
        .hello("other", "one", &["acme.dev/y"])
        .await
        .unwrap();
    second
        .offer("acme.dev/y", 1, vec![device("acme1")])
        .await
        .unwrap();
    first.close().await;
    let gone = "x/acme0=Unhealthy (vendor acme is disconnected: it closed its session)";
    lists(&agent, &[gone, "y/acme1=Healthy"]).await;
    // The agent task that removed the devices also serves the new session, so the effects of the
    // removal on others are complete.
    let (mut first, _) = machine.hello("acme", "two", &["acme.dev/x"]).await.unwrap();
    first
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy", "y/acme1=Healthy"]).await;
    second
        .offer("acme.dev/y", 2, vec![device("acme1")])
        .await
        .unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_or_replaced_vendor_socket_is_recreated() {
    let machine = machine();
    let agent = machine.agent();
    let socket = machine.vendor_socket("acme");
    wait("the socket", || socket.exists()).await;
    let answers = || std::os::unix::net::UnixStream::connect(&socket).is_ok();
    std::fs::remove_file(&socket).unwrap();
    wait("a new socket", answers).await;
    // The socket of a program that has ended: nothing listens on it.
    let other = socket.with_file_name("other");
    drop(std::os::unix::net::UnixListener::bind(&other).unwrap());
    std::fs::rename(&other, &socket).unwrap();
    wait("ours again", answers).await;
    std::fs::remove_dir_all(socket.parent().unwrap()).unwrap();
    wait("with its directory", answers).await;
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    program
        .offer("acme.dev/x", 1, vec![device("acme0")])
        .await
        .unwrap();
    lists(&agent, &["x/acme0=Healthy"]).await;
    agent.stop().await;
}
