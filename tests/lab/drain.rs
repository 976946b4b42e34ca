//! Drains on a real API server, of a node that has no kubelet: a script acts in its place.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{Cluster, WORK, lab, wait};

const PODS: usize = 250;

/// The grace period of the pods, in seconds.
const GRACE: u64 = 2;

fn node(cluster: &Cluster) {
    let labels = json!({"kubernetes.io/hostname": "bare"});
    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare", "labels": labels}});
    cluster.apply(&node.to_string());
}

fn pods(names: impl IntoIterator<Item = String>, app: &str) -> String {
    let pod = |name: String| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": app}},
            "spec": {"nodeName": "bare", "terminationGracePeriodSeconds": GRACE,
                "automountServiceAccountToken": false,
                "containers": [{"name": "c", "image": "none"}]}})
    };
    let items: Vec<_> = names.into_iter().map(pod).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn create(cluster: &Cluster, manifest: &str) {
    let made = cluster.try_kubectl_with(&["create", "-f", "-"], manifest);
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
}

/// A proxy to the API server that is not subject to a client's own rate limit.
struct Proxy {
    process: Child,
    socket: PathBuf,
}

impl Proxy {
    fn start(cluster: &Cluster) -> Self {
        let socket = Path::new(WORK).join("proxy.sock");
        let kubeconfig = cluster.kubeconfig("script", "system:masters");
        let mut kubectl = cluster.beside(&lab().kube);
        kubectl
            .args(["kubectl", "proxy", "--kubeconfig"])
            .arg(kubeconfig);
        kubectl
            .arg("--unix-socket")
            .arg(&socket)
            .stdout(Stdio::null());
        let process = kubectl.spawn().unwrap();
        wait::until("kubectl proxy", wait::seconds(30), || {
            UnixStream::connect(&socket).is_ok()
        });
        Self { process, socket }
    }

    /// Sends a request and returns the body of the response.
    fn ask(&self, method: &str, path: &str) -> Vec<u8> {
        let mut stream = UnixStream::connect(&self.socket).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
        answer.split_off(head.expect("an answer has a head") + 4)
    }

    /// Deletes pods whose grace period is over, as a kubelet does.
    fn end_pods(&self, stop: &AtomicBool) {
        const PODS: &str = "/api/v1/namespaces/default/pods";
        while !stop.load(Ordering::Relaxed) {
            let pods: Value = serde_json::from_slice(&self.ask("GET", PODS)).unwrap();
            let now = jiff::Timestamp::now();
            let over = |pod: &&Value| {
                let deadline = pod["metadata"]["deletionTimestamp"].as_str();
                deadline.is_some_and(|time| time.parse::<jiff::Timestamp>().unwrap() <= now)
            };
            let items = pods["items"].as_array().unwrap().iter().filter(over);
            let names: Vec<_> = items
                .filter_map(|pod| pod["metadata"]["name"].as_str())
                .collect();
            thread::scope(|scope| {
                for part in names.chunks(32) {
                    scope.spawn(move || {
                        for name in part {
                            self.ask("DELETE", &format!("{PODS}/{name}?gracePeriodSeconds=0"));
                        }
                    });
                }
            });
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Runs a drain next to the kubelet script, and returns how long it took.
fn timed(cluster: &Cluster, drain: &mut Command) -> (Duration, Output) {
    let proxy = Proxy::start(cluster);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| proxy.end_pods(&stop));
        let began = Instant::now();
        let output = drain.stdin(Stdio::null()).output();
        let took = began.elapsed();
        stop.store(true, Ordering::Relaxed);
        (took, output.unwrap())
    })
}

/// Requests of a user in the API server's audit log.
fn requests(cluster: &Cluster, user: &str) -> Vec<Value> {
    let audit = cluster.audit().into_iter();
    audit
        .filter(|event| event["user"]["username"] == user)
        .collect()
}

