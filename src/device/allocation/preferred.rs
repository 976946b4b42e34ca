//! Which of the free devices a container should best get.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::device::inventory::{Resource, SharePolicy};

/// What the kubelet asks before it chooses.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Ids that are free.
    pub available: &'a [String],
    /// Ids that must be among the answer.
    pub must: &'a [String],
    /// How many, `must` included.
    pub size: usize,
}

/// The ids a container should best get: all of `must`, then from `available`, near to each other
/// and spread or packed as the declaration says.
///
/// The answer has exactly `size` ids when the request can be met. A request that contradicts
/// itself gets the nearest sensible answer: all of `must` when that is more than `size`, all there
/// is when that is less.
pub fn preferred(resource: &Resource, wish: Wish<'_>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut chosen: Vec<String> = wish.must.to_vec();
    chosen.retain(|id| seen.insert(id.clone()));
    let missing = wish.size.saturating_sub(chosen.len());
    if missing == 0 {
        return chosen;
    }
    let mut free: Vec<&String> = wish.available.iter().collect();
    free.retain(|id| seen.insert((*id).clone()));
    let order = numa_order(resource, &chosen, &free, missing);
    let mut ranked = rank(resource, &chosen, &free, &order);
    ranked.sort();
    chosen.extend(
        ranked
            .into_iter()
            .take(missing)
            .map(|ranked| ranked.id.to_owned()),
    );
    chosen
}

/// Whether a source's choice answers the wish: exactly as many as asked for, each once, all of `must`, the rest
/// of what is free. The kubelet silently ignores what is not.
pub fn sensible(wish: Wish<'_>, chosen: &[String]) -> bool {
    let unique: BTreeSet<&String> = chosen.iter().collect();
    let is_free = |id: &&String| wish.available.contains(*id) || wish.must.contains(*id);
    chosen.len() == wish.size
        && unique.len() == chosen.len()
        && wish.must.iter().all(|id| unique.contains(id))
        && chosen.iter().all(|id| is_free(&id))
}

/// Sorted ascending, the best candidate first. Fields are compared in order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Ranked<'a> {
    /// Ids this resource does not know come last: the kubelet drops them anyway.
    unknown: bool,
    /// For `spread`: how many shares of the same device are taken before this one.
    round: usize,
    near: usize,
    /// For `packed`: devices that already serve this container come first.
    fresh: bool,
    /// Free shares: few first to pack, many first to spread.
    free: (usize, Reverse<usize>),
    device: &'a str,
    id: &'a str,
}

fn rank<'a>(
    resource: &'a Resource,
    chosen: &[String],
    free: &[&'a String],
    order: &[u32],
) -> Vec<Ranked<'a>> {
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    for (device, _) in chosen.iter().filter_map(|id| resource.find(id)) {
        *taken.entry(device).or_default() += 1;
    }
    let mut shares: BTreeMap<&str, usize> = BTreeMap::new();
    for (device, _) in free.iter().filter_map(|id| resource.find(id)) {
        *shares.entry(device).or_default() += 1;
    }
    let spread = resource.share.policy == SharePolicy::Spread;
    let mut rounds = taken.clone();
    free.iter()
        .map(|id| {
            let Some((device, facts)) = resource.find(id) else {
                return Ranked::unknown(id);
            };
            let round = rounds.entry(device).or_default();
            *round += 1;
            let count = shares.get(device).copied().unwrap_or_default();
            Ranked {
                unknown: false,
                round: if spread { *round } else { 0 },
                near: nearness(&facts.numa, order),
                fresh: !spread && !taken.contains_key(device),
                free: if spread {
                    (0, Reverse(count))
                } else {
                    (count, Reverse(0))
                },
                device,
                id,
            }
        })
        .collect()
}

impl<'a> Ranked<'a> {
    fn unknown(id: &'a str) -> Self {
        Self {
            unknown: true,
            round: 0,
            near: 0,
            fresh: false,
            free: (0, Reverse(0)),
            device: "",
            id,
        }
    }
}

/// The place of the device's best NUMA node in `order`. Devices without one are usable from
/// anywhere: they come right behind those on the best node.
fn nearness(numa: &[u32], order: &[u32]) -> usize {
    if numa.is_empty() {
        return 1;
    }
    let place = |node: &u32| order.iter().position(|have| have == node);
    numa.iter()
        .filter_map(place)
        .min()
        .map_or(usize::MAX, |place| place * 2)
}

/// NUMA nodes, the one to fill first in front.
///
/// Those of devices that must be taken lead. Then comes the fullest fit: the node with the fewest
/// candidates that can still serve the rest alone, which leaves the larger ones whole for larger
/// requests; when none can, the largest first, so that as few nodes as possible are touched.
fn numa_order(
    resource: &Resource,
    chosen: &[String],
    free: &[&String],
    missing: usize,
) -> Vec<u32> {
    let mut candidates: BTreeMap<u32, BTreeSet<&str>> = BTreeMap::new();
    let spread = resource.share.policy == SharePolicy::Spread;
    for id in free {
        if let Some((device, facts)) = resource.find(id) {
            // Spread counts devices and packed counts shares: what each of them can use up.
            let counted = if spread { device } else { id.as_str() };
            for node in &facts.numa {
                candidates.entry(*node).or_default().insert(counted);
            }
        }
    }
    let held: BTreeSet<u32> = chosen
        .iter()
        .filter_map(|id| resource.find(id))
        .flat_map(|(_, facts)| facts.numa.iter().copied())
        .collect();
    let mut order: Vec<u32> = candidates.keys().copied().collect();
    order.sort_by_key(|node| {
        let count = candidates.get(node).map_or(0, BTreeSet::len);
        let fits = count >= missing;
        let size = if fits { count } else { usize::MAX - count };
        (!held.contains(node), !fits, size, *node)
    });
    order
}
