//! A fake of OpenShift's machine-config-controller: it serves drain requests and assigns configs
//! to the nodes of its pool, by the rules of the real one.

use std::{
    collections::BTreeMap,
    io::BufReader,
    path::PathBuf,
    process::{Child, Output, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread::Scope,
    time::Duration,
};

use serde_json::Value;

use super::{
    GROUP,
    node_recorder::{NodeSight, ProgressSight, Seen},
};
use crate::support::{Cluster, api::condition, lab, wait};

/// One drain attempt; the real one takes 90 s. The controller does nothing else for the node
/// meanwhile.
const ATTEMPT: &str = "--timeout=5s";

/// The delay before a failed drain is retried; the real one waits for a minute.
const REQUEUE: Duration = wait::seconds(1);

/// How many nodes of the pool may be unavailable.
const MAX_UNAVAILABLE: usize = 1;

#[derive(Default)]
struct Shared {
    seen: Mutex<Seen>,
    /// The config of the pool.
    target: Mutex<String>,
    /// Attempts to drain that ended with pods left.
    blocked: AtomicUsize,
    /// How often it has acted on everything it had received.
    passes: AtomicUsize,
    stop: AtomicBool,
}

/// The double; its watches and its thread end when it is dropped.
pub struct Controller<'a> {
    cluster: &'a Cluster,
    shared: Arc<Shared>,
    watches: Vec<Child>,
}

impl<'a> Controller<'a> {
    pub fn start<'scope>(scope: &'scope Scope<'scope, '_>, cluster: &'a Cluster) -> Self
    where
        'a: 'scope,
    {
        let kubeconfig = cluster.kubeconfig("machine-config-controller", "system:masters");
        let shared = Arc::new(Shared::default());
        let (nodes, news) = mpsc::channel();
        let mut watches = Vec::new();
        let mut watch = |path: &str| {
            let mut kubectl = cluster.beside(&lab().kube);
            kubectl.args(["kubectl", "get", "--raw", path, "--kubeconfig"]);
            kubectl.arg(&kubeconfig).stdout(Stdio::piped());
            let mut child = kubectl.spawn().unwrap();
            let events = BufReader::new(child.stdout.take().unwrap());
            watches.push(child);
            serde_json::Deserializer::from_reader(events).into_iter::<Value>()
        };
        let events = watch("/api/v1/nodes?watch=1");
        let message = Arc::clone(&shared);
        scope.spawn(move || {
            for event in events.map_while(Result::ok) {
                let node = &event["object"];
                // Sent first: see `wait_idle`.
                let _ = nodes.send(node.clone());
                lock(&message.seen).node(NodeSight::of(node));
            }
        });
        let path = format!("/apis/{GROUP}/v1/machineconfignodes?watch=1");
        let events = watch(&path);
        let message = Arc::clone(&shared);
        scope.spawn(move || {
            for event in events.map_while(Result::ok) {
                lock(&message.seen).progress(ProgressSight::of(&event["object"]));
            }
        });
        let work = Work {
            cluster,
            kubeconfig,
            shared: Arc::clone(&shared),
            nodes: BTreeMap::new(),
        };
        scope.spawn(move || work.run(&news));
        Self {
            cluster,
            shared,
            watches,
        }
    }

    /// Sets `config` as the pool's config; nodes are assigned it as `maxUnavailable` allows.
    pub fn roll_out(&self, config: &str) {
        config.clone_into(&mut lock(&self.shared.target));
    }

    /// Sets `config` as the pool's config and assigns it to a node directly, as administrators do
    /// where `maxUnavailable` is exhausted.
    pub fn give(&self, node: &str, config: &str) {
        self.roll_out(config);
        let annotation = format!("{GROUP}/desiredConfig={config}");
        self.cluster
            .kubectl(&["annotate", "--overwrite", "node", node, &annotation]);
    }

    /// Every version recorded so far.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.shared.seen)
    }

    /// Waits until a drain attempt has ended with pods left while a request of this kind is
    /// pending.
    pub fn wait_blocked(&self, request: &str) {
        let before = self.shared.blocked.load(Relaxed);
        wait::until(&format!("{request} to be blocked"), LONG, || {
            let asked = self
                .seen()
                .last()
                .is_some_and(|node| node.desired_drain.starts_with(request));
            asked && self.shared.blocked.load(Relaxed) > before
        });
    }

    /// Waits until no action is in progress that is based on a version of the Node older than the
    /// last one seen. `kubectl drain` cordons when it starts, so that a late attempt would cordon
    /// a node that a person has just uncordoned.
    pub fn wait_idle(&self) {
        // One pass may be in progress; the next one starts with every version seen so far.
        let passes = self.shared.passes.load(Relaxed) + 2;
        wait::until("the controller to be idle", LONG, || {
            self.shared.passes.load(Relaxed) >= passes
        });
    }

    /// Waits until a version of the Node after a mark of [`Seen::mark`] satisfies the condition.
    pub fn wait_node(
        &self,
        what: &str,
        from: usize,
        mut condition: impl FnMut(&NodeSight) -> bool,
    ) -> NodeSight {
        wait::value(&format!("the Node: {what}"), LONG, || {
            let seen = self.seen();
            seen.nodes_from(from)
                .iter()
                .find(|it| condition(it))
                .cloned()
        })
    }
}

