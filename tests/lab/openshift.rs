//! An OpenShift node that machinist has taken over, with a fake of its machine-config-controller:
//! from the adoption through updates, cancelled updates and bad configs. Each step prints its name
//! when it begins.

mod controller;
mod drains;
mod node_recorder;
mod refusals;
mod rendering;

use std::{
    process::Output,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use self::controller::Controller;
use crate::support::agent::file;
use crate::support::{Cluster, Machine, lab, stalls};
use machinist_testkit::first_config::{self, CURRENT_CONFIG};

const GROUP: &str = "machineconfiguration.openshift.io";
const NODE: &str = "worker";
const KUBECONFIG: &str = "/etc/machinist/kubeconfig";

/// The time within which the Node reports a failure, or clears it. Generous, for a busy host: the
/// printed figures show how fast it is.
const REPORT_LIMIT: Duration = Duration::from_secs(60);

const SEARCH: &str =
    "unqualified-search-registries = [\"registry.access.redhat.com\", \"docker.io\"]\n";
const KEY: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMS5KXbDAu7yhVFEf3aJZLJdVVzWcuVQv4p6hnjtaqsW core@lab";
const SSHD: &str = "/etc/ssh/sshd_config.d/40-ssh-key-dir.conf";
const HELPER: &str = "/usr/libexec/ssh-key-dir";
/// As Red Hat's and Fedora's CoreOS ship it, and as distributions without the helper ship it.
const SSHD_WITH_HELPER: &str =
    "AuthorizedKeysCommand /usr/libexec/ssh-key-dir %u\nAuthorizedKeysCommandUser root\n";
const SSHD_WITH_FILE: &str =
    "AuthorizedKeysFile .ssh/authorized_keys .ssh/authorized_keys.d/ignition\n";

/// A service in place of the container runtime that the policies name.
const CRIO: &str = "[Service]\nExecStart=/bin/sleep infinity\nExecReload=/bin/true\n\
    [Install]\nWantedBy=multi-user.target\n";
/// A unit of the machine that cannot start.
const LIVE: &str = "[Unit]\nRequires=lab-missing.service\n[Service]\nExecStart=/bin/sleep infinity\n\
    [Install]\nWantedBy=multi-user.target\n";

/// Services of the machine, and presets for two of them.
const BY_PRESET: &str =
    "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n";
const PRESETS: &str = "enable lab-enabled.service\ndisable lab-disabled.service\n";

/// The node, and the controller that gives it its configs.
struct Story<'a> {
    cluster: &'a Cluster,
    machine: &'a Machine,
    controller: Controller<'a>,
}

/// The content of a config besides the content that the node was installed with.
#[derive(Clone, Default)]
struct Content {
    /// A change of it requires a drain and a reboot.
    example: u32,
    /// A change of it requires neither.
    sysctl: u32,
    registries: String,
    units: Vec<Value>,
}

impl Content {
    fn rendered(&self, name: &str) -> Value {
        let mut config = first_config::rendered(name, "/dev/vdb");
        let spec = &mut config["spec"];
        spec["kernelArguments"] = json!(kernel_arguments());
        let files = spec["config"]["storage"]["files"].as_array_mut().unwrap();
        for (path, text) in self.files() {
            files.push(file(path, 0o644, &text));
        }
        spec["config"]["passwd"] = json!({"users": [{"name": "core", "sshAuthorizedKeys": [KEY]}]});
        spec["config"]["systemd"] = json!({"units": self.units});
        config
    }

    fn files(&self) -> [(&'static str, String); 3] {
        let registries = [SEARCH, &self.registries].concat();
        [
            ("/etc/example.conf", format!("{}\n", self.example)),
            (
                "/etc/sysctl.d/90-lab.conf",
                format!("net.ipv4.conf.all.log_martians = {}\n", self.sysctl),
            ),
            ("/etc/containers/registries.conf", registries),
        ]
    }
}

/// Arguments of the host's own command line, which every lab machine has: one with quotes that the
/// kernel does not show, and a string of two.
fn kernel_arguments() -> Vec<String> {
    let line = std::fs::read_to_string("/proc/cmdline").unwrap();
    let words = line.split_whitespace().take_while(|word| *word != "--");
    let mut pairs = words
        .filter(|word| !word.contains('"'))
        .filter_map(|word| word.split_once('='));
    let mut next = || pairs.next().expect("three arguments with values");
    let [(a, b), (c, d), (e, f)] = [next(), next(), next()];
    vec![format!("{a}=\"{b}\""), format!(" {c}={d} {e}=\"{f}\"")]
}

/// Runs a step and prints its name and, when it is over, its duration.
fn step(name: &str, act: impl FnOnce()) {
    let begun = Instant::now();
    println!("lab: openshift: {name}");
    act();
    println!("lab: openshift: {name}: {:.1?}", begun.elapsed());
}

impl Story<'_> {
    fn offer(&self, name: &str, content: &Content) {
        self.cluster.apply(&content.rendered(name).to_string());
    }

    /// Rolls a config out and waits until the node has applied it; the Node must never report a
    /// failure.
    fn healthy_update(&self, name: &str, content: &Content) {
        self.offer(name, content);
        let (from, _) = self.controller.seen().mark();
        self.controller.roll_out(name);
        self.controller
            .wait_node(name, from, |node| node.is_on(name));
        let seen = self.controller.seen();
        let bad = seen.nodes_from(from).iter().find(|it| it.is_degraded());
        assert!(bad.is_none(), "{bad:?}");
    }

