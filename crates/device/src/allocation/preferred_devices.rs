//! Chooses the preferred devices for a container from the free ones.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use crate::inventory::{Resource, SharePolicy};

/// The kubelet's request for a preferred allocation.
#[derive(Clone, Copy, Debug)]
pub struct PreferredRequest<'a> {
    /// The ids of free devices.
    pub available: &'a [String],
    /// The ids that the answer must include.
    pub must: &'a [String],
    /// The number of ids to choose, `must` included.
    pub size: usize,
}

/// Chooses ids for a container: all of `must`, then ids from `available` that are on near NUMA nodes,
/// spread or packed according to the share policy.
///
/// The answer has exactly `size` ids if the request can be met. Otherwise it is all of `must` if
/// these are more than `size`, or all available ids if these are fewer.
pub fn preferred(resource: &Resource, request: PreferredRequest<'_>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut chosen: Vec<String> = request.must.to_vec();
    chosen.retain(|id| seen.insert(id.clone()));
    let missing = request.size.saturating_sub(chosen.len());
    if missing == 0 {
        return chosen;
    }
    let mut free: Vec<&String> = request.available.iter().collect();
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

/// Whether an answer of a resource's source is valid: exactly `size` ids, no duplicates, all of
/// `must`, and the rest from `available`. The kubelet silently ignores invalid answers.
pub fn is_valid_preference(request: PreferredRequest<'_>, chosen: &[String]) -> bool {
    let unique: BTreeSet<&String> = chosen.iter().collect();
    let is_free = |id: &&String| request.available.contains(*id) || request.must.contains(*id);
    chosen.len() == request.size
        && unique.len() == chosen.len()
        && request.must.iter().all(|id| unique.contains(id))
        && chosen.iter().all(|id| is_free(&id))
}

/// A candidate. The best one sorts first; the fields are compared in order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RankedDevice<'a> {
    /// Ids that this resource does not have come last: the kubelet drops them anyway.
    unknown: bool,
    /// For `spread`: the number of chosen shares of the device, including this one.
    round: usize,
    near: usize,
    /// For `packed`: whether no share of the device is chosen yet; such devices come last.
    fresh: bool,
    /// The device's number of free shares: few come first for `packed`, many for `spread`.
    free: (usize, Reverse<usize>),
    device: &'a str,
    id: &'a str,
}

fn rank<'a>(
    resource: &'a Resource,
    chosen: &[String],
    free: &[&'a String],
    order: &[u32],
) -> Vec<RankedDevice<'a>> {
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
                return RankedDevice::unknown(id);
            };
            let round = rounds.entry(device).or_default();
            *round += 1;
            let count = shares.get(device).copied().unwrap_or_default();
            RankedDevice {
                unknown: false,
                round: if spread { *round } else { 0 },
                near: numa_rank(&facts.numa, order),
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

impl<'a> RankedDevice<'a> {
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

/// The rank of the device's best NUMA node in `order`. Devices without a NUMA node are usable from
/// anywhere: they rank right behind those on the best node.
fn numa_rank(numa: &[u32], order: &[u32]) -> usize {
    if numa.is_empty() {
        return 1;
    }
    let place = |node: &u32| order.iter().position(|have| have == node);
    numa.iter()
        .filter_map(place)
        .min()
        .map_or(usize::MAX, |place| place * 2)
}

/// NUMA nodes in the order in which they should be filled.
///
/// Nodes of devices that must be included come first. Next is the best fit: the node with the fewest
/// candidates that can still serve the rest alone, which keeps larger nodes free for larger requests.
/// If no node can, the largest comes first, so that as few nodes as possible are used.
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
            // For spread count devices, for packed count shares: that is what a request can use up.
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
