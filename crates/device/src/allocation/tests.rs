use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{
    super::{
        inventory::{AllocationDisabled, Health, MountSpec, SharePolicy},
        template::Template,
        testing::resource,
    },
    *,
};

fn ids(given: &[&str]) -> Vec<String> {
    given.iter().map(|id| (*id).to_owned()).collect()
}

fn request<'a>(available: &'a [String], must: &'a [String], size: usize) -> PreferredRequest<'a> {
    PreferredRequest {
        available,
        must,
        size,
    }
}

#[test]
fn spread_takes_different_devices_and_packed_fills_one() {
    let mut both = resource(2, &[("a", &[]), ("b", &[])]);
    let free = ids(&["a::0", "a::1", "b::0", "b::1"]);
    assert_eq!(preferred(&both, request(&free, &[], 2)), ["a::0", "b::0"]);
    both.share.policy = SharePolicy::Packed;
    assert_eq!(preferred(&both, request(&free, &[], 2)), ["a::0", "a::1"]);
    let rest = ids(&["a::0", "a::1", "b::1"]);
    assert_eq!(preferred(&both, request(&rest, &[], 1)), ["b::1"]);
    let must = ids(&["b::0"]);
    assert_eq!(preferred(&both, request(&free, &must, 2)), ["b::0", "b::1"]);
}

#[test]
fn the_smallest_sufficient_numa_node_is_preferred() {
    let many = resource(
        1,
        &[
            ("a", &[0]),
            ("b", &[1]),
            ("c", &[1]),
            ("d", &[2]),
            ("e", &[2]),
            ("f", &[2]),
        ],
    );
    let free = ids(&["a", "b", "c", "d", "e", "f"]);
    assert_eq!(preferred(&many, request(&free, &[], 2)), ["b", "c"]);
    assert_eq!(preferred(&many, request(&free, &[], 3)), ["d", "e", "f"]);
    assert_eq!(
        preferred(&many, request(&free, &ids(&["d"]), 2)),
        ["d", "e"]
    );
}

#[test]
fn an_invalid_preferred_request_gets_a_best_effort_answer() {
    let two = resource(1, &[("a", &[]), ("b", &[])]);
    let free = ids(&["a", "ghost", "a"]);
    assert_eq!(preferred(&two, request(&free, &[], 5)), ["a", "ghost"]);
    assert_eq!(
        preferred(&two, request(&free, &ids(&["b", "a"]), 1)),
        ["b", "a"]
    );
    assert!(preferred(&two, request(&free, &[], 0)).is_empty());
}

#[test]
fn unknown_unhealthy_and_disabled_devices_are_rejected_by_name() {
    let mut one = resource(1, &[("a", &[])]);
    let mut inventory = Inventory::default();
    let refused = |resource: &Resource, inventory: &Inventory, id: &str| {
        allocate(inventory, resource, &ids(&[id]))
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        refused(&one, &inventory, "b"),
        "acme.dev/x has no device \"b\""
    );
    inventory.allocation_disabled = Some(AllocationDisabled {
        why: "the node is being updated".into(),
        refuses: true,
    });
    assert_eq!(
        refused(&one, &inventory, "a"),
        "device \"a\" of acme.dev/x is unhealthy: allocation disabled: the node is being updated"
    );
    inventory.allocation_disabled = None;
    let device = one.devices.get_mut("a").unwrap();
    device.health = Health::Unhealthy;
    device.reason = Some("/dev/a is gone".into());
    assert_eq!(
        refused(&one, &inventory, "a"),
        "device \"a\" of acme.dev/x is unhealthy: /dev/a is gone"
    );
}

#[test]
fn a_container_gets_deduplicated_nodes_and_mounts_and_joined_env() {
    let mut shared = resource(2, &[("a", &[]), ("b", &[])]);
    shared.recipe.mounts.push(MountSpec {
        from: "/opt/acme".parse().unwrap(),
        to: "/opt/acme".parse().unwrap(),
        read_only: true,
    });
    shared
        .recipe
        .env
        .insert("DEVICE".into(), Template::new("{id}").unwrap());
    let path = Template::new("x,y").unwrap();
    shared.recipe.env.insert("PATHS".into(), path);
    let asked = ids(&["a::0", "a::1", "b::0"]);
    let got = allocate(&Inventory::default(), &shared, &asked).unwrap();
    let hosts: Vec<_> = got.nodes.iter().map(|node| node.host.as_str()).collect();
    assert_eq!(hosts, ["/dev/a", "/dev/b"]);
    assert_eq!(got.mounts.len(), 1);
    assert_eq!(got.env["DEVICE"], "a,b");
    assert_eq!(got.env["PATHS"], "x,y", "what is the same is there once");
    shared.share.strict = true;
    let error = allocate(&Inventory::default(), &shared, &asked).unwrap_err();
    assert!(matches!(error, AllocationError::SameDevice { .. }));
}

#[test]
fn two_devices_never_share_a_container_path() {
    let mut two = resource(1, &[("a", &[]), ("b", &[])]);
    two.recipe.nodes[0].inside = Some(Template::new("/dev/serial0").unwrap());
    let error = allocate(&Inventory::default(), &two, &ids(&["a", "b"])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "device \"b\" of acme.dev/x maps to /dev/serial0 in the container, which /dev/a already uses"
    );
}

