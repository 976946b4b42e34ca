//! The agent's requests to a vendor: for the kubelet, and before the machine changes.

use std::{sync::Arc, time::Duration};

use machinist_device::{
    Resource, ResourceName,
    allocation::PreferredRequest,
    allocator::{AllocateError, AllocationResponse, Allocator as _},
};
use machinist_device_plugins::vendor_api::{
    OrderOutcome,
    api::v1::{self as api, answer, question},
};

use machinist_testkit::{
    device_host::{Agent, Machine},
    vendor_program::{Program, device, lists, node, vendor_is},
};

const ASKS: api::Asks = api::Asks {
    allocate: true,
    pre_start: true,
    preferred: true,
};

/// A vendor that wants to receive every request about its two devices; only the first has a device
/// spec.
async fn asked_for(machine: &Machine, agent: &Agent) -> (Program, Arc<Resource>) {
    machine.plug("acme0");
    machine.plug("acme1");
    machine.vendor("acme", "  deadline: 1s\n");
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let mut without = device("acme1");
    without.recipe = None;
    let snapshot = api::Snapshot {
        resource: "acme.dev/x".into(),
        generation: 1,
        devices: vec![device("acme0"), without],
        asks: Some(ASKS),
    };
    program.snapshot(snapshot).await.unwrap();
    lists(agent, &["x/acme0=Healthy", "x/acme1=Healthy"]).await;
    let name = ResourceName::new("acme.dev/x").unwrap();
    let inventory = agent.handle.inventory();
    let resource = inventory.borrow().resources[&name].clone();
    (program, resource)
}

