//! Tests the assumptions of the process tier against a real kubelet: the facts of `tests/kubelet/`,
//! which the kubelet double is checked against in every test run. The plugins run in this process,
//! in a directory that it shares with the machine.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use serde_json::Value;

use crate::support::{Cluster, Machine, Node, lab, wait};

#[path = "../kubelet/contract.rs"]
mod contract;
#[path = "../kubelet/plugin.rs"]
pub(crate) mod plugin;

use contract::{Kubelet, facts};

/// A machine's kubelet and everything between it and a Node's allocatable counts.
struct Real<'a> {
    cluster: &'a Cluster,
    machine: &'a Machine,
    node: Node<'a>,
    root: PathBuf,
    pods: AtomicUsize,
}

impl Real<'_> {
    /// Differs from the control plane's version where `MACHINIST_LAB_KUBELET` is set.
    fn version(&self) -> String {
        let node = self.node.object();
        let version = node["status"]["nodeInfo"]["kubeletVersion"].as_str();
        version.unwrap().to_owned()
    }
}

impl Kubelet for Real<'_> {
    fn root(&self) -> &Path {
        &self.root
    }

    fn retries_registration(&self) -> bool {
        let version = self.version();
        !["v1.26.", "v1.33."]
            .iter()
            .any(|one| version.starts_with(one))
    }

    fn spares_files(&self) -> bool {
        !self.version().starts_with("v1.26.")
    }

    async fn stop(&mut self) {
        self.machine.exec(&["systemctl", "stop", "kubelet"]);
    }

    async fn start(&mut self) {
        let socket = self.root.join(plugin::DIRECTORY).join("kubelet.sock");
        let before = std::fs::symlink_metadata(&socket).map(|it| it.modified().unwrap());
        self.machine.exec(&["systemctl", "start", "kubelet"]);
        // Returns once the kubelet answers, like the start of the double.
        wait::until("the kubelet's new socket", wait::seconds(60), || {
            let now = std::fs::symlink_metadata(&socket).map(|it| it.modified().unwrap());
            let other = now.is_ok() && now.ok() != before.as_ref().ok().copied();
            other && std::os::unix::net::UnixStream::connect(plugin::short(&socket)).is_ok()
        });
    }

    async fn counts(&self, resource: &str) -> Option<(usize, usize)> {
        let status = &self.node.object()["status"];
        let count = |of: &str| Some(status[of][resource].as_str()?.parse::<usize>().unwrap());
        Some((count("capacity")?, count("allocatable")?))
    }

    async fn admit(&self, resource: &str, count: usize) -> Result<(), String> {
        let pod = format!("asks-{}", self.pods.fetch_add(1, SeqCst));
        let count = u32::try_from(count).unwrap();
        self.cluster
            .pod(&pod, self.node.name(), &[(resource, count)]);
        let settled = |pod: &Value| {
            let phase = pod["status"]["phase"].as_str();
            phase == Some("Running") || phase == Some("Failed")
        };
        let deadline = wait::seconds(60);
        let about = "admitted or refused";
        let seen = self
            .cluster
            .wait_object("pod", &pod, about, deadline, settled);
        let status = &seen["status"];
        match status["phase"] == "Running" {
            true => Ok(()),
            false => Err(format!("{}: {}", status["reason"], status["message"])),
        }
    }
}

#[test]
fn the_real_kubelet_behaves_like_the_test_double() {
    let cluster = Cluster::start(&lab().version);
    let machine = Machine::boot("judge");
    let node = cluster.join(&machine);
    // A shorter report interval: the test waits for the Node's counts all the time, and the default
    // of ten seconds would be most of its duration.
    let config = "/etc/lab/kubelet.yaml";
    let text = String::from_utf8(machine.read(config)).unwrap();
    machine.write(config, format!("{text}nodeStatusUpdateFrequency: 1s\n"));
    node.restart_kubelet();
    node.wait_ready(wait::seconds(60));
    let mut kubelet = Real {
        cluster: &cluster,
        machine: &machine,
        node,
        root: machine.root(),
        pods: AtomicUsize::new(0),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    macro_rules! ask {
        ($($fact:ident)*) => {
            $(
                let start = Instant::now();
                runtime.block_on(contract::$fact(&mut kubelet));
                println!("lab: fact: {} ({:.1?})", stringify!($fact), start.elapsed());
            )*
        };
    }
    facts!(ask);
}
