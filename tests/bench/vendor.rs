//! The memory that one vendor's program can make the agent use.

use std::time::Duration;

use machinist_device_plugins::vendor_api::api::v1 as api;
use tokio::runtime::Runtime;

use crate::{agent::Agent, figure};
use machinist_testkit::{device_host::Machine, fake_kubelet::FakeKubelet, vendor_program::device};

/// Per resource. Each one reports another device as unhealthy.
const SNAPSHOTS: u64 = 21;
/// After the last change: the status and the saved list have been written by then.
const CALM: Duration = Duration::from_secs(5);
/// The memory goal of all limits on the vendor's side, in MiB.
const GOAL: f64 = 8.0;

/// A vendor's offer: how many resources, devices of each, and variables and attributes of each
/// device.
#[derive(Clone, Copy)]
struct Offer {
    resources: usize,
    devices: usize,
    texts: usize,
}

/// A vendor with the default limits, one with the maximum number of devices, and one with the
/// maximum number of parts.
pub(crate) fn memory() {
    let runtime = Runtime::new().unwrap();
    println!("\na vendor's program, {SNAPSHOTS} snapshots of each resource");
    for (resources, devices, texts) in [(1, 1_000, 1), (1, 2_000, 1), (2, 1_000, 3)] {
        let offer = Offer {
            resources,
            devices,
            texts,
        };
        let (all, anonymous) = runtime.block_on(grown(offer));
        let what = format!("resident memory more, {resources} × {devices} devices × {texts} texts");
        figure(&what, all, "MiB", "≤ 8", all <= GOAL);
        println!("  anonymous {anonymous:.1} MiB");
    }
}

/// The agent's growth: resident, and anonymous.
async fn grown(offer: Offer) -> (f64, f64) {
    let machine = Machine::new();
    let source = machine.path("source");
    std::fs::create_dir(&source).unwrap();
    for number in 0..offer.devices {
        machine.plug(&format!("acme{number}"));
    }
    let most = offer.resources * offer.devices;
    machine.vendor("acme", &format!("  limits: {{devices: {most}}}\n"));
    let kubelet = FakeKubelet::start(machine.root()).await;
    let agent = Agent::start(machine.root(), &source, None);
    let names: Vec<_> = (0..offer.resources)
        .map(|n| format!("acme.dev/r{n}"))
        .collect();
    let output: Vec<&str> = names.iter().map(String::as_str).collect();
    let (mut program, _) = machine.hello("acme", "one", &output).await.unwrap();
    tokio::time::sleep(CALM).await;
    let resident = || [agent.mebibytes("VmRSS:"), agent.mebibytes("RssAnon:")];
    let before = resident();
    for generation in 1..=SNAPSHOTS {
        for name in &names {
            let devices = devices(offer, usize::try_from(generation).unwrap());
            program.offer(name, generation, devices).await.unwrap();
            // Twenty messages per second are allowed.
            tokio::time::sleep(Duration::from_millis(80)).await;
        }
    }
    let listed = |books: &machinist_testkit::fake_kubelet::ResourceAccounts| {
        let all = |name| {
            books
                .get(name)
                .is_some_and(|it| it.list().len() == offer.devices)
        };
        names.iter().all(all)
    };
    kubelet.until("all", listed).await;
    tokio::time::sleep(CALM).await;
    let after = resident();
    (after[0] - before[0], after[1] - before[1])
}

fn devices(offer: Offer, ill: usize) -> Vec<api::Device> {
    let of = |number: usize| {
        let mut one = device(&format!("acme{number}"));
        let texts = |key: &str, value: &str| {
            let each =
                (0..offer.texts).map(|n| (format!("{key}{n}"), format!("{value}{number:06}")));
            each.collect()
        };
        one.attributes = texts("serial", "A5XK");
        one.recipe.as_mut().unwrap().env = texts("ACME_DEVICE", "unit-");
        if number == ill {
            one.health = api::Health::Unhealthy.into();
            one.reason = "it is too hot".to_owned();
        }
        one
    };
    (0..offer.devices).map(of).collect()
}
