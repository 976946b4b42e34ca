//! A machine that is a node: containerd and a kubelet in it, as units of its own systemd.

use std::time::Duration;

use serde_json::Value;

use super::api::condition;
use super::cluster::{GOGC, claims_are_off};
use super::image::{self, Image};
use super::{Cluster, Machine, wait};

/// Measured: 2 s after the kubelet's start; the rest is for busy cores.
const READY: Duration = wait::seconds(60);

const FILES: &[(&str, &str)] = &[
    (
        "/etc/containerd/config.toml",
        include_str!("../node/containerd.toml"),
    ),
    (
        "/etc/cni/net.d/lab.conflist",
        include_str!("../node/loopback.conflist"),
    ),
    (
        "/etc/lab/kubelet.yaml",
        include_str!("../node/kubelet.yaml"),
    ),
    (
        "/etc/lab/before-kubelet",
        include_str!("../node/before-kubelet"),
    ),
    (
        "/etc/systemd/system/kubelet.service",
        include_str!("../node/kubelet.service"),
    ),
];

/// A machine and its cluster.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    cluster: &'a Cluster,
    machine: &'a Machine,
}

impl<'a> Node<'a> {
    pub(super) fn join(cluster: &'a Cluster, machine: &'a Machine) -> Self {
        let name = machine.name();
        for (path, content) in FILES {
            machine.write(path, content);
        }
        if claims_are_off() {
            let config = "/etc/lab/kubelet.yaml";
            let text = String::from_utf8(machine.read(config)).unwrap();
            // The second gate makes the kubelet report which container has which device by claim.
            let gates = "featureGates: {DynamicResourceAllocation: true, \
                         KubeletPodResourcesDynamicResources: true}\n";
            machine.write(config, text + gates);
        }
        let environment = format!(
            "NODE_NAME={name}\nNODE_ADDRESS={}\nGOGC={GOGC}\n",
            machine.address()
        );
        machine.write("/etc/lab/kubelet.env", environment);
        let kubeconfig = cluster.kubeconfig(&format!("system:node:{name}"), "system:nodes");
        machine.write("/etc/lab/kubeconfig", std::fs::read(kubeconfig).unwrap());
        machine.sh("systemctl daemon-reload; systemctl enable --now --quiet containerd");
        let node = Self::new(cluster, machine);
        node.import(&image::busybox("pause"));
        machine.exec(&["systemctl", "enable", "--now", "--quiet", "kubelet"]);
        node.wait_ready(READY);
        node
    }

    pub(super) fn new(cluster: &'a Cluster, machine: &'a Machine) -> Self {
        Self { cluster, machine }
    }

    pub fn name(&self) -> &'a str {
        self.machine.name()
    }

    /// The node object.
    pub fn object(&self) -> Value {
        self.cluster.object("node", self.name()).expect("the node")
    }

    /// Makes an image available to pods of this node.
    pub fn import(&self, image: &Image) {
        let inside = "/var/lib/lab-image.tar";
        self.machine
            .write(inside, std::fs::read(&image.archive).unwrap());
        let import = "ctr --namespace k8s.io images import";
        self.machine
            .sh(&format!("{import} {inside} >/dev/null && rm {inside}"));
    }

    /// Waits until the API server reports this boot of the machine as Ready.
    pub fn wait_ready(&self, deadline: Duration) -> Value {
        let boot = self.machine.boot_id();
        self.cluster.wait_object(
            "node",
            self.name(),
            "Ready in this boot",
            deadline,
            |node| {
                // The condition alone may be from the last boot.
                node["status"]["nodeInfo"]["bootID"] == boot.as_str()
                    && condition(node, "Ready") == Some("True")
            },
        )
    }

    /// Restarts the kubelet; returns when systemd has started it, not when the node is Ready.
    pub fn restart_kubelet(&self) {
        self.machine.exec(&["systemctl", "restart", "kubelet"]);
    }
}
