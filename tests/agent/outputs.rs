//! The agent's outputs while it runs: the plan it prints, the log, the probes, the status in a
//! second terminal.

use std::{fs, net::TcpListener, os::unix::fs::PermissionsExt as _};

use serde_json::{Value, json};

use crate::agent::{
    harness::{Place, code, err, out, until},
    json_shape,
};
use machinist_testkit::pod_resources::FakePodResources;

#[test]
fn first_run_creates_the_root_shows_the_plan_and_applies_the_examples() {
    let place = Place::with_examples();
    assert!(!place.root().exists());
    let agent = place.settled();

    let plan = agent.printed();
    for output in [
        // The change …
        "+ file /etc/chrony.conf (89 bytes)",
        "+ unit example-greeting.service",
        "+ mask of apt-daily-upgrade.timer",
        // … its reason …
        "new; enabled (builtin:units)",
        // … and its cost.
        "cost on a running machine: Restart",
        "8 changes to files; no actions, because no system runs in this root.",
    ] {
        assert!(plan.contains(output), "{output:?} in\n{plan}");
    }

    assert_eq!(
        place.read("/etc/sysctl.d/90-inotify.conf").as_deref(),
        Some("fs.inotify.max_user_instances = 1024\nfs.inotify.max_user_watches = 65536\n")
    );
    let journald = "[Journal]\nStorage=persistent\nSystemMaxUse=200M\n";
    assert_eq!(
        place
            .read("/etc/systemd/journald.conf.d/10-size.conf")
            .as_deref(),
        Some(journald)
    );
    let chrony = fs::metadata(place.at("/etc/chrony.conf")).unwrap();
    assert_eq!(chrony.permissions().mode(), 0o100_644);
    let link = |path: &str| fs::read_link(place.at(path)).unwrap();
    let units = "/etc/systemd/system";
    assert_eq!(
        link(&format!("{units}/apt-daily-upgrade.timer")).to_str(),
        Some("/dev/null")
    );
    assert!(
        link(&format!(
            "{units}/multi-user.target.wants/example-greeting.service"
        ))
        .ends_with("example-greeting.service")
    );
    // Neither staged files nor temporary names are left.
    assert_eq!(
        fs::read_dir(place.at("/var/lib/machinist/tx"))
            .unwrap()
            .count(),
        0
    );
    let objects: Vec<_> = place.tree().into_keys().collect();
    let ours = objects.iter().filter(|path| path.starts_with("etc"));
    assert_eq!(ours.count(), 17, "{objects:#?}");

    agent.wait_for_log("kubelet not found");
    assert_eq!(agent.lines("kubelet").len(), 1);
    assert_eq!(agent.lines("UserMissing").len(), 1);
}

#[test]
fn probes_metrics_and_devices_endpoints_respond() {
    let place = Place::with_examples();
    let agent = place.settled();
    until("the devices", || agent.status()["devices"] != json!([]));
    assert_eq!(agent.get("/livez"), (200, "ok\n".to_owned()));
    // The disk below this root is the test host's, and may be nearly full: that only causes a
    // warning.
    let (ready_code, ready) = agent.get("/readyz");
    assert!(ready_code == 200 && ready.starts_with("ready"), "{ready}");
    assert_eq!(agent.get("/readyz/agent"), (200, "ok\n".to_owned()));
    let (metrics_code, metrics) = agent.get("/metrics");
    assert_eq!(metrics_code, 200);
    for line in [
        "machinist_updates_total{outcome=\"AppliedOffline\"} 1",
        "machinist_ready 1",
        "machinist_phase{phase=\"Idle\"} 1",
        "machinist_resource_registered{resource=\"machinist.dev/fuse\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    assert_eq!(metrics.lines().last(), Some("# EOF"));
    assert_eq!(agent.get("/nonsense").0, 404);
    // The status may contain data that is not for everyone on the network.
    assert_eq!(agent.get("/status").0, 404);

    let listed = out(&place.machinist(&["devices", "list"]));
    assert!(listed.contains("machinist.dev/fuse  fuse::0"), "{listed}");
    assert!(listed.contains("machinist.dev/fuse  fuse::1"), "{listed}");
}

#[test]
fn devices_list_shows_a_rejected_declaration_and_keeps_the_json_shape() {
    let place = Place::with_examples();
    let bad = place.at("/etc/machinist/devices.d/bad.yaml");
    let agent = place.settled();
    std::fs::write(bad, "kind: Something\n").unwrap();
    until("the devices and the mistake", || {
        let status = agent.status();
        status["devices"] != json!([]) && status["deviceProblems"] != json!([])
    });
    let listed = out(&place.machinist(&["devices", "list"]));
    assert!(listed.contains("machinist.dev/fuse  fuse::0"), "{listed}");
    let last = listed.lines().last().unwrap();
    assert!(last.contains("devices.d/bad.yaml:"), "{listed}");
    let listed = out(&place.machinist(&["devices", "list", "-o", "json"]));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["resource"], "machinist.dev/fuse", "{listed}");
}

