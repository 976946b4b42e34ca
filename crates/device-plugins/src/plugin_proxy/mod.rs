//! A proxy between the kubelet and vendors' unmodified device plugins: towards a plugin it acts as the kubelet.
//!
//! Each vendor with `connects: plugin` has its own directory with a `kubelet.sock`. The vendor's pod mounts it at
//! the path of the kubelet's directory, and whichever process registers there belongs to that vendor. The plugin's
//! lists go to the registry, and the kubelet's calls for such a resource are forwarded to its plugin. So plugins do
//! not notice a kubelet restart, nor the kubelet a plugin restart.

mod allocate_policy;
mod allocator;
mod checkpoint;
mod device_list;
mod gc;
mod list_codec;
mod list_stream;
mod plugin_client;
mod plugin_problems;
mod plugin_routes;
mod registration;
mod resource_instances;
mod task_events;
mod vendor_directory;
mod vendor_task;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep},
};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::{
    device_list::count,
    plugin_problems::{PluginProblem, PluginProblems},
};
use self::{
    plugin_problems::ProblemWriter,
    plugin_routes::Routes,
    vendor_task::{ProxyVendorTask, SessionEnd},
};
use machinist_base::{abs_path::AbsPath, backoff::Backoff, error_chain::chain, shutdown::Tasks};
use machinist_device::{
    registry::{Registry, RegistryError},
    source::ResourceSource,
    vendor_declaration::{Vendor, VendorTransport, Vendors},
};
use machinist_rootfs::{FileLock, Root, RootError};

/// The parent of the vendors' directories.
pub const VENDOR_DIRS_ROOT: &str = "/var/lib/machinist/device-plugins";
/// Locked by the agent that serves the directories.
const LOCK_PATH: &str = "/var/lib/machinist/device-plugins/lock";
/// How often to retry a lock that another agent holds: its release causes no event.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Retry after a directory could not be used.
const DIRECTORY_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(60));
/// A session that lasted this long counts as working: the error that ends it is logged again.
const SESSION_STABLE_AFTER: Duration = Duration::from_secs(10);

/// Shared by all vendors' tasks.
#[derive(Clone, Debug)]
struct ProxyDeps {
    root: Root,
    registry: Registry,
    routes: Routes,
    problems: ProblemWriter,
    tasks: Tasks,
    /// Source of unique connection numbers.
    connection_numbers: Arc<AtomicU64>,
}

/// The allocation backend for plugins' resources; see [`start`].
#[derive(Debug)]
pub struct PluginProxy {
    root: Root,
    routes: Routes,
    problems: ProblemWriter,
}

impl PluginProxy {
    /// The current problems of plugins, as a watch.
    pub fn problems(&self) -> watch::Receiver<PluginProblems> {
        self.problems.subscribe()
    }
}

/// Serves the vendors that connect by plugin, also as they change. Ends with `tasks`: plugins and their sockets
/// then stay, and the next agent continues with them.
pub fn start(
    root: Root,
    vendors: watch::Receiver<Arc<Vendors>>,
    registry: Registry,
    tasks: &Tasks,
) -> Arc<PluginProxy> {
    let (routes, problems) = (Routes::default(), ProblemWriter::default());
    let deps = ProxyDeps {
        root: root.clone(),
        registry,
        routes: routes.clone(),
        problems: problems.clone(),
        tasks: tasks.clone(),
        connection_numbers: Arc::default(),
    };
    let stop = tasks.token();
    tasks.spawn("plugin vendors", async move {
        tokio::select! {
            // Safe to drop: vendors' tasks have the same token.
            () = stop.cancelled() => {}
            () = supervise(deps, vendors) => {}
        }
    });
    Arc::new(PluginProxy {
        root,
        routes,
        problems,
    })
}

/// One vendor's task.
struct RunningVendor {
    vendor: Arc<Vendor>,
    /// Dropping it ends the task.
    stop: DropGuard,
    ended: oneshot::Receiver<()>,
}

impl RunningVendor {
    async fn end(self) {
        drop(self.stop);
        // An error means the task has ended as well.
        let _ = self.ended.await;
    }
}

