//! The free slots of one limit.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use machinist_base::text::{counted_with_verb, join_limited};
use machinist_kube_api::truncate_at_char;

use super::{
    BadLimit, Grant, Hold, HoldReason, UnavailableCause, UnavailableNodes, candidates::Candidate,
    grant::MAX_GRANTS_BYTES, hold::MAX_NAMED_NODES, limit_group::LimitGroup,
    pool_ledger::PoolLedger,
};

/// How much of a pool's UID is part of the IDs of its grants.
const ID_UID_BYTES: usize = 8;

/// A limit and the nodes that count against it.
#[derive(Debug)]
struct SlotCount {
    at_most: usize,
    unavailable: BTreeMap<String, UnavailableCause>,
    out_of_service: usize,
}

impl SlotCount {
    fn new(at_most: usize, all: &UnavailableNodes<'_>) -> Self {
        let unavailable: BTreeMap<_, _> = all
            .iter()
            .map(|(node, cause)| (node.to_owned(), cause))
            .collect();
        let out_of_service = unavailable.values().filter(|it| !it.is_in_service());
        Self {
            at_most,
            out_of_service: out_of_service.count(),
            unavailable,
        }
    }

    /// Whether a node may be granted. One that counts already needs no free slot: then only nodes that are out of
    /// service count, or else two nodes that wait could hold each other for ever.
    fn has_room(&self, node: &str, counts: bool) -> bool {
        if !counts {
            return self.unavailable.len() < self.at_most;
        }
        let own = self.unavailable.get(node);
        let others = self.out_of_service - usize::from(own.is_some_and(|it| !it.is_in_service()));
        others < self.at_most
    }

    fn take(&mut self, node: &str) {
        let granted = UnavailableCause::Granted;
        let before = self.unavailable.insert(node.to_owned(), granted);
        self.out_of_service += usize::from(before.is_none_or(UnavailableCause::is_in_service));
    }
}

/// The free slots of a group of pools, and the space for their grants.
#[derive(Debug)]
pub(super) struct Slots {
    group: SlotCount,
    /// The limits of the pools within the group, by position.
    pools: BTreeMap<usize, SlotCount>,
    /// Nodes that failed within their grant.
    failed: BTreeSet<String>,
    /// The length of the annotation with the grants.
    bytes: usize,
    id_prefix: String,
    granted: usize,
}

impl Slots {
    /// Computes the slots of a group; an error if a limit cannot be applied.
    pub(super) fn of(group: &LimitGroup, ledgers: &[PoolLedger<'_>]) -> Result<Self, BadLimit> {
        let limit = group.limit(ledgers)?;
        let members = group
            .pools
            .iter()
            .filter_map(|at| Some((*at, ledgers.get(*at)?)));
        let machines = members.clone().map(|(_, it)| it.members.len()).sum();
        let mut pools = BTreeMap::new();
        for (at, ledger) in members.clone() {
            let at_most = group.pool_limit(ledger, &limit, machines)?;
            let own = std::iter::once(ledger);
            // The pool that fences the group lists the grants of the others, too.
            let listed = members.clone().map(|(_, it)| it);
            let all = unavailable(own, listed, Some(&ledger.pool.name));
            pools.insert(at, SlotCount::new(at_most, &all));
        }
        let all = members.clone().map(|(_, it)| it);
        let grants = all.clone().flat_map(|it| &it.grants.grants);
        let fence = ledgers.get(group.fence);
        Ok(Self {
            group: SlotCount::new(limit.at_most, &unavailable(all.clone(), all, None)),
            pools,
            failed: grants
                .filter(|grant| grant.failed)
                .map(|grant| grant.node.clone())
                .collect(),
            bytes: fence.map_or(0, |it| it.grants.to_annotation().len()),
            id_prefix: fence.map_or_else(String::new, |it| {
                let uid = truncate_at_char(&it.pool.uid, ID_UID_BYTES);
                format!("{uid}-{}", it.pool.resource_version)
            }),
            granted: 0,
        })
    }

    /// Whether a candidate of the pool at `at` may be granted.
    pub(super) fn has_room(&self, at: usize, candidate: &Candidate<'_>) -> bool {
        let node = candidate.node.name.as_str();
        let pool = self.pools.get(&at);
        let counts = candidate.has_slot;
        self.group.has_room(node, counts) && pool.is_none_or(|pool| pool.has_room(node, counts))
    }

    /// Takes a slot for a candidate.
    pub(super) fn take(&mut self, at: usize, candidate: &Candidate<'_>) {
        self.group.take(&candidate.node.name);
        if let Some(pool) = self.pools.get_mut(&at) {
            pool.take(&candidate.node.name);
        }
    }

    /// Returns an ID that no other grant has: only one write succeeds per version of the pool, and a pool that was
    /// restored from a backup, where versions repeat, differs in the time.
    pub(super) fn next_id(&mut self, now: Timestamp) -> String {
        self.granted += 1;
        format!("{}-{:x}-{}", self.id_prefix, now.as_second(), self.granted)
    }

    /// Whether the annotation has space for a grant; if so, the space is taken. The agent's acknowledgement and a failure
    /// make the record longer.
    pub(super) fn fits(&mut self, grant: &Grant) -> bool {
        const MARKS_BYTES: usize = ",\"acknowledged\":true,\"failed\":true,".len();
        let bytes = self.bytes + grant.to_annotation().len() + MARKS_BYTES;
        let fits = bytes <= MAX_GRANTS_BYTES;
        if fits {
            self.bytes = bytes;
        }
        fits
    }

    /// Why no slot is free in the pool at `at`, with the nodes that hold them.
    pub(super) fn hold(&self, at: usize) -> Hold {
        let pool = self
            .pools
            .get(&at)
            .filter(|pool| pool.unavailable.len() >= pool.at_most);
        let count = pool.unwrap_or(&self.group);
        let has_failed = |(node, cause): (&String, &UnavailableCause)| {
            *cause == UnavailableCause::Failing || self.failed.contains(node)
        };
        let reason = match count.unavailable.iter().all(has_failed) {
            true => HoldReason::SlotsHeldByFailures,
            false => HoldReason::NodesUnavailable,
        };
        let named =
            count
                .unavailable
                .iter()
                .map(|(node, cause)| match self.failed.contains(node) {
                    true => format!("{node} (failed)"),
                    false => format!("{node} ({})", cause.as_str()),
                });
        let named: Vec<_> = named.collect();
        let message = format!(
            "{} unavailable, and the limit is {}: {}",
            counted_with_verb(named.len(), "node"),
            count.at_most,
            join_limited(named.iter(), MAX_NAMED_NODES)
        );
        Hold::new(reason, message)
    }
}

/// Collects the unavailable members of `members` and the nodes of the grants that `listed` have, of one pool or of all.
fn unavailable<'l, 'a: 'l>(
    members: impl Iterator<Item = &'l PoolLedger<'a>>,
    listed: impl Iterator<Item = &'l PoolLedger<'a>>,
    pool: Option<&'l str>,
) -> UnavailableNodes<'l> {
    let members = members.flat_map(|it| &it.members);
    let grants = listed.flat_map(|it| &it.grants.grants);
    UnavailableNodes::new(
        members.filter_map(|it| Some((it.node.name.as_str(), it.cause?))),
        grants
            .filter(move |grant| pool.is_none_or(|pool| grant.pool == pool))
            .map(|grant| grant.node.as_str()),
    )
}