const LONG: Duration = wait::seconds(120);

impl Drop for Controller<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- what the controller saw\n{}", self.seen().describe());
        }
        self.shared.stop.store(true, Relaxed);
        for watch in &mut self.watches {
            let _ = watch.kill();
            let _ = watch.wait();
        }
    }
}

/// The state of the fake controller's single worker.
struct Work<'a> {
    cluster: &'a Cluster,
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
    /// The nodes as last observed.
    nodes: BTreeMap<String, Value>,
}

impl Work<'_> {
    fn run(mut self, news: &mpsc::Receiver<Value>) {
        while !self.shared.stop.load(Relaxed) {
            let first = news.recv_timeout(REQUEUE).ok();
            for node in first.into_iter().chain(news.try_iter()) {
                let name = node["metadata"]["name"].as_str().unwrap_or_default();
                self.nodes.insert(name.to_owned(), node.clone());
            }
            for node in self.nodes.values() {
                self.answer(node);
            }
            self.give();
            self.shared.passes.fetch_add(1, Relaxed);
        }
    }

    /// Acts when the drain request differs from the one that was completed last; only the request's
    /// verb is read.
    fn answer(&self, node: &Value) {
        let now = NodeSight::of(node);
        let (asked, name) = (now.desired_drain.as_str(), now.name.as_str());
        if asked.is_empty() || asked == now.last_applied_drain {
            return;
        }
        let done = match asked.split('-').next() {
            Some("uncordon") => self.kubectl(&["uncordon", name]).status.success(),
            Some("drain") => self.drain(name, now.cordoned),
            _ => false,
        };
        if done {
            let applied = format!("{GROUP}/lastAppliedDrain={asked}");
            self.kubectl(&["annotate", "--overwrite", "node", name, &applied]);
        }
    }

    /// Cordons, evicts with respect for PodDisruptionBudgets, and checks again: a node that was
    /// uncordoned meanwhile is not drained.
    fn drain(&self, name: &str, cordoned: bool) -> bool {
        if !cordoned {
            self.kubectl(&["cordon", name]);
        }
        let flags = [
            "--force",
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            ATTEMPT,
        ];
        let drained = self.kubectl(&[&["drain", name][..], &flags].concat());
        if !drained.status.success() {
            self.shared.blocked.fetch_add(1, Relaxed);
            return false;
        }
        let node = self.cluster.object("node", name);
        node.is_some_and(|node| node["spec"]["unschedulable"] == true)
    }

    /// Assigns the pool's config to nodes that need it, as `maxUnavailable` allows.
    fn give(&self) {
        let target = lock(&self.shared.target).clone();
        if target.is_empty() {
            return;
        }
        let snapshots: Vec<_> = self
            .nodes
            .values()
            .map(|node| (NodeSight::of(node), is_ready(node)))
            .collect();
        let taken = snapshots.iter().filter(|(node, ready)| {
            let unavailable = !ready || !node.is_done() && !node.is_failing();
            unavailable || node.is_failing() && node.desired_config == target
        });
        let capacity = MAX_UNAVAILABLE.saturating_sub(taken.count());
        let candidates = snapshots
            .iter()
            .filter(|(node, ready)| *ready && node.desired_config != target);
        for (node, _) in candidates.take(capacity) {
            let desired = format!("{GROUP}/desiredConfig={target}");
            self.kubectl(&["annotate", "--overwrite", "node", &node.name, &desired]);
        }
    }

    fn kubectl(&self, arguments: &[&str]) -> Output {
        let mut kubectl = self.cluster.beside(&lab().kube);
        kubectl
            .arg("kubectl")
            .args(arguments)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig);
        kubectl.output().unwrap()
    }
}

/// Ready as the real controller defines it: a missing condition counts as good.
fn is_ready(node: &Value) -> bool {
    let is = |kind, well| condition(node, kind).is_none_or(|status| status == well);
    is("Ready", "True")
        && is("DiskPressure", "False")
        && is("NetworkUnavailable", "False")
        && node["spec"]["unschedulable"] != true
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