    fn adopt(&self, flags: &[&str]) -> Output {
        let adopt = ["/usr/bin/machinist", "adopt", "--kubeconfig", KUBECONFIG];
        self.machine
            .try_exec(&[&adopt[..], flags].concat())
            .unwrap()
    }

    /// The name of the config that the node is on.
    fn on(&self) -> String {
        let seen = self.controller.seen();
        seen.last().unwrap().current_config.clone()
    }

    fn annotate(&self, annotations: &[&str]) {
        let annotations = annotations.iter().map(|it| format!("{GROUP}/{it}"));
        let annotations: Vec<_> = annotations.collect();
        let mut arguments = vec!["annotate", "--overwrite", "node", NODE];
        arguments.extend(annotations.iter().map(String::as_str));
        self.cluster.kubectl(&arguments);
    }
}

fn output_text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// The machine as machine-config-daemon leaves it: on `rendered-worker-0`.
fn installed(cluster: &Cluster) -> Machine {
    let kubeconfig = std::fs::read(cluster.kubeconfig("machinist-worker", "system:masters"));
    let settings =
        format!("source: cluster\ncluster: {{node: {NODE}, kubeconfig: {KUBECONFIG}}}\n");
    let first = Content::default();
    let mut machine = Machine::build(NODE)
        .machinist()
        .file(KUBECONFIG, kubeconfig.unwrap())
        .file("/etc/machinist/machinist.yaml", settings)
        .file(
            CURRENT_CONFIG,
            first.rendered("rendered-worker-0").to_string(),
        )
        .file("/etc/a", "one")
        .file(SSHD, SSHD_WITH_FILE)
        .file("/usr/lib/systemd/system/lab-live.service", LIVE)
        .file("/usr/lib/systemd/system/crio.service", CRIO)
        .enable("crio.service")
        .file("/usr/lib/systemd/system-preset/10-lab.preset", PRESETS)
        .enable("lab-disabled.service");
    for name in ["enabled", "disabled", "silent"] {
        let unit = format!("/usr/lib/systemd/system/lab-{name}.service");
        machine = machine.file(&unit, BY_PRESET);
    }
    for (path, text) in first.files() {
        machine = machine.file(path, text);
    }
    let machine = machine.boot();
    machine.exec(&["useradd", "--create-home", "core"]);
    // The helper of CoreOS, which the machine lacks.
    machine.write(
        HELPER,
        "#!/bin/sh\ncat \"/home/$1/.ssh/authorized_keys.d/\"*\n",
    );
    machine.sh(&format!("chmod 0755 {HELPER}"));
    let keys = "/home/core/.ssh/authorized_keys.d/ignition";
    machine.write(keys, format!("{KEY}\n"));
    machine.sh("chown -R core:core /home/core/.ssh; chmod -R go= /home/core/.ssh");
    machine
}

#[test]
fn an_openshift_node_is_adopted_and_managed_by_its_controllers_rules() {
    stalls::watch();
    let cluster = Cluster::start(&lab().version);
    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/kubernetes/crds");
    cluster.kubectl(&["apply", "-k", crds]);
    cluster.kubectl(&["wait", "--for=condition=Established", "crd", "--all"]);
    let here = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ControllerConfig",
        "metadata": {"name": "machine-config-controller"}, "spec": {}});
    cluster.apply(&here.to_string());
    let machine = installed(&cluster);
    cluster.join(&machine);
    thread::scope(|scope| {
        let story = Story {
            cluster: &cluster,
            machine: &machine,
            controller: Controller::start(scope, &cluster),
        };
        let mut content = Content::default();
        step("a node with images, disks and keys is adopted", || {
            refusals::adoption(&story, &content);
        });
        step("a config that leaves the images alone is taken on", || {
            content.sysctl = 1;
            story.healthy_update("rendered-worker-1", &content);
        });
        step("a bad config is named, and a good one clears it", || {
            refusals::bad_and_good(&story, &mut content);
        });
        step("mirrors for digests cause no drain", || {
            drains::mirrors(&story, &mut content);
        });
        step("images of the pool's sources are left alone", || {
            rendering::images_of_sources(&story, &content);
        });
        step("units with drop-ins only follow the presets", || {
            rendering::drop_ins_only(&story, &mut content);
        });
        step("an update with a reboot, condition by condition", || {
            drains::rebooting(&story, &mut content);
        });
        step("a blocked drain is cancelled", || {
            drains::taken_back(&story, &content);
        });
        step("a person's cordon stays", || {
            drains::operator_cordon(&story, &mut content);
        });
        step("a cancelled update gives the node back", || {
            drains::cancelled(&story, &content);
        });
        step("a unit that cannot start is named", || {
            refusals::unit_that_cannot_start(&story, &content);
        });
        let seen = story.controller.seen();
        let mute = seen
            .nodes_from(0)
            .iter()
            .find(|it| it.is_degraded() && it.reason.is_empty());
        assert!(mute.is_none(), "degraded without a reason: {mute:?}");
    });
}
