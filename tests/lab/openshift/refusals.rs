//! Configs that are refused or accepted, and when the Node reports it.

use serde_json::{Value, json};

use super::{
    Content, REPORT_LIMIT, SSHD, SSHD_WITH_HELPER, Story, node_recorder::ProgressSight, output_text,
};
use crate::support::{stalls, wait};

pub const NOTHING: &str = "No changes: the machine matches the config.";

/// Adopts the daemon's node, with both ways in which sshd can be configured to read its keys.
pub fn adoption(story: &Story<'_>, content: &Content) {
    story.offer("rendered-worker-0", content);
    story.annotate(&[
        "currentConfig=rendered-worker-0",
        "desiredConfig=rendered-worker-0",
        "state=Done",
        "reason=",
        "desiredDrain=uncordon-rendered-worker-0",
        "lastAppliedDrain=uncordon-rendered-worker-0",
    ]);
    println!(
        "lab: openshift: kernel arguments {:?}",
        super::kernel_arguments()
    );
    let looked = output_text(&story.adopt(&[]));
    assert!(looked.contains(NOTHING), "{looked}");
    story.machine.write(SSHD, SSHD_WITH_HELPER);
    let boot = story.machine.boot_id();
    let before = story.machine.tree_digest(&["/etc", "/home"], &[]);
    let taken = story.adopt(&["--yes"]);
    let message = output_text(&taken);
    println!("{message}");
    assert!(
        taken.status.success() && message.contains(NOTHING),
        "{message}"
    );
    assert_eq!(story.machine.tree_digest(&["/etc", "/home"], &[]), before);
    let (from, _) = story.controller.seen().mark();
    story.machine.start_agent();
    story
        .machine
        .wait_status("its config", wait::seconds(60), |status| {
            status["config"]["current"] == "rendered-worker-0" && status["phase"] == "Idle"
        });
    let seen = story.controller.seen();
    assert!(
        !seen
            .nodes_from(from)
            .iter()
            .any(|it| it.is_degraded() || it.cordoned)
    );
    assert_eq!(story.machine.boot_id(), boot);
}

/// Offers each invalid config, checks a part of its reason, and offers a valid config after each.
pub fn bad_and_good(story: &Story<'_>, content: &mut Content) {
    let other = format!("quay.io/openshift/os@sha256:{}", "b".repeat(64));
    let bad = [
        (
            "baseOSExtensionsContainerImage",
            json!(other),
            "OS extensions image",
        ),
        ("osImageURL", json!(other), "OS image"),
        ("config", json!({"ignition": {"version": "9.9.0"}}), "9.9.0"),
    ];
    for (n, (field, value, named)) in bad.into_iter().enumerate() {
        let name = format!("rendered-worker-bad-{n}");
        let mut config = content.rendered(&name);
        config["spec"][field] = value;
        is_degraded_at_once(story, &config, named);
        // The first time this is the previous config, later a new one.
        let good = match n {
            0 => "rendered-worker-1".to_owned(),
            _ => {
                content.sysctl ^= 1;
                format!("rendered-worker-good-{n}")
            }
        };
        is_cleared_at_once(story, &good, content);
    }
}

fn is_degraded_at_once(story: &Story<'_>, config: &Value, named: &str) {
    let name = config["metadata"]["name"].as_str().unwrap();
    story.cluster.apply(&config.to_string());
    let (from, progress) = story.controller.seen().mark();
    story.controller.roll_out(name);
    let granted = story
        .controller
        .wait_node("is given", from, |it| it.desired_config == name);
    let message = story.controller.wait_node("degraded", from, |it| {
        it.desired_config == name && it.is_degraded()
    });
    let after = stalls::time_between(granted.at, message.at);
    println!(
        "lab: figure: {} after {after:.1?}: {}",
        message.state, message.reason
    );
    assert!(after < REPORT_LIMIT, "{after:?}");
    assert!(message.reason.contains(named), "{}", message.reason);
    assert_ne!(message.current_config, name);
    let degraded = |snapshot: &&ProgressSight| snapshot.status("NodeDegraded") == "True";
    let degraded = || {
        let seen = story.controller.seen();
        seen.progress_from(progress).iter().find(degraded).cloned()
    };
    let output = wait::value("NodeDegraded", wait::seconds(60), degraded);
    let after = stalls::time_between(granted.at, output.at);
    println!("lab: figure: NodeDegraded after {after:.1?}");
    assert!(after < REPORT_LIMIT, "{output:?}");
    assert!(
        output.conditions["NodeDegraded"].1.contains(named),
        "{output:?}"
    );
}

/// Asserts that the failure is cleared promptly. The pool counts the node as failing; otherwise the
/// controller would not assign it another config.
fn is_cleared_at_once(story: &Story<'_>, name: &str, content: &Content) {
    story.offer(name, content);
    let (from, _) = story.controller.seen().mark();
    story.controller.roll_out(name);
    let granted = story
        .controller
        .wait_node("is given", from, |it| it.desired_config == name);
    let cleared = story.controller.wait_node("cleared", from, |it| {
        it.desired_config == name && !it.is_degraded()
    });
    let after = stalls::time_between(granted.at, cleared.at);
    println!("lab: figure: cleared after {after:.1?}");
    assert!(after < REPORT_LIMIT, "{after:?}");
    story
        .controller
        .wait_node(name, from, |it| it.is_on(name) && it.reason.is_empty());
    let seen = story.controller.seen();
    let again = seen
        .nodes_from(from)
        .iter()
        .find(|it| it.at > cleared.at && it.is_degraded());
    assert!(again.is_none(), "{again:?}");
}

/// A unit whose requirement does not exist: the plan reports it before anything is changed.
pub fn unit_that_cannot_start(story: &Story<'_>, content: &Content) {
    const TOLD: &str = "lab-live.service cannot start: it requires lab-missing.service";
    let dropin = json!({"name": "10-lab.conf", "contents": "[Service]\nNice=1\n"});
    let unit = json!({"name": "lab-live.service", "enabled": true, "dropins": [dropin]});
    let content = Content {
        example: 80,
        units: vec![unit],
        ..content.clone()
    };
    let name = "rendered-worker-unit";
    let manifest = content.rendered(name).to_string();
    story.machine.write("/root/unit.json", manifest);
    let plan = ["/usr/bin/machinist", "plan", "/root/unit.json"];
    let plan = output_text(&story.machine.try_exec(&plan).unwrap());
    assert!(folded(&plan).contains(TOLD), "{plan}");
}

/// Joins the lines of a page.
fn folded(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}