#[test]
fn draining_250_pods_takes_a_fraction_of_kubectls_requests() {
    let cluster = Cluster::start(&lab().version);
    node(&cluster);
    let flags = ["drain", "bare", "--force", "--ignore-daemonsets"];
    let names = || (0..PODS).map(|n| format!("web-{n:03}"));

    create(&cluster, &pods(names(), "web"));
    let mut kubectl = cluster.beside(&lab().kube);
    let kubeconfig = cluster.kubeconfig("by-kubectl", "system:masters");
    kubectl
        .arg("kubectl")
        .args(flags)
        .arg("--kubeconfig")
        .arg(kubeconfig);
    let (theirs, output) = timed(&cluster, &mut kubectl);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    cluster.kubectl(&["uncordon", "bare"]);
    create(&cluster, &pods(names(), "web"));
    let (ours, output) = timed(&cluster, &mut cluster.machinist("by-machinist", &flags));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(printed, format!("node/bare drained: {PODS} pods removed\n"));
    assert_eq!(cluster.kubectl_json(&["get", "pods"])["items"], json!([]));

    let asked = |user: &str| requests(&cluster, user).len();
    let (by_kubectl, by_us) = (asked("by-kubectl"), asked("by-machinist"));
    println!(
        "lab: figure: {PODS} pods of grace {GRACE} s: kubectl {by_kubectl} requests in {theirs:.1?}, \
         machinist {by_us} in {ours:.1?}"
    );
    assert!(ours < theirs, "{ours:?} of {theirs:?}");
    assert!(by_us < PODS + 20, "{by_us}");
    assert!(by_us < by_kubectl, "{by_us} of {by_kubectl}");
    let (theirs, ours) = (
        spread(&cluster, "by-kubectl"),
        spread(&cluster, "by-machinist"),
    );
    println!("lab: figure: all evictions asked for: kubectl {theirs:.1?}, machinist {ours:.1?}");
    assert!(ours < theirs, "{ours:?} of {theirs:?}");
}

/// The time between a user's first and last eviction.
fn spread(cluster: &Cluster, user: &str) -> jiff::SignedDuration {
    let evictions = requests(cluster, user);
    let evictions = evictions
        .iter()
        .filter(|one| one["objectRef"]["subresource"] == "eviction");
    let time = |event: &Value| -> jiff::Timestamp {
        event["requestReceivedTimestamp"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    };
    let times: Vec<_> = evictions.map(time).collect();
    assert!(times.len() >= PODS, "{}", times.len());
    times
        .iter()
        .max()
        .unwrap()
        .duration_since(*times.iter().min().unwrap())
}

#[test]
fn a_blocking_budget_is_reported_and_the_drain_continues_after_its_removal() {
    let cluster = Cluster::start(&lab().version);
    node(&cluster);
    create(
        &cluster,
        &pods(["held-a".to_owned(), "held-b".to_owned()], "held"),
    );
    let ready = json!({"status": {"phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}]}});
    for pod in ["held-a", "held-b"] {
        let patch = ready.to_string();
        cluster.kubectl(&[
            "patch",
            "pod",
            pod,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ]);
    }
    cluster.apply(
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: guard}\n\
         spec: {minAvailable: 2, selector: {matchLabels: {app: held}}}\n",
    );
    cluster.wait_object("pdb", "guard", "two healthy", wait::seconds(30), |budget| {
        budget["status"]["currentHealthy"] == 2
    });
    let lifted = AtomicBool::new(false);
    let (took, output) = thread::scope(|scope| {
        scope.spawn(|| {
            let refused = || {
                let asked = requests(&cluster, "by-machinist");
                let code = |one: &Value| one["responseStatus"]["code"].clone();
                asked.iter().filter(|one| code(one) == 429).count() >= 2
            };
            wait::until("two refusals", wait::seconds(60), refused);
            let node = cluster.object("node", "bare").unwrap();
            assert_eq!(node["spec"]["unschedulable"], true);
            cluster.kubectl(&["delete", "pdb", "guard"]);
            lifted.store(true, Ordering::Relaxed);
        });
        let flags = ["drain", "bare", "--force", "--timeout=120s"];
        timed(&cluster, &mut cluster.machinist("by-machinist", &flags))
    });
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && lifted.load(Ordering::Relaxed),
        "{message}"
    );
    let never =
        "can never be evicted: PodDisruptionBudget guard (minAvailable 2) requires 2 of 2 pods";
    assert!(message.contains(never), "{message}");
    println!("lab: figure: a drain with a budget that was lifted ended after {took:.1?}");
    let codes = requests(&cluster, "by-machinist");
    let codes = codes
        .iter()
        .filter(|one| one["objectRef"]["subresource"] == "eviction");
    let codes: Vec<_> = codes
        .map(|one| one["responseStatus"]["code"].clone())
        .collect();
    assert!(codes.len() < 12, "{codes:?}");
    assert_eq!(
        codes.iter().filter(|code| **code == 201).count(),
        2,
        "{codes:?}"
    );
}
