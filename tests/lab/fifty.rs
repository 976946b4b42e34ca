//! Many resources, and a kubelet that is restarted again and again: does the Node ever count none of them?

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use crate::support::{Cluster, Machine, lab, rounds, wait};

const RESOURCES: usize = 50;
/// Of Kubernetes' own sample plugin, which is told of each restart by hand, five seconds late: what a plugin
/// that asks every so often looks like.
const SLOW: &str = "example.com/resource";
const SLOW_SERVICE: &str = "[Service]\nExecStart=/usr/local/bin/sample-device-plugin\n";
const SOCKET: &str = "/var/lib/kubelet/device-plugins/kubelet.sock";
/// The kubelet reports every ten seconds, and what it says first is said by then.
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

/// When the kubelet made its socket, and when each resource was registered after that; in seconds.
fn registered(machine: &Machine) -> (f64, Vec<f64>) {
    let made = machine.sh(&format!("stat -c %.6Z {SOCKET}"));
    let made: f64 = made.trim().parse().unwrap();
    let since = format!("--since=@{made:.6}");
    let shown = machine.exec(&[
        "journalctl",
        "--quiet",
        "--output=short-unix",
        &since,
        "_COMM=machinist",
    ]);
    let lines = shown.lines().filter(|line| line.contains("is registered,"));
    let times = lines.map(|line| line.split(' ').next().unwrap().parse::<f64>().unwrap());
    (made, times.collect())
}

/// Resources that the kubelet has reported as none since the log had `from` lines.
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
fn fifty_resources_are_back_after_each_restart_of_the_kubelet() {
    let cluster = Cluster::start(&lab().version);
    let mut builder = Machine::build("many").machinist();
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
    let (mut times, mut ours_none, mut slow) = (Vec::new(), Vec::new(), 0);
    for round in 0..restarts {
        let from = cluster.audit().len();
        node.restart_kubelet();
        machine.sh("systemd-run --quiet --on-active=5 systemctl restart slow");
        let (made, registered) = wait::value("all registrations", wait::seconds(30), || {
            Some(registered(&machine)).filter(|(_, times)| times.len() >= RESOURCES)
        });
        let last = registered.into_iter().fold(made, f64::max);
        times.push(Duration::from_secs_f64(last - made));
        std::thread::sleep(REPORTS);
        let none = reported_as_none(&cluster, from);
        let ours = none.iter().filter(|name| name.as_str() != SLOW);
        ours_none.push(ours.count());
        slow += usize::from(none.contains(SLOW));
        let all = format!("all of them again, round {round}");
        cluster.wait_object("node", "many", &all, wait::seconds(30), |node| {
            counted(node) == RESOURCES
        });
    }
    times.sort();
    println!(
        "lab: figure: kubelet.sock made → {RESOURCES} resources registered again: median {:.0?}, {:.0?} – {:.0?} in \
         {restarts} restarts; reported as 0 in each: {ours_none:?}; a plugin that registers 5 s late was in {slow}",
        times[times.len() / 2],
        times[0],
        times[times.len() - 1],
    );
}
