//! MachineConfigs of several roles in one directory, and the order of the files of one command.

use std::{fs, path::PathBuf};

use super::harness::{Agent, Place, code, err, manifest, out, until};

/// A MachineConfig with the label of a role.
fn of_role(name: &str, role: &str, path: &str, content: &str) -> String {
    let label = format!(
        "metadata:\n  labels: {{machineconfiguration.openshift.io/role: {role}}}\n  name: {name}"
    );
    let text = manifest(name, path, content);
    text.replace(&format!("metadata:\n  name: {name}"), &label)
}

fn add(place: &Place, name: &str, role: &str) {
    let text = of_role(name, role, &format!("/etc/{role}"), role);
    fs::write(place.source().join(format!("{name}.yaml")), text).unwrap();
}

/// Waits until the gate `Config` names the roles; the machine stays ready.
fn is_refused(agent: &Agent) {
    let gate = || {
        let status = agent.status();
        let gates = status["gates"].as_array().cloned().unwrap_or_default();
        let mut gates = gates.into_iter();
        gates.find(|gate| gate["name"] == "Config" && gate["reason"] == "RolesMixed")
    };
    until("the gate to name the roles", || gate().is_some());
    let message = gate().unwrap()["message"].to_string();
    for name in ["50-master.yaml", "50-worker.yaml", "source.role"] {
        assert!(message.contains(name), "{message}");
    }
    let status = agent.status();
    assert_eq!(status["ready"], true, "{status:#}");
    assert_eq!(status["phase"], "Idle");
}

#[test]
fn an_agent_whose_applied_directory_holds_several_roles_keeps_its_config() {
    let place = Place::new();
    add(&place, "50-worker", "worker");
    add(&place, "50-master", "master");
    // As an agent of a version that did not distinguish roles has left it.
    let agent = place.start_with(&["--role", "worker,master"]);
    agent.wait_for_log("is in place and verified");
    agent.rests();
    drop(agent);

    let agent = place.start();
    is_refused(&agent);
    // A change of the directory is refused as well.
    let more = of_role("60-worker", "worker", "/etc/more", "x");
    fs::write(place.source().join("60-worker.yaml"), more).unwrap();
    until("the new file to be named", || {
        agent.status()["failure"]["message"]
            .as_str()
            .is_some_and(|message| message.contains("60-worker.yaml"))
    });
    is_refused(&agent);
    for role in ["worker", "master"] {
        let path = format!("/etc/{role}");
        assert_eq!(place.read(&path).as_deref(), Some(role));
    }
    assert_eq!(place.read("/etc/more"), None);
    let history = out(&place.machinist(&["history"]));
    assert_eq!(history.matches("  to  ").count(), 1, "{history}");
}

#[test]
fn files_of_a_second_role_in_a_running_agents_directory_change_nothing() {
    let place = Place::new();
    add(&place, "50-worker", "worker");
    let agent = place.settled();
    add(&place, "50-master", "master");
    is_refused(&agent);
    assert_eq!(place.read("/etc/worker").as_deref(), Some("worker"));
    assert_eq!(place.read("/etc/master"), None);
}

/// The content of `/etc/x` after these files are merged, in this order.
fn merged(place: &Place, files: &[&str]) -> String {
    let files: Vec<PathBuf> = files.iter().map(|name| place.source().join(name)).collect();
    let mut contents = Vec::new();
    for verb in ["render", "plan"] {
        let files = files.iter().map(|file| file.to_str().unwrap());
        let flags = [verb, "--role", "worker,infra", "-o", "json"];
        let arguments: Vec<_> = flags.into_iter().chain(files).collect();
        let output = place.machinist(&arguments);
        assert!([0, 2].contains(&code(&output)), "{}", err(&output));
        contents.push(out(&output));
    }
    let config: serde_json::Value = serde_json::from_str(&contents[0]).unwrap();
    let file = &config["spec"]["config"]["storage"]["files"][0];
    assert_eq!(file["path"], "/etc/x", "{config:#}");
    let content = file["contents"]["source"].as_str().unwrap();
    let content = content.strip_prefix("data:,").unwrap().to_owned();
    let plan: serde_json::Value = serde_json::from_str(&contents[1]).unwrap();
    assert_eq!(
        plan["to"]["name"], config["metadata"]["name"],
        "plan and render merge alike"
    );
    content
}

#[test]
fn files_of_a_command_are_merged_in_the_order_that_help_and_documentation_state() {
    let place = Place::new();
    fs::create_dir(place.root()).unwrap();
    for name in ["a", "b"] {
        let text = format!(
            r#"{{"ignition":{{"version":"3.2.0"}},"storage":{{"files":[{{"path":"/etc/x","contents":{{"source":"data:,{name}"}}}}]}}}}"#
        );
        fs::write(place.source().join(format!("{name}.ign")), text).unwrap();
    }
    for (name, role) in [
        ("10-infra", "infra"),
        ("20-worker", "worker"),
        ("30-worker", "worker"),
    ] {
        let content = name.replace('-', "");
        let text = of_role(name, role, "/etc/x", &content);
        fs::write(place.source().join(format!("{name}.yaml")), text).unwrap();
    }
    for (files, winner) in [
        // Files without a name: the last one given.
        (&["a.ign", "b.ign"][..], "b"),
        (&["b.ign", "a.ign"], "a"),
        // MachineConfigs: the role worker by name, and then all others.
        (&["20-worker.yaml", "30-worker.yaml"], "30worker"),
        (&["30-worker.yaml", "20-worker.yaml"], "30worker"),
        (&["10-infra.yaml", "30-worker.yaml"], "10infra"),
        (
            &["30-worker.yaml", "10-infra.yaml", "20-worker.yaml"],
            "10infra",
        ),
        // Both: a file without a name keeps its position.
        (&["10-infra.yaml", "30-worker.yaml", "a.ign"], "a"),
        (&["a.ign", "10-infra.yaml", "30-worker.yaml"], "10infra"),
        (&["10-infra.yaml", "a.ign", "30-worker.yaml"], "10infra"),
    ] {
        assert_eq!(merged(&place, files), winner, "{files:?}");
    }
    for verb in ["plan", "apply", "render"] {
        let help = out(&place.machinist(&[verb, "--help"]));
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for sentence in [
            "Files without a name of their own are merged in this order, MachineConfigs as in \
             OpenShift: role worker first, then by name",
            "MachineConfigs of other roles are skipped",
        ] {
            assert!(help.contains(sentence), "{verb}: {help}");
        }
    }
    let page = include_str!("../../docs/config.md").replace('\n', " ");
    for sentence in [
        "documents without a name (Ignition, Butane without `metadata`) count in the given order",
        "MachineConfigs are ordered as OpenShift merges them (role `worker` by name, then all \
         others by name) and fill the positions that MachineConfigs have in the given order",
    ] {
        assert!(page.contains(sentence), "{sentence}");
    }
}
