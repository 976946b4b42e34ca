//! Maintains the ResourceSlices of the node: the devices that pods can claim here. They are rewritten whenever they
//! differ from the desired ones; a restarting kubelet deletes all of them.

mod slice_object;
mod watcher;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::Value;
use tokio::{sync::watch, time::Instant};

use self::slice_object::{DesiredSlice, ObservedSlice};
use super::{
    Cluster, ClusterError,
    node::{NodeSnapshot, OwnNode},
    resource_claims,
};
use machinist_base::{rate_limit::RateLimiter, reason::Reason};
use machinist_device::dra::{
    DRIVER_NAME,
    pool::{ApiFlavor, Pool},
    traits::{DesiredPool, PublishedPool},
};
use machinist_kube_api::keys;

const KIND: &str = "ResourceSlice";
/// Debounce of changes: each change rewrites every slice, and the scheduler ignores a pool until all its slices
/// exist.
const CHANGE_DEBOUNCE: Duration = Duration::from_millis(200);
/// Minimum average interval between changes: device updates from a vendor must not load the cluster.
const MIN_CHANGE_INTERVAL: Duration = Duration::from_secs(5);
/// Burst of changes after a quiet period.
const BURST_CHANGES: u32 = 10;

/// Reconciles the slices of one node.
pub struct SliceReconciler {
    cluster: Cluster,
    node: OwnNode,
    desired_pool: watch::Receiver<DesiredPool>,
    published_pool: watch::Sender<PublishedPool>,
    api: Option<(ApiResource, ApiFlavor)>,
    /// The server does not have this kind.
    absent: bool,
    /// Rate limit of changes: each one writes all slices, on every node.
    changes: RateLimiter,
    /// The slices as the server has them, by name.
    known: BTreeMap<String, ObservedSlice>,
    /// The last written slices and their generation.
    last: Option<(Vec<DesiredSlice>, u64)>,
    /// UID of the Node that owns the slices, as last observed.
    owner: Option<String>,
    /// Whether the server keeps device taints; older servers drop them silently.
    taints: bool,
    /// State of the Node that owns the slices.
    snapshots: watch::Receiver<NodeSnapshot>,
    /// When changes are written; none if there are none.
    due: Option<Instant>,
}

impl std::fmt::Debug for SliceReconciler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Slices").field(&self.node).finish()
    }
}

impl SliceReconciler {
    /// Creates the reconciler without sending a request. `published_pool` holds the state published by an earlier agent.
    pub fn new(
        cluster: Cluster,
        node: OwnNode,
        desired_pool: watch::Receiver<DesiredPool>,
        published_pool: watch::Sender<PublishedPool>,
    ) -> Self {
        let snapshots = node.snapshots();
        Self {
            cluster,
            node,
            desired_pool,
            published_pool,
            api: None,
            absent: false,
            changes: RateLimiter::per_interval(MIN_CHANGE_INTERVAL, BURST_CHANGES),
            known: BTreeMap::new(),
            last: None,
            owner: None,
            taints: true,
            snapshots,
            due: None,
        }
    }

    /// Brings the slices to the desired state.
    async fn settle(&mut self) -> Result<(), ClusterError> {
        let Some(pool) = self.desired_pool.borrow_and_update().clone() else {
            return Ok(());
        };
        let owner = self.node.snapshots().borrow().node.clone();
        self.owner = owner.map(|node| node.uid.clone());
        let Some(owner) = self.owner.clone() else {
            // No pod is scheduled here without a Node; the reconciler runs again when the Node exists.
            return Ok(());
        };
        loop {
            let wanted = self.wanted(&pool);
            let generation = self.generation(&wanted);
            if self.last.as_ref().is_none_or(|last| last.1 != generation) {
                // If no token was available, the caller has waited for one, or this is the first write of a watch.
                self.changes.take();
            }
            let kept = self.write(&owner, &wanted, generation).await?;
            self.last = Some((wanted, generation));
            if kept {
                self.publish(&pool, generation);
                return Ok(());
            }
            tracing::info!(
                "the API server drops device taints: unhealthy devices are omitted from the ResourceSlices"
            );
            self.taints = false;
        }
    }

    fn publish(&self, pool: &Arc<Pool>, generation: u64) {
        let published = PublishedPool {
            generation,
            resources: Some(pool.resources()),
            problem: None,
        };
        self.published_pool.send_if_modified(|known| {
            let news = *known != published;
            if news {
                tracing::info!(
                    generation,
                    "published {} device(s) in ResourceSlices",
                    pool.devices.len()
                );
                *known = published;
            }
            news
        });
    }

    fn wanted(&self, pool: &Pool) -> Vec<DesiredSlice> {
        let spelling = self
            .api
            .as_ref()
            .map_or(ApiFlavor::Plain, |(_, spelling)| *spelling);
        let slices = pool.slices(self.taints);
        let each = slices.iter().enumerate();
        each.map(|(at, devices)| DesiredSlice {
            name: slice_object::name(self.node.name(), at),
            devices: devices.iter().map(|one| one.spelled(spelling)).collect(),
        })
        .collect()
    }