fn ids(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocation_is_answered_by_the_vendor_and_checked_against_its_file() {
    let machine = Machine::new();
    let agent = machine.agent();
    let (mut program, resource) = asked_for(&machine, &agent).await;
    let both = ids(&["acme0", "acme1"]);
    let vendors = agent.handle.vendors();
    let answers = async {
        for recipe in [node("/dev/acme1"), node("/dev/sda")] {
            let question = program.question().await;
            let Some(question::Asked::Allocate(asked)) = question.asked else {
                panic!("{question:?}");
            };
            assert_eq!((asked.devices, question.deadline_ms), (both.clone(), 1000));
            program
                .answer(question.id, answer::Answer::Recipe(recipe))
                .await;
        }
        let question = program.question().await;
        let error = "no firmware\nfor it".to_owned();
        program
            .answer(question.id, answer::Answer::Error(error))
            .await;
        // This request is not answered.
        program.question().await;
        program
    };
    let asking = async {
        let AllocationResponse::Grant(grant) =
            vendors.allocate(&resource, (&both).into()).await.unwrap()
        else {
            panic!("no grant");
        };
        assert_eq!(grant.nodes[0].host, "/dev/acme1");
        let mut refusals = Vec::new();
        for _ in 0..3 {
            refusals.push(
                vendors
                    .allocate(&resource, (&both).into())
                    .await
                    .unwrap_err()
                    .to_string(),
            );
        }
        refusals
    };
    let (program, refusals) = tokio::join!(answers, asking);
    for (refusal, expected) in refusals.iter().zip([
        "/dev/sda is not among the nodes that vendor acme may hand out",
        "allocation from vendor acme rejected: no firmware for it",
        "vendor acme did not respond within 1 s",
    ]) {
        assert!(refusal.contains(expected), "{refusal}");
    }
    drop(program);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_vendor_recipes_are_used_and_other_allocations_rejected() {
    let machine = Machine::new();
    let agent = machine.agent();
    let (program, resource) = asked_for(&machine, &agent).await;
    program.close().await;
    vendor_is(&agent, "acme", |one| one.instance.is_none()).await;
    let vendors = agent.handle.vendors();
    let answer = vendors
        .allocate(&resource, (&ids(&["acme0"])).into())
        .await
        .unwrap();
    assert!(
        matches!(answer, AllocationResponse::Grant(grant) if grant.nodes[0].host == "/dev/acme0")
    );
    for refused in [
        vendors
            .allocate(&resource, (&ids(&["acme0", "acme1"])).into())
            .await
            .unwrap_err(),
        vendors
            .pre_start(&resource, (&ids(&["acme0"])).into())
            .await
            .unwrap_err(),
    ] {
        assert!(
            matches!(refused, AllocateError::Unreachable { .. }),
            "{refused}"
        );
        let expected = "vendor acme is unreachable: it closed its session";
        assert_eq!(refused.to_string(), expected);
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_answers_preferred_allocation_and_pre_start() {
    let machine = Machine::new();
    let agent = machine.agent();
    let (mut program, resource) = asked_for(&machine, &agent).await;
    let vendors = agent.handle.vendors();
    let (available, must) = (ids(&["acme0", "acme1"]), Vec::new());
    let wish = PreferredRequest {
        available: &available,
        must: &must,
        size: 1,
    };
    let answers = async {
        let question = program.question().await;
        assert!(
            matches!(question.asked, Some(question::Asked::Preferred(asked)) if asked.size == 1)
        );
        let devices = ids(&["acme1"]);
        let choice = answer::Answer::Choice(api::Choice { devices });
        program.answer(question.id, choice).await;
        let question = program.question().await;
        assert!(matches!(question.asked, Some(question::Asked::PreStart(_))));
        program
            .answer(question.id, answer::Answer::Done(api::Done {}))
            .await;
        let question = program.question().await;
        // An answer of the wrong type.
        program
            .answer(question.id, answer::Answer::Recipe(api::Recipe::default()))
            .await;
    };
    let asking = async {
        assert_eq!(vendors.preferred(&resource, wish).await.unwrap(), ["acme1"]);
        vendors
            .pre_start(&resource, (&ids(&["acme1"])).into())
            .await
            .unwrap();
        let refused = vendors
            .pre_start(&resource, (&ids(&["acme1"])).into())
            .await
            .unwrap_err();
        assert!(refused.to_string().contains("another request"), "{refused}");
    };
    tokio::join!(answers, asking);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_vendor_gets_the_quiesce_request_also_when_connecting_later() {
    let machine = Machine::new();
    for name in ["acme", "away", "slow", "stubborn"] {
        machine.vendor(name, "");
    }
    let agent = machine.agent();
    let (mut acme, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let (mut stubborn, _) = machine
        .hello("stubborn", "one", &["acme.dev/y"])
        .await
        .unwrap();
    let (mut slow, _) = machine.hello("slow", "one", &["acme.dev/z"]).await.unwrap();
    let vendors = agent.handle.vendors();
    let answers = async {
        let question = acme.question().await;
        let Some(question::Asked::Quiesce(asked)) = question.asked else {
            panic!("{question:?}");
        };
        assert_eq!(asked.why, "a reboot");
        acme.answer(question.id, answer::Answer::Done(api::Done {}))
            .await;
        let question = stubborn.question().await;
        stubborn
            .answer(question.id, answer::Answer::Error("never".into()))
            .await;
        slow.question().await;
    };
    let quiesce = vendors.quiesce("a reboot", Duration::from_millis(500));
    let ((), obeyed) = tokio::join!(answers, quiesce);
    let obeyed: Vec<_> = obeyed.into_iter().collect();
    let expected = [
        ("acme", OrderOutcome::Done),
        ("away", OrderOutcome::Disconnected),
        ("slow", OrderOutcome::TimedOut),
        ("stubborn", OrderOutcome::Refused("never".into())),
    ];
    assert_eq!(obeyed, expected.map(|(name, one)| (name.to_owned(), one)));
    let (mut away, _) = machine.hello("away", "one", &["acme.dev/w"]).await.unwrap();
    let question = away.question().await;
    assert!(matches!(question.asked, Some(question::Asked::Quiesce(_))));
    let resume = vendors.resume(Duration::from_millis(500));
    let answers = async {
        let question = acme.question().await;
        assert!(matches!(question.asked, Some(question::Asked::Resume(_))));
        acme.answer(question.id, answer::Answer::Done(api::Done {}))
            .await;
    };
    let ((), obeyed) = tokio::join!(answers, resume);
    assert_eq!(obeyed["acme"], OrderOutcome::Done);
    vendor_is(&agent, "away", |one| !one.quiesced).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_absent_at_the_end_of_an_update_gets_the_resume_request_later() {
    let machine = Machine::new();
    machine.vendor("acme", "");
    let agent = machine.agent();
    let vendors = agent.handle.vendors();
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let answers = async {
        let question = program.question().await;
        assert!(matches!(question.asked, Some(question::Asked::Quiesce(_))));
        program
            .answer(question.id, answer::Answer::Done(api::Done {}))
            .await;
    };
    let quiesce = vendors.quiesce("a reboot", Duration::from_secs(5));
    let ((), obeyed) = tokio::join!(answers, quiesce);
    assert_eq!(obeyed["acme"], OrderOutcome::Done);
    drop(program);
    vendor_is(&agent, "acme", |one| one.instance.is_none()).await;
    let obeyed = vendors.resume(Duration::from_millis(500)).await;
    assert_eq!(obeyed["acme"], OrderOutcome::Disconnected);
    // A program that disconnects before its answer may not have received the request.
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let question = program.question().await;
    assert!(matches!(question.asked, Some(question::Asked::Resume(_))));
    drop(program);
    vendor_is(&agent, "acme", |one| one.instance.is_none()).await;
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let question = program.question().await;
    assert!(matches!(question.asked, Some(question::Asked::Resume(_))));
    // It is sent once: the next message is another request.
    program
        .answer(question.id, answer::Answer::Done(api::Done {}))
        .await;
    // Later messages are handled after it.
    program.offer("acme.dev/x", 1, Vec::new()).await.unwrap();
    drop(program);
    vendor_is(&agent, "acme", |one| one.instance.is_none()).await;
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let quiesce = vendors.quiesce("another reboot", Duration::from_millis(500));
    let (question, _) = tokio::join!(program.question(), quiesce);
    assert!(matches!(question.asked, Some(question::Asked::Quiesce(_))));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quiesce_request_to_vendors_survives_an_agent_restart() {
    let machine = Machine::new();
    machine.vendor("acme", "");
    let agent = machine.agent();
    let done = || answer::Answer::Done(api::Done {});
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let answers = async {
        let question = program.question().await;
        assert!(matches!(question.asked, Some(question::Asked::Quiesce(_))));
        program.answer(question.id, done()).await;
    };
    let (quiesced, ()) = tokio::join!(agent.handle.quiesce("an update"), answers);
    quiesced.unwrap();
    agent.stop().await;
    let agent = machine.withholding_agent("an update");
    let (mut program, _) = machine.hello("acme", "one", &["acme.dev/x"]).await.unwrap();
    let question = program.question().await;
    assert!(
        matches!(question.asked, Some(question::Asked::Quiesce(asked)) if asked.why == "an update")
    );
    let answers = async {
        let question = program.question().await;
        assert!(matches!(question.asked, Some(question::Asked::Resume(_))));
        program.answer(question.id, done()).await;
    };
    let (released, ()) = tokio::join!(agent.handle.enable_allocation(), answers);
    released.unwrap();
    // The vendor is not involved when allocation was only disabled.
    agent.handle.disable_allocation("a drain").await.unwrap();
    agent.handle.enable_allocation().await.unwrap();
    program.offer("acme.dev/x", 1, Vec::new()).await.unwrap();
    agent.stop().await;
}

/// More container requests than may be open, none of which is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vendor_busy_with_allocations_still_gets_the_quiesce_request() {
    let machine = Machine::new();
    let agent = machine.agent();
    let (mut program, resource) = asked_for(&machine, &agent).await;
    machine.vendor("acme", "  deadline: 30s\n");
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..80 {
        let (vendors, resource) = (agent.handle.vendors().clone(), resource.clone());
        waiting.spawn(async move {
            let second = ids(&["acme1"]);
            vendors
                .allocate(&resource, (&second).into())
                .await
                .unwrap_err()
        });
    }
    for _ in 0..32 {
        let question = program.question().await;
        assert!(matches!(question.asked, Some(question::Asked::Allocate(_))));
    }
    // The others are refused as busy, not as unreachable.
    let refused = waiting.join_next().await.unwrap().unwrap();
    assert!(
        refused.to_string().contains("too many requests"),
        "{refused}"
    );
    let answers = async {
        let question = program.question().await;
        assert!(matches!(question.asked, Some(question::Asked::Quiesce(_))));
        program
            .answer(question.id, answer::Answer::Done(api::Done {}))
            .await;
    };
    let vendors = agent.handle.vendors();
    let quiesce = vendors.quiesce("a reboot", Duration::from_secs(5));
    let ((), obeyed) = tokio::join!(answers, quiesce);
    assert_eq!(obeyed["acme"], OrderOutcome::Done);
    waiting.abort_all();
    agent.stop().await;
}
