//! Many resources, and a kubelet that is restarted repeatedly: does the Node ever report 0 of any
//! of them?

mod bare_plugins;

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use serde_json::Value;

use crate::support::{Cluster, Machine, Node, installed::binary, lab, rounds, wait};

const RESOURCES: usize = 50;
/// The resource of Kubernetes' own sample plugin, which is notified of each restart by hand, five
/// seconds late: it models a plugin that polls.
const SLOW: &str = "example.com/resource";
const SLOW_SERVICE: &str = "[Service]\nExecStart=/usr/local/bin/sample-device-plugin\n";
const SOCKET: &str = "/var/lib/kubelet/device-plugins/kubelet.sock";
/// The kubelet reports every ten seconds, so its first report after a restart has been sent by
/// then.
const REPORTS: Duration = wait::seconds(12);

fn resource(number: usize) -> String {
    format!("lab.machinist.dev/r{number}")
}

fn declaration(number: usize) -> String {
    format!(
        "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: r{number}}}\n\
         spec: {{resource: {}, match: [{{path: /dev/null}}]}}\n",
        resource(number)
    )
}

/// When the kubelet created its socket, in seconds since 1970.
fn made(machine: &Machine) -> f64 {
    let made = machine.sh(&format!("stat -c %.6Z {SOCKET} 2>/dev/null || echo 0"));
    made.trim().parse().unwrap()
}

/// When the last of all resources was registered with the kubelet that created its socket at
/// `made`; in seconds since 1970.
fn registered(machine: &Machine, made: f64) -> Option<f64> {
    let listed = machine.exec(&["machinist", "devices", "list", "-o", "json"]);
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let since = |one: &Value| {
        let since: Timestamp = one["since"].as_str()?.parse().unwrap();
        let since = since.as_duration().as_secs_f64();
        (one["registered"] == true && since > made).then_some(since)
    };
    let times: Vec<_> = listed.iter().filter_map(since).collect();
    (times.len() == RESOURCES).then(|| times.into_iter().fold(made, f64::max))
}

/// Resources that the kubelet has reported as 0 since the log had `from` lines.
fn reported_as_none(cluster: &Cluster, from: usize) -> BTreeSet<String> {
    let log = cluster.audit();
    let reports = log[from..]
        .iter()
        .filter(|event| event["user"]["username"] == "system:node:many");
    let counts = reports.flat_map(|event| {
        let status = &event["requestObject"]["status"];
        ["allocatable", "capacity"].map(|what| status[what].as_object().cloned())
    });
    counts
        .flatten()
        .flatten()
        .filter(|(name, count)| name.contains('/') && count == "0")
        .map(|(name, _)| name)
        .collect()
}

fn counted(node: &Value) -> usize {
    let count = |number| node["status"]["allocatable"][resource(number)] == "1";
    (0..RESOURCES).filter(|number| count(*number)).count()
}

#[test]
fn fifty_resources_are_registered_again_after_each_kubelet_restart() {
    let cluster = Cluster::start(&lab().version);
    // The release binary: a debug build takes three times as long to register, on processors that
    // the kubelet needs.
    let mut builder = Machine::build("many").machinist();
    builder = builder.bind(binary(), "/usr/bin/machinist");
    for number in 0..RESOURCES {
        let path = format!("/etc/machinist/devices.d/r{number}.yaml");
        builder = builder.file(&path, declaration(number));
    }
    let machine = builder
        .file("/etc/systemd/system/slow.service", SLOW_SERVICE)
        .bind(&lab().plugin, "/usr/local/bin/sample-device-plugin")
        .boot();
    let node = cluster.join(&machine);
    machine.start_agent();
    machine.exec(&["systemctl", "start", "slow"]);
    cluster.wait_object("node", "many", "all of them", wait::seconds(60), |node| {
        counted(node) == RESOURCES && node["status"]["allocatable"][SLOW] != "0"
    });

    let restarts = rounds(3, 20);
    let (mut ours, mut slow) = (Figure::default(), 0);
    for round in 0..restarts {
        let (from, before) = (cluster.audit().len(), made(&machine));
        node.restart_kubelet();
        machine.sh("systemd-run --quiet --on-active=5 systemctl restart slow");
        let (made, last) = wait::value("all registrations", wait::seconds(30), || {
            let made = Some(made(&machine)).filter(|made| *made > before)?;
            Some((made, registered(&machine, made)?))
        });
        std::thread::sleep(REPORTS);
        let mut none = reported_as_none(&cluster, from);
        slow += usize::from(none.remove(SLOW));
        ours.add(last - made, &none);
        let all = format!("all of them again, round {round}");
        cluster.wait_object("node", "many", &all, wait::seconds(30), |node| {
            counted(node) == RESOURCES
        });
    }
    machine.exec(&["systemctl", "stop", "machinist"]);
    let bare = bare(&cluster, &machine, &node, restarts);
    println!(
        "lab: figure: kubelet.sock made → {RESOURCES} resources registered again: {ours}; plugins that do nothing \
         else, all in one process: {bare}; a plugin that registers 5 s late was reported as 0 in {slow}"
    );
}

/// Plugins without an agent that only register, immediately: measures the kubelet's own share of
/// the time.
fn bare(cluster: &Cluster, machine: &Machine, node: &Node, restarts: usize) -> Figure {
    let mut figure = Figure::default();
    for _ in 0..restarts {
        let from = cluster.audit().len();
        let mut plugins = bare_plugins::Plugins::waiting(&machine.root(), RESOURCES, resource);
        node.restart_kubelet();
        let last = plugins.registered();
        std::thread::sleep(REPORTS);
        let mut none = reported_as_none(cluster, from);
        none.remove(SLOW);
        figure.add(last - made(machine), &none);
    }
    figure
}

/// Kubelet restarts: how long each took, and how many resources the Node showed as 0 after it.
#[derive(Default)]
struct Figure {
    times: Vec<Duration>,
    none: Vec<usize>,
}

impl Figure {
    fn add(&mut self, seconds: f64, none: &BTreeSet<String>) {
        self.times.push(Duration::from_secs_f64(seconds));
        self.none.push(none.len());
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut times = self.times.clone();
        times.sort();
        let (count, none) = (times.len(), &self.none);
        let (least, median, most) = (times[0], times[count / 2], times[count - 1]);
        write!(
            f,
            "median {median:.0?}, {least:.0?} – {most:.0?} in {count} restarts, reported as 0 in each: {none:?}"
        )
    }
}