/// How many times longer `work` takes with four times the `size`, in time that this thread runs:
/// other programs do not count.
pub(crate) fn growth_of_time<T>(size: usize, work: impl Fn(usize) -> T) -> f64 {
    let shortest = |size| {
        let runs = (0..7).map(|_| {
            let began = running_time();
            let result = work(size);
            let took = running_time() - began;
            drop(result);
            took
        });
        runs.fold(f64::MAX, f64::min)
    };
    shortest(4 * size) / shortest(size)
}

/// The time that this thread has run, in nanoseconds.
#[allow(clippy::disallowed_methods, reason = "asks the kernel")]
fn running_time() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_time_to_allocate_grows_with_the_number_of_devices_only() {
    let names: Vec<String> = (0..10_000).map(|n| format!("d{n}")).collect();
    let devices: Vec<(&str, &[u32])> = names.iter().map(|name| (&**name, &[][..])).collect();
    let mut many = resource(1, &devices);
    many.recipe
        .cdi
        .push(Template::new("acme.dev/x={id}").unwrap());
    for (key, value) in [("IDS", "{id}"), ("PAIRS", "acme,{id}"), ("SAME", "x,y")] {
        let value = Template::new(value).unwrap();
        many.recipe.env.insert(key.into(), value);
    }
    let inventory = Inventory::default();
    let growth = growth_of_time(2500, |count| {
        allocate(&inventory, &many, &names[..count]).unwrap()
    });
    assert!(
        growth < 8.0,
        "four times the devices take {growth} times as long"
    );
    let all = allocate(&inventory, &many, &names).unwrap();
    assert_eq!((all.nodes.len(), all.cdi.len()), (10_000, 10_000));
    assert!(all.env["PAIRS"].starts_with("acme,d0,acme,d1,"));
    assert_eq!(all.env["SAME"], "x,y");
}

/// A machine, and a request that can be met: (resource, available, must, size).
fn possible() -> impl Strategy<Value = (Resource, Vec<String>, Vec<String>, usize)> {
    let device = prop::collection::vec(0..3u32, 0..2);
    (prop::collection::vec(device, 1..7), 1..4u32, any::<bool>())
        .prop_map(|(numa, replicas, packed)| {
            let names: Vec<String> = (0..numa.len()).map(|n| format!("d{n}")).collect();
            let devices: Vec<(&str, &[u32])> = names
                .iter()
                .zip(&numa)
                .map(|(name, numa)| (name.as_str(), &**numa))
                .collect();
            let mut made = resource(replicas, &devices);
            if packed {
                made.share.policy = SharePolicy::Packed;
            }
            let all: Vec<String> = names.iter().flat_map(|id| made.share_ids(id)).collect();
            (made, all)
        })
        .prop_flat_map(|(made, all)| {
            let count = all.len();
            let free = prop::sample::subsequence(all, 1..=count);
            (Just(made), free.prop_shuffle())
        })
        .prop_flat_map(|(made, free)| {
            let must = prop::sample::subsequence(free.clone(), 0..=free.len());
            (Just(made), Just(free), must)
        })
        .prop_flat_map(|(made, free, must)| {
            let sizes = must.len().max(1)..=free.len();
            (Just(made), Just(free), Just(must), sizes)
        })
}

fn devices_of(ids: &[String]) -> BTreeSet<String> {
    let base = |id: &String| id.split("::").next().unwrap_or_default().to_owned();
    ids.iter().map(base).collect()
}

proptest! {
    #[test]
    fn a_satisfiable_preferred_request_gets_exactly_that_many_devices((made, free, must, size) in possible()) {
        let got = preferred(&made, request(&free, &must, size));
        let unique: BTreeSet<_> = got.iter().collect();
        prop_assert_eq!(got.len(), size);
        prop_assert_eq!(unique.len(), size);
        prop_assert!(got.iter().all(|id| free.contains(id)));
        prop_assert!(must.iter().all(|id| got.contains(id)));
        let mut turned = free.clone();
        turned.reverse();
        let again: BTreeSet<_> = preferred(&made, request(&turned, &must, size)).into_iter().collect();
        prop_assert_eq!(devices_of(&again.into_iter().collect::<Vec<_>>()), devices_of(&got));
    }

    #[test]
    fn spread_uses_as_many_devices_as_possible((mut made, free, must, size) in possible()) {
        made.share.policy = SharePolicy::Spread;
        let got = preferred(&made, request(&free, &must, size));
        let new = devices_of(&free).difference(&devices_of(&must)).count();
        let most = devices_of(&must).len() + new.min(size - must.len());
        prop_assert_eq!(devices_of(&got).len(), most);
    }

    #[test]
    fn packed_stays_on_one_numa_node_when_one_is_enough((mut made, free, _, size) in possible()) {
        made.share.policy = SharePolicy::Packed;
        let on = |id: &String, node: u32| made.find(id).unwrap().1.numa.contains(&node);
        let fits = (0..3).any(|node| free.iter().filter(|id| on(id, node)).count() >= size);
        let got = preferred(&made, request(&free, &[], size));
        let aligned = (0..3).any(|node| got.iter().all(|id| on(id, node)));
        prop_assert!(aligned || !fits, "{:?}", got);
    }

    #[test]
    fn preferred_allocation_never_panics(
        available in prop::collection::vec("[a-c](::[0-9]{1,12})?", 0..9),
        must in prop::collection::vec("[a-c](::[0-9])?", 0..9),
        size in any::<usize>(),
    ) {
        let made = resource(2, &[("a", &[0]), ("b", &[])]);
        let got = preferred(&made, request(&available, &must, size));
        prop_assert!(must.iter().all(|id| got.contains(id)));
        let _ = allocate(&Inventory::default(), &made, &available);
    }
}