#[test]
fn device_holders_are_shown_by_status_and_devices_list() {
    let place = Place::with_examples();
    let agent = place.settled();
    until("the devices", || agent.status()["devices"] != json!([]));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let kubelet = FakePodResources::default();
    kubelet.give("mounts", "machinist.dev/fuse", &["fuse::1"]);
    let _serving = runtime.block_on(async { kubelet.serve(&place.at("/")) });
    until("the holder", || {
        let listed = out(&place.machinist(&["devices", "list"]));
        listed.contains("lab/mounts/main")
    });
    let devices = agent.status()["devices"][0]["devices"].clone();
    assert_eq!(devices[0]["holder"], json!(null), "{devices}");
    assert_eq!(devices[1]["holder"], "lab/mounts/main", "{devices}");
    let (_, metrics) = agent.get("/metrics");
    let held = "machinist_devices_held{resource=\"machinist.dev/fuse\"} 1";
    assert!(metrics.contains(held), "{metrics}");
    // Without a request for the status the agent does not query the kubelet.
    let asked = kubelet.asked();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(kubelet.asked(), asked);
}

#[test]
fn status_is_available_as_text_and_json() {
    let place = Place::with_examples();
    let agent = place.settled();
    fs::write(place.at("/etc/chrony.conf"), "").unwrap();
    fs::write(place.source().join("99-broken.yaml"), "- - :").unwrap();
    until("drift and failure", || {
        let status = agent.status();
        let config = status["config"]["drift"] != json!([]) && !status["failure"].is_null();
        config && status["devices"] != json!([])
    });

    let asked = place.machinist(&["status", "-o", "json"]);
    assert_eq!((code(&asked), err(&asked).as_str()), (0, ""));
    let document: Value = serde_json::from_slice(&asked.stdout).unwrap();
    // An offline agent waits for no pod and uses no device; those fields have tests of their own.
    let unseen = [
        "blockers[]",
        "deviceProblems[]",
        "orphanedResources[]",
        "vendors[]",
        "held.",
        "updates[].actions[]",
    ];
    json_shape::check("status", &document, &unseen);
    assert_eq!(document["admin"], agent.address());
    assert_eq!(document["mode"], "offline");
    assert_eq!(document["root"], place.root().to_str().unwrap());
    assert_eq!(document["source"], place.source_flag());
    assert_eq!(document["config"]["current"], document["updates"][0]["to"]);
    let devices = &document["devices"][0];
    assert_eq!(devices["resource"], "machinist.dev/fuse");
    assert_eq!(devices["devices"].as_array().unwrap().len(), 2);

    let asked = place.machinist(&["status"]);
    assert_eq!((code(&asked), err(&asked).as_str()), (0, ""));
    let page = out(&asked);
    for output in [
        "phase    Idle",
        "gates\n",
        "machinist.dev/fuse  0 of 2 healthy",
        "updates\n",
        "AppliedOffline",
        "/etc/chrony.conf",
        "ValueInvalid: the config is refused:",
        &agent.address(),
    ] {
        assert!(page.contains(output), "{output:?} in\n{page}");
    }
}

