//! Tests that a decision about many nodes is fast, and does not grow with their square.

use std::time::{Duration, Instant};

use super::{
    super::*,
    leader_inputs,
    model::{ApiServer, Leader, minutes, ready_node, run_leader, start},
    rollout::{annotate, decided, granted, plain_pool},
};
use machinist_kube_api::{IntOrString, NodeView, PoolView, keys::pool_annotation};

/// How long a decision about 5,000 nodes may take. The goal is 10 ms in an optimized build on an idle machine; tests share
/// theirs, and debug builds are slow.
const LIMIT: Duration = match cfg!(debug_assertions) {
    true => Duration::from_secs(3),
    false => Duration::from_millis(100),
};

fn cluster(machines: usize) -> ([PoolView; 2], Vec<NodeView>) {
    let mut pool = plain_pool("worker", 1);
    pool.spec.max_unavailable = Some(IntOrString::Text("5%".to_owned()));
    annotate(
        &mut pool,
        pool_annotation::WINDOWS,
        "{\"windows\": [{\"start\": \"00:00\", \"duration\": \"24h\"}]}",
    );
    let node = |at: usize| {
        let name = format!("worker-{at:05}.cluster.example.com");
        let mut node = ready_node(
            &name,
            "worker",
            "rendered-worker-0123456789abcdef0123456789abcdef",
        );
        let age = i64::try_from((at * 7919) % machines).unwrap();
        node.created = Some(start() - minutes(age));
        let zone = format!("zone-{}", at % 3);
        node.labels
            .insert("topology.kubernetes.io/zone".to_owned(), zone);
        node
    };
    (
        [pool, plain_pool("master", 1)],
        (0..machines).map(node).collect(),
    )
}

/// How long a test measures at most. Other programs on the machine can only make a decision slower.
const MAX_MEASUREMENT: Duration = Duration::from_secs(60);

/// Measures until the shortest time of a decision about each set of nodes passes, and returns the shortest times.
fn shortest<const N: usize>(
    sets: [(&[PoolView], &[NodeView]); N],
    passes: impl Fn([Duration; N]) -> bool,
) -> [Duration; N] {
    // The facts of nodes are known, as the controller keeps them.
    let inputs = sets.map(|(pools, nodes)| {
        let mut inputs = leader_inputs(pools, nodes);
        inputs.taint_patches = 50;
        inputs
    });
    let begin = Instant::now();
    let mut times = [Duration::MAX; N];
    while !passes(times) && begin.elapsed() < MAX_MEASUREMENT {
        for (time, inputs) in times.iter_mut().zip(&inputs) {
            let begin = Instant::now();
            assert!(!decide(inputs).pools.is_empty());
            *time = begin.elapsed().min(*time);
        }
    }
    times
}

#[test]
fn a_decision_about_5000_nodes_is_fast() {
    let (pools, nodes) = cluster(5000);
    assert_eq!(granted(&decided(&pools, &nodes, |_| {})).len(), 250);
    let mut server = ApiServer::new(pools.to_vec(), nodes.clone());
    let mut leader = Leader::start(&server, None);
    run_leader(&mut leader, &mut server);
    let text = server
        .pools
        .iter()
        .find_map(|it| it.annotation(pool_annotation::GRANTS));
    let bytes = text.map_or(0, str::len);
    assert!(bytes > 0 && bytes <= MAX_GRANTS_BYTES, "{bytes}");
    let sets: [(&[PoolView], &[NodeView]); 2] = [(&pools, &nodes), (&server.pools, &server.nodes)];
    let passes = |times: [Duration; 2]| times.iter().all(|time| *time < LIMIT);
    let times = shortest(sets, passes);
    println!("5000 nodes without grants and with 250 ({bytes} bytes): {times:?}");
    assert!(passes(times), "{times:?}");
}

#[test]
fn the_time_per_node_does_not_grow_with_the_cluster() {
    let (pools, small) = cluster(500);
    let (_, large) = cluster(5000);
    let sets: [(&[PoolView], &[NodeView]); 2] = [(&pools, &small), (&pools, &large)];
    // Ten times as many nodes: a decision that compares each with each takes a hundred times as long.
    let passes = |[small, large]: [Duration; 2]| large < small.saturating_mul(40);
    let times = shortest(sets, passes);
    println!("500 and 5000 nodes: {times:?}");
    assert!(passes(times), "{times:?}");
}
