//! The DaemonSet as shipped: the image that `packaging/image/build` makes, the kustomization, the
//! policies.

mod config_map;
mod slices;

use std::{process::Output, thread, time::Duration};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::agent::{file, manifest};
use crate::support::installed::NAMESPACE;
use crate::support::{Cluster, Machine, lab, rounds, wait};

const GROUP: &str = "machineconfiguration.openshift.io";

fn annotation<'a>(object: &'a Value, name: &str) -> &'a str {
    let annotations = &object["metadata"]["annotations"];
    annotations[format!("{GROUP}/{name}")]
        .as_str()
        .unwrap_or_default()
}

/// Creates a rendered config and sets the desired-config annotation of these nodes to it.
fn ask(cluster: &Cluster, nodes: &[&str], config: &str, files: Value) {
    cluster.apply(&manifest(config, json!({"files": files}), Value::Null));
    for node in nodes {
        let desired = format!("{GROUP}/desiredConfig={config}");
        cluster.kubectl(&["annotate", "--overwrite", "node", node, &desired]);
    }
}

fn wait_done(cluster: &Cluster, node: &str, config: &str) -> Value {
    let what = format!("{config} and Done");
    cluster.wait_object("node", node, &what, wait::seconds(120), |node| {
        annotation(node, "currentConfig") == config && annotation(node, "state") == "Done"
    })
}

/// The service account token of the agent on this machine, read from the kubelet's volume of the
/// pod, which the kubelet mounts some time after a boot.
fn token(cluster: &Cluster, machine: &Machine) -> String {
    wait::value("the token of the agent's pod", wait::seconds(60), || {
        let pod = cluster.agent_pod(machine.name())?;
        let uid = pod["metadata"]["uid"].as_str()?;
        let read =
            format!("cat /var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~projected/*/token");
        let output = machine.try_exec(&["sh", "-c", &read]).ok()?;
        let is_read = output.status.success() && !output.stdout.is_empty();
        is_read.then(|| String::from_utf8(output.stdout).unwrap())
    })
}

/// Runs kubectl with no credentials but that token.
pub(crate) fn as_agent(cluster: &Cluster, token: &str, arguments: &[&str], input: &str) -> Output {
    let identity = [
        "--kubeconfig=/dev/null",
        "--server=https://10.99.0.1:443",
        "--insecure-skip-tls-verify",
        "--token",
        token,
    ];
    cluster.try_kubectl_with(&[&identity[..], arguments].concat(), input)
}

#[test]
fn the_shipped_kustomization_applies_configs_and_confines_each_agent() {
    let cluster = Cluster::start(&lab().version);
    let (mut first, second) = (Machine::boot("first"), Machine::boot("second"));
    for machine in [&first, &second] {
        cluster.join(machine);
    }
    cluster.install_machinist(&[&first, &second], "");
    config_map::declares(&cluster, 1);

    ask(
        &cluster,
        &["first", "second"],
        "rendered-worker-a",
        json!([file("/etc/motd", 0o644, "a\n")]),
    );
    for node in ["first", "second"] {
        wait_done(&cluster, node, "rendered-worker-a");
    }

    config_map::is_followed(&cluster, &["first", "second"], 1);
    config_map::declares(&cluster, 3);

    // One node's config requires a reboot; it runs a pod of the workload that has to be evicted.
    cluster.workload("moved", "first", 2);
    let (boot, other) = (first.boot_id(), second.boot_id());
    let content = json!([file("/etc/example.conf", 0o640, "b\n")]);
    ask(&cluster, &["first"], "rendered-worker-b", content);
    let object = wait_done(&cluster, "first", "rendered-worker-b");
    assert!(object["spec"]["unschedulable"].is_null(), "{object:#}");
    assert_ne!(first.boot_id(), boot, "it has rebooted");
    assert_eq!(first.read("/etc/example.conf"), b"b\n");
    assert_eq!(second.boot_id(), other, "the other node is left alone");
    assert_eq!(second.try_read("/etc/example.conf"), None);
    cluster.kubectl(&["rollout", "status", "deployment/moved", "--timeout=60s"]);
    for name in ["first", "second"] {
        let node = cluster
            .object("machineconfignode", name)
            .expect("its report");
        assert_eq!(
            node["status"]["conditions"][0]["type"], "UpdatePrepared",
            "{node:#}"
        );
    }

    has_host_install(&mut first);
    no_policy_has_refused_an_agent(&cluster);
    is_kept_to_its_node(&cluster, &first);
    follows_without_reboot(&cluster, "second");
    config_map::is_followed(&cluster, &["first", "second"], 3);
    is_quiet(&cluster, &second);
}