/// Runs one task for each vendor. A vendor whose file changed is restarted, as after an agent restart.
async fn supervise(deps: ProxyDeps, mut vendors: watch::Receiver<Arc<Vendors>>) {
    let mut running: BTreeMap<String, RunningVendor> = BTreeMap::new();
    let mut lock: Option<FileLock> = None;
    loop {
        // Read once for the whole pass: the files may change at any await.
        let files = Arc::clone(&vendors.borrow_and_update());
        let now = plugins(&files);
        let names: Vec<_> = running.keys().cloned().collect();
        for name in names {
            let wanted = now.get(&name);
            let same = |one: &RunningVendor| wanted.is_some_and(|wanted| *wanted == one.vendor);
            if running.get(&name).is_some_and(|one| !same(one))
                && let Some(old) = running.remove(&name)
            {
                let vendor = Arc::clone(&old.vendor);
                old.end().await;
                if wanted.is_none() {
                    gc::remove_of(&deps.root, &vendor);
                    // Includes offers that another source's ownership kept from being in force.
                    withdraw(&deps, ResourceSource::Plugin(vendor.name.clone())).await;
                }
            }
        }
        if lock.is_none() && !now.is_empty() {
            lock = Some(lock_exclusively(&deps.root).await);
            // Files may have changed meanwhile.
            continue;
        }
        // It is unknown which vendor a file declares that was never valid.
        if !files.blind {
            withdraw_undeclared(&deps, &now).await;
            gc::remove(&deps.root, &now, lock.is_some());
        }
        for (name, vendor) in now {
            running.entry(name).or_insert_with(|| serve(&deps, vendor));
        }
        // Safe to drop: a change stays marked as unseen.
        if vendors.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

fn plugins(vendors: &Vendors) -> BTreeMap<String, Arc<Vendor>> {
    let all = vendors.by_name.iter();
    all.filter(|(_, vendor)| vendor.connects == VendorTransport::Plugin)
        .map(|(name, vendor)| (name.clone(), Arc::clone(vendor)))
        .collect()
}

/// Waits until no other agent serves here.
async fn lock_exclusively(root: &Root) -> FileLock {
    let mut logged = None;
    loop {
        let why = match take_lock(root) {
            Ok(Some(lock)) => return lock,
            Ok(None) => format!("another agent serves plugins on this node: it holds {LOCK_PATH}"),
            Err(error) => chain(&error),
        };
        if logged.as_ref() != Some(&why) {
            tracing::warn!("device plugins cannot register: {why}");
            logged = Some(why);
        }
        sleep(LOCK_RETRY_INTERVAL).await;
    }
}

fn take_lock(root: &Root) -> Result<Option<FileLock>, RootError> {
    let (Ok(directory), Ok(lock)) = (AbsPath::new(VENDOR_DIRS_ROOT), AbsPath::new(LOCK_PATH))
    else {
        return Ok(None);
    };
    root.make_dirs(&directory, 0o755)?;
    root.lock(&lock)
}

/// Withdraws what an earlier agent offered for vendors that are no longer declared.
async fn withdraw_undeclared(deps: &ProxyDeps, vendors: &BTreeMap<String, Arc<Vendor>>) {
    let inventory = deps.registry.inventory().borrow().clone();
    let sources = inventory
        .resources
        .values()
        .map(|resource| &resource.source);
    let undeclared: BTreeSet<_> = sources
        .filter(
            |source| matches!(source, ResourceSource::Plugin(name) if !vendors.contains_key(name)),
        )
        .collect();
    for source in undeclared {
        withdraw(deps, source.clone()).await;
    }
}

async fn withdraw(deps: &ProxyDeps, source: ResourceSource) {
    tracing::info!("withdrawing the resources of {source}: no file declares it any more");
    // The registry ends only with the agent, and then offers are meant to stay.
    let _ = deps.registry.withdraw(source, None).await;
}

fn serve(deps: &ProxyDeps, vendor: Arc<Vendor>) -> RunningVendor {
    let stop = deps.tasks.token();
    let (task_end, ended) = oneshot::channel();
    let task = run_until_stopped(deps.clone(), Arc::clone(&vendor), stop.clone());
    deps.tasks.spawn("plugin vendor", async move {
        task.await;
        // The receiver is gone when the agent ends.
        let _ = task_end.send(());
    });
    RunningVendor {
        vendor,
        stop: stop.drop_guard(),
        ended,
    }
}

/// Serves a vendor until it is stopped; restarts after errors.
async fn run_until_stopped(deps: ProxyDeps, vendor: Arc<Vendor>, stop: CancellationToken) {
    let (mut failures, mut logged) = (0, None);
    while !stop.is_cancelled() {
        // Tasks of the session end with it.
        let session_stop = stop.child_token();
        let _ends = session_stop.clone().drop_guard();
        let result = match ProxyVendorTask::open(Arc::clone(&vendor), deps.clone(), session_stop) {
            Ok(mut session) => {
                let began = Instant::now();
                let result = session.run().await;
                session.finish().await;
                if began.elapsed() >= SESSION_STABLE_AFTER {
                    (failures, logged) = (0, None);
                }
                result.map_err(|error| (error, true))
            }
            // The previous session's socket may take a moment to close.
            Err(error) => Err((error, failures > 0)),
        };
        match result {
            Ok(()) | Err((SessionEnd::Registry(RegistryError::Stopped), _)) => return,
            Err((error, is_worth_logging)) => {
                let why = chain(&error);
                if is_worth_logging && logged.as_ref() != Some(&why) {
                    let name = &vendor.name;
                    tracing::warn!(vendor = %name, "plugins of {name} cannot register: {why}");
                    logged = Some(why);
                }
            }
        }
        tokio::select! {
            // Safe to drop: nothing is served.
            () = stop.cancelled() => {}
            () = sleep(DIRECTORY_BACKOFF.step(failures)) => failures = failures.saturating_add(1),
        }
    }
}