#[test]
fn a_taken_default_port_falls_back_to_the_next() {
    const DEFAULT: &str = "127.0.0.1:10480";
    let (mut agent, ours, _place) = loop {
        let ours = TcpListener::bind(DEFAULT);
        // A machine that is on its config already would not report another update.
        let place = Place::with_file("/etc/one", "zero");
        let mut agent = place.settled();
        if ours.is_ok() || agent.address() != DEFAULT {
            break (agent, ours, place);
        }
        // Another process had the port, such as an agent of another test, and has ended since.
        agent.signal(nix::sys::signal::SIGTERM);
        agent.ended();
    };
    let address = agent.address();
    assert_ne!(address, DEFAULT);
    assert!(address.starts_with("127.0.0.1:10"), "{address}");
    assert_eq!(agent.status()["admin"], address.as_str());
    assert_eq!(agent.get("/livez").0, 200);
    drop(ours);
    agent.signal(nix::sys::signal::SIGTERM);
    assert_eq!(agent.ended().code(), Some(0));
}

#[test]
fn devices_explain_fails_for_a_resource_that_is_not_offered() {
    let place = Place::with_examples();
    let agent = place.settled();
    until("the devices", || agent.status()["devices"] != json!([]));
    let asked = place.machinist(&["devices", "explain", "machinist.dev/fuse"]);
    assert_eq!((code(&asked), err(&asked).as_str()), (0, ""));
    let message = out(&asked);
    for output in [
        "machinist.dev/fuse is provided by /etc/machinist/devices.d/",
        "not registered with the kubelet: ",
        "fuse::0 is ",
        "device holders unknown: ",
    ] {
        assert!(message.contains(output), "{output} in {message}");
    }
    let asked = place.machinist(&["devices", "explain", "machinist.dev/fuse", "-o", "json"]);
    let message: Value = serde_json::from_slice(&asked.stdout).unwrap();
    assert_eq!(message["devices"][0]["holder"], Value::Null);
    assert!(message["devices"][0]["since"].is_string(), "{message}");
    let asked = place.machinist(&["devices", "explain", "acme.dev/none"]);
    assert_eq!(code(&asked), 1);
    assert!(err(&asked).contains("acme.dev/none is not provided on this machine"));
}

#[test]
fn rendered_config_escapes_terminal_control_characters() {
    let place = Place::new();
    fs::create_dir(place.root()).unwrap();
    // A right-to-left override, the C1 form of an escape sequence, and DEL.
    let text = "a\u{202e}b\u{9b}2Jc\u{7f}d";
    let link = |target: &str| json!({"path": "/etc/link", "target": target});
    let unit = json!({"name": "a.service", "contents": format!("# {text}\n[Service]\nExecStart=/bin/true\n")});
    let config = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig", "metadata": {"name": "a"},
        "spec": {"config": {"ignition": {"version": "3.4.0"}, "storage": {"links": [link(text)]},
            "systemd": {"units": [unit]}}},
    });
    let file = place.path().join("a.json");
    // The source may not have them either.
    let escaped =
        |text: String, bad: char| text.replace(bad, &format!("\\u{:04x}", u32::from(bad)));
    let source = ['\u{202e}', '\u{9b}', '\u{7f}']
        .into_iter()
        .fold(config.to_string(), escaped);
    fs::write(&file, source).unwrap();
    let misleading = |c: &char| (c.is_control() && *c != '\n') || *c == '\u{202e}';
    let render = |file: &std::path::Path, format: &str| {
        let rendered = place.machinist(&["render", file.to_str().unwrap(), "-o", format]);
        assert_eq!(code(&rendered), 0, "{}", err(&rendered));
        let page = out(&rendered);
        let bad: Vec<char> = page.chars().filter(misleading).collect();
        assert!(bad.is_empty(), "{format}: {bad:?}");
        page
    };
    let read: Value = serde_json::from_str(&render(&file, "json")).unwrap();
    let there = &read["spec"]["config"];
    assert_eq!(there["storage"]["links"][0]["target"], text);
    assert_eq!(there["systemd"]["units"][0]["contents"], unit["contents"]);
    // The rendered text is the same config, in both formats.
    let yaml = place.path().join("rendered.yaml");
    fs::write(&yaml, render(&file, "yaml")).unwrap();
    assert_eq!(render(&yaml, "yaml"), fs::read_to_string(&yaml).unwrap());
    let again: Value = serde_json::from_str(&render(&yaml, "json")).unwrap();
    assert_eq!(again, read);
}