/// Asserts that the admission policies have refused nothing of a whole update and of the agent's
/// other writes.
fn no_policy_has_refused_an_agent(cluster: &Cluster) {
    let agent = "system:serviceaccount:machinist-system:machinist";
    let audit = cluster.audit().into_iter();
    let mut own = audit.filter(|event| event["user"]["username"] == agent);
    let refused = own.find(|event| {
        let message = event["responseStatus"]["message"].as_str();
        message.is_some_and(|message| message.contains("ValidatingAdmissionPolicy"))
    });
    assert!(refused.is_none(), "{refused:#?}");
}

/// Asserts that the recovery unit for interrupted updates is installed on the host, ran at the last
/// boot, and logs to the console.
fn has_host_install(machine: &mut Machine) {
    machine.wait_console(
        "the agent, asked by the copy",
        wait::seconds(30),
        |status| status["mode"] == "cluster" && status["phase"] == "Idle",
    );
    machine.kill();
    machine.power_on();
    for unit in ["machinist-recover", "machinist-guard"] {
        assert_eq!(machine.property(unit, "Result"), "success", "{unit}");
        assert_ne!(machine.property(unit, "InvocationID"), "", "{unit} ran");
    }
}

/// When the API server had completed an audited request.
fn answered(event: &Value) -> Timestamp {
    event["stageTimestamp"].as_str().unwrap().parse().unwrap()
}

/// Whether the agents' service account sent an audited request.
fn is_agents(event: &Value) -> bool {
    let user = event["user"]["username"].as_str().unwrap_or_default();
    user.starts_with("system:serviceaccount:machinist-system:")
}

/// Applies twenty configs without a reboot, one after another, and measures from the annotation to
/// Done in the API server's audit log. The config before them removes the file that required a
/// reboot.
fn follows_without_reboot(cluster: &Cluster, node: &str) {
    let begun = Timestamp::now();
    for n in 0..=20 {
        let config = format!("rendered-worker-n{n}");
        let content = json!([file(
            "/etc/containerd/certs.d/lab/hosts.toml",
            0o644,
            &format!("# {n}\n")
        )]);
        ask(cluster, &[node], &config, content);
        wait_done(cluster, node, &config);
    }
    let of_node = |event: &&Value| {
        event["objectRef"]["resource"] == "nodes" && event["objectRef"]["name"] == node
    };
    let log = cluster.audit();
    let patches: Vec<_> = log
        .iter()
        .filter(of_node)
        .filter(|event| answered(event) > begun)
        .collect();
    let took = |n: usize| {
        let config = format!("rendered-worker-n{n}\"");
        let names = |event: &&&Value| event["requestObject"].to_string().contains(&config);
        let asked = patches
            .iter()
            .filter(names)
            .find(|event| !is_agents(event))
            .unwrap();
        let done = |event: &&&Value| {
            is_agents(event) && event["requestObject"].to_string().contains("\"Done\"")
        };
        let done = patches.iter().filter(names).find(done).unwrap();
        Duration::try_from(answered(done).duration_since(answered(asked))).unwrap()
    };
    let mut times: Vec<_> = (1..=20).map(took).collect();
    times.sort();
    println!(
        "lab: figure: annotation to Done without a reboot: {:.0?} median of 20, {:.0?} worst",
        times[10], times[19]
    );
    // The figure shows how fast it is on a quiet machine.
    assert!(times[10] < wait::seconds(60), "{times:?}");
}