    /// The pool generation. It increases on every change and only then: the scheduler uses only the newest
    /// generation, and slices of different generations do not form a complete pool.
    fn generation(&self, wanted: &[DesiredSlice]) -> u64 {
        let highest = self.known.values().map(|slice| slice.generation).max();
        if let Some((last, generation)) = &self.last
            && last == wanted
            && highest.is_none_or(|highest| highest <= *generation)
        {
            return *generation;
        }
        let whole = self.known.len() == wanted.len()
            && wanted.iter().all(|one| {
                let there = self.known.get(&one.name);
                there.is_some_and(|slice| {
                    Some(slice.generation) == highest && slice.is(one, wanted.len())
                })
            });
        let floor = self
            .published_pool
            .borrow()
            .generation
            .max(highest.unwrap_or(0));
        match highest {
            Some(generation) if whole => generation,
            // An empty pool that was never published is not a change.
            None if wanted.is_empty() => floor,
            _ => floor + 1,
        }
    }

    /// Writes slices that differ and deletes superfluous ones. False if the server dropped the taints.
    async fn write(
        &mut self,
        owner: &str,
        wanted: &[DesiredSlice],
        generation: u64,
    ) -> Result<bool, ClusterError> {
        let Some((api, _)) = self.api.clone() else {
            return Ok(true);
        };
        let count = wanted.len();
        for one in wanted {
            let known = self.known.get(&one.name);
            if known.is_some_and(|slice| slice.generation == generation && slice.is(one, count)) {
                continue;
            }
            let mut object =
                slice_object::object(&api, self.node.name(), owner, one, (generation, count));
            if let Some(known) = known {
                known.keep_times(&mut object);
            }
            let answer = apply(&self.cluster, &api, &one.name, &object).await?;
            let slice = ObservedSlice::of(&answer, Some(one));
            let dropped = one.has_taints() && !slice.has_taints();
            self.known.insert(one.name.clone(), slice);
            if dropped {
                return Ok(false);
            }
        }
        let names: BTreeSet<&str> = wanted.iter().map(|one| one.name.as_str()).collect();
        let surplus = self
            .known
            .keys()
            .filter(|name| !names.contains(name.as_str()));
        for name in surplus.cloned().collect::<Vec<_>>() {
            delete(&self.cluster, &api, &name).await?;
            self.known.remove(&name);
        }
        Ok(true)
    }

    fn note(&mut self, object: &DynamicObject) {
        let Some(name) = object.metadata.name.clone() else {
            return;
        };
        // A slice that is still as the server stored our last write counts as written.
        let meant = self.known.get(&name).and_then(|slice| slice.meant.clone());
        let same = |known: &ObservedSlice| known.spec == slice_object::plain(object);
        let meant = meant.filter(|_| self.known.get(&name).is_some_and(same));
        let slice = ObservedSlice::of(object, meant.as_ref());
        self.known.insert(name, slice);
    }
}

/// Deletes machinist's slices of the node of this name; returns how many existed.
///
/// # Errors
/// A request failed. If the kind does not exist or reading is forbidden, the count is 0.
pub async fn remove(cluster: &Cluster, node: &str, only_look: bool) -> Result<usize, ClusterError> {
    let (version, _) = match resource_claims::version(cluster).await {
        Ok(found) => found,
        Err(error) if error.is_not_found() => return Ok(0),
        Err(error) => return Err(error),
    };
    let api = resource(version);
    let params = &ListParams::default().fields(&selector(node));
    let list = |client| objects(client, &api, params);
    let found = match cluster.request("list", named(node), list).await {
        Err(error) if error.reason() == Reason::ApiServerForbidden || error.is_not_found() => {
            return Ok(0);
        }
        found => found?,
    };
    let names: Vec<String> = found
        .into_iter()
        .filter_map(|one| one.metadata.name)
        .collect();
    if !only_look {
        for name in &names {
            delete(cluster, &api, name).await?;
        }
    }
    Ok(names.len())
}

async fn objects(
    client: Client,
    api: &ApiResource,
    params: &ListParams,
) -> Result<Vec<DynamicObject>, kube::Error> {
    Ok(Api::all_with(client, api).list(params).await?.items)
}

/// Server-side apply; the list of devices is atomic.
async fn apply(
    cluster: &Cluster,
    api: &ApiResource,
    name: &str,
    wanted: &Value,
) -> Result<DynamicObject, ClusterError> {
    let apply = |client| async move {
        let params = PatchParams::apply(keys::FIELD_MANAGER).force();
        let objects: Api<DynamicObject> = Api::all_with(client, api);
        objects.patch(name, &params, &Patch::Apply(wanted)).await
    };
    cluster
        .request("apply", format!("{KIND} {name}"), apply)
        .await
}

async fn delete(cluster: &Cluster, api: &ApiResource, name: &str) -> Result<(), ClusterError> {
    let delete = |client| async move {
        let objects: Api<DynamicObject> = Api::all_with(client, api);
        objects
            .delete(name, &DeleteParams::default())
            .await
            .map(drop)
    };
    match cluster
        .request("delete", format!("{KIND} {name}"), delete)
        .await
    {
        Err(error) if error.is_not_found() => Ok(()),
        deleted => deleted,
    }
}

fn resource(version: &str) -> ApiResource {
    ApiResource {
        group: resource_claims::RESOURCE_API_GROUP.to_owned(),
        version: version.to_owned(),
        api_version: format!("{}/{version}", resource_claims::RESOURCE_API_GROUP),
        kind: KIND.to_owned(),
        plural: "resourceslices".to_owned(),
    }
}

/// Selects machinist's slices of one node.
fn selector(node: &str) -> String {
    format!("spec.driver={DRIVER_NAME},spec.nodeName={node}")
}

fn named(node: &str) -> String {
    format!("the ResourceSlices of Node {node}")
}
