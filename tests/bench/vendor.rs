//! What one vendor's program can make the agent hold.

use std::time::Duration;

use machinist::vendor::api::v1 as api;
use tokio::runtime::Runtime;

use crate::{
    agent::Agent,
    figure,
    kubelet_double::KubeletDouble,
    machine::Machine,
    program::{Program, device},
};

const RESOURCE: &str = "acme.dev/bench";
/// One is the whole list; each of the others says that one device is ill.
const SNAPSHOTS: u64 = 21;
/// After the last change: the status and the saved list are written by then.
const CALM: Duration = Duration::from_secs(5);
/// What every bound of the vendor's side is made for, in MiB.
const GOAL: f64 = 8.0;

/// A vendor of the default limits, and one of nearly as many as a message can carry.
pub(crate) fn memory() {
    let runtime = Runtime::new().unwrap();
    println!(
        "\na vendor's devices with a node, a variable and an attribute each, {SNAPSHOTS} snapshots"
    );
    for devices in [1_000, 2_000] {
        let (all, anonymous) = runtime.block_on(grown(devices));
        let what = format!("resident memory more, {devices} devices");
        figure(&what, all, "MiB", "≤ 8", all <= GOAL);
        println!("  anonymous {anonymous:.1} MiB");
    }
}

/// How much the agent grows by so many devices: resident, and anonymous.
async fn grown(devices: usize) -> (f64, f64) {
    let machine = Machine::new();
    let source = machine.path("source");
    std::fs::create_dir(&source).unwrap();
    for number in 0..devices {
        machine.plug(&format!("acme{number}"));
    }
    machine.vendor("acme", &format!("  limits: {{devices: {devices}}}\n"));
    let kubelet = KubeletDouble::start(machine.root()).await;
    let agent = Agent::start(machine.root(), &source, None);
    let (mut program, _) = machine.hello("acme", "one", &[RESOURCE]).await.unwrap();
    tokio::time::sleep(CALM).await;
    let resident = || [agent.mebibytes("VmRSS:"), agent.mebibytes("RssAnon:")];
    let before = resident();
    for generation in 1..=SNAPSHOTS {
        offer(&mut program, devices, generation).await;
    }
    let listed = |books: &crate::kubelet_double::Books| {
        let known = books.get(RESOURCE);
        known.is_some_and(|known| known.list().len() == devices)
    };
    kubelet.until("all", listed).await;
    tokio::time::sleep(CALM).await;
    let after = resident();
    (after[0] - before[0], after[1] - before[1])
}

async fn offer(program: &mut Program, devices: usize, generation: u64) {
    let ill = usize::try_from(generation).unwrap();
    let all = (0..devices).map(|number| {
        let mut one = device(&format!("acme{number}"));
        one.attributes = [("serial".to_owned(), format!("A5XK{number:06}"))].into();
        let recipe = one.recipe.as_mut().unwrap();
        recipe.env = [("ACME_DEVICE".to_owned(), format!("unit-{number}"))].into();
        if number == ill {
            one.health = api::Health::Unhealthy.into();
            one.reason = "it is too hot".to_owned();
        }
        one
    });
    program
        .offer(RESOURCE, generation, all.collect())
        .await
        .unwrap();
    // Twenty messages in a second are allowed.
    tokio::time::sleep(Duration::from_millis(80)).await;
}