/// Measures the resource usage of an idle agent.
fn is_quiet(cluster: &Cluster, machine: &Machine) {
    // Waits until the last condition and the last event have been published.
    thread::sleep(wait::seconds(5));
    let begun = Timestamp::now();
    let watched = wait::seconds(rounds(20, 900) as u64);
    thread::sleep(watched);
    let log = cluster.audit();
    let ours = log.iter().filter(|event| {
        is_agents(event) && event["stage"] == "ResponseComplete" && answered(event) > begun
    });
    // Two agents share the account.
    let hour = 3600.0 / watched.as_secs_f64() / 2.0;
    let (mut all, mut writes) = (0.0, 0.0);
    for event in ours {
        all += hour;
        if event["verb"] != "get" && event["verb"] != "watch" && event["verb"] != "list" {
            writes += hour;
        }
    }
    let resident = machine.sh("grep VmRSS /proc/$(pgrep -x machinist)/status");
    println!(
        "lab: figure: idle for {watched:?}: {all:.0} requests an hour and node, {writes:.0} of them writes; {}",
        resident.split_whitespace().collect::<Vec<_>>().join(" ")
    );
    if lab().long {
        assert!(writes <= 15.0, "{writes} writes an hour");
    }
}

/// Asserts that the agent of `first` may change objects of its own node, and none of `second`'s.
fn is_kept_to_its_node(cluster: &Cluster, first: &Machine) {
    cluster.pod("foreign", "second", &[]);
    cluster.wait_pod("foreign", "Running", wait::seconds(60));
    cluster.pod("own", "first", &[]);
    cluster.wait_pod("own", "Running", wait::seconds(60));
    let token = token(cluster, first);
    let label = r#"{"metadata":{"annotations":{"machinist.dev/lab":"x"}}}"#;
    let cordon = r#"{"spec":{"unschedulable":true}}"#;
    let condition = r#"{"status":{"conditions":[{"type":"machinist.dev/Lab","status":"True"}]}}"#;
    let may = |arguments: &[&str], input: &str| {
        let output = as_agent(cluster, &token, arguments, input);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then_some(()).ok_or(error)
    };
    let evict = |pod: &str| {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod, "namespace": "default"},
        });
        let path = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
        may(
            &["create", "--raw", &path, "-f", "-"],
            &eviction.to_string(),
        )
    };
    let patch = |kind: &str, name: &str, patch: &str| {
        may(&["patch", kind, name, "--type=merge", "-p", patch], "")
    };
    let status = |kind: &str, name: &str, patch: &str| {
        let flags = ["--subresource=status", "--type=merge", "-p", patch];
        may(&[&["patch", kind, name][..], &flags].concat(), "")
    };

    // It may change its own objects; without this check the refusals below would prove nothing.
    patch("node", "first", label).unwrap();
    patch("machineconfignode", "first", label).unwrap();
    evict("own").unwrap();

    let refused = [
        ("a label of the Node", patch("node", "second", label)),
        ("a cordon", patch("node", "second", cordon)),
        ("a condition", status("node", "second", condition)),
        ("its report", patch("machineconfignode", "second", label)),
        (
            "its report's status",
            status("machineconfignode", "second", condition),
        ),
        ("an eviction", evict("foreign")),
        ("a deletion", may(&["delete", "pod", "foreign"], "")),
        ("any secret", may(&["get", "secrets", "-A"], "")),
        (
            "a config",
            patch("machineconfig", "rendered-worker-b", label),
        ),
        (
            "a new node",
            may(
                &["create", "-f", "-"],
                r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"new"}}"#,
            ),
        ),
        (
            "a pod",
            may(&["-n", NAMESPACE, "delete", "daemonset", "machinist"], ""),
        ),
    ];
    for (what, answer) in refused {
        let error = answer.expect_err(what);
        assert!(
            error.to_lowercase().contains("forbidden"),
            "{what}: {error}"
        );
    }
    cluster.wait_pod("foreign", "Running", wait::seconds(5));
    slices::are_of_its_own_node(cluster, &token);
}
