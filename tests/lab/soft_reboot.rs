//! Soft reboots: userspace restarts, while kernel and boot id stay the same.

use serde_json::{Value, json};

use crate::support::agent::{digest, example, file, manifest, needs_reboot};
use crate::support::{Machine, wait};

/// A machine that is verified on an example, with containerd running. It verifies a boot for at most
/// `timeout` seconds: long for one that has to pass, however slow the host is.
fn machine(name: &str, timeout: u32) -> (Machine, Value) {
    let settings = format!(
        "update: {{softReboot: auto, verifyTimeout: {timeout}s}}\nactions: {{settle: 200ms}}\n"
    );
    let machine = Machine::build(name)
        .machinist()
        .file("/etc/machinist/machinist.yaml", settings)
        .config(example("10"))
        .enable("containerd.service")
        .boot();
    machine.start_agent();
    let status = machine.wait_updated("", wait::seconds(30));
    (machine, status)
}

/// A property of PID 1, or `None` while it does not answer.
fn manager(machine: &Machine, property: &str) -> Option<String> {
    let property = format!("--property={property}");
    let shown = machine.try_exec(&["systemctl", "show", "--value", &property]);
    let shown = shown.ok().filter(|shown| shown.status.success())?;
    Some(String::from_utf8_lossy(&shown.stdout).trim().to_owned())
}

fn userspace(machine: &Machine) -> Option<String> {
    manager(machine, "UserspaceTimestampMonotonic").filter(|started| !started.is_empty())
}

/// Waits until a userspace other than `old` has finished starting.
fn wait_soft_rebooted(machine: &Machine, old: &str) -> String {
    let new = wait::value("userspace to restart", wait::seconds(90), || {
        userspace(machine).filter(|now| now != old)
    });
    machine.wait_ready(wait::seconds(60));
    new
}

fn history(machine: &Machine) {
    println!("{}", machine.exec(&["machinist", "history"]));
    println!("{}", machine.agent_log().join("\n"));
}

#[test]
fn a_userspace_change_takes_effect_by_one_soft_reboot_and_is_verified() {
    let (machine, first) = machine("soft", 60);
    let version = manager(&machine, "Version").unwrap();
    let (boot, started) = (machine.boot_id(), userspace(&machine).unwrap());
    let count = manager(&machine, "SoftRebootsCount").unwrap();
    println!("lab: systemd {version}, SoftRebootsCount {count:?}, userspace {started}");
    machine.write("/run/stays", "");
    let recover = machine.property("machinist-recover", "InvocationID");
    let plan = machine.try_exec(&["machinist", "plan"]).unwrap();
    assert_eq!(plan.status.code(), Some(0), "nothing to do yet");
    let begun = std::time::Instant::now();
    machine.give_config("80-reboot.yaml", &needs_reboot("hello\n"));
    let new = wait_soft_rebooted(&machine, &started);
    let status = machine.wait_updated(&digest(&first), wait::seconds(60));
    println!(
        "lab: figure: from the config to verified, by a soft reboot, {:.1?}",
        begun.elapsed()
    );
    history(&machine);

    assert_eq!(machine.boot_id(), boot, "the kernel's boot id");
    assert!(machine.try_read("/run/stays").is_some());
    assert_eq!(machine.read("/etc/example.conf"), b"hello\n");
    let update = &status["updates"][0];
    assert_eq!(update["outcome"], "Done", "{update:#}");
    assert_eq!(update["actions"][0]["type"], "SoftReboot", "{update:#}");
    let phases = update["phases"].as_array().unwrap().iter();
    let phases: Vec<_> = phases
        .map(|phase| phase["name"].as_str().unwrap())
        .collect();
    for phase in ["RebootPending", "Booted", "Verifying"] {
        assert!(phases.contains(&phase), "{phase} is not in {phases:?}");
    }
    assert_eq!(machine.property("containerd", "ActiveState"), "active");
    // Recovery has run in the new userspace, and the guard has run.
    let again = machine.property("machinist-recover", "InvocationID");
    assert!(again != recover && !again.is_empty(), "{again}");
    assert_eq!(machine.property("machinist-recover", "Result"), "success");
    let note = String::from_utf8(machine.read("/run/machinist.userspace")).unwrap();
    assert_eq!(note, format!("{boot} {new} 1\n"));
    if !count.is_empty() {
        assert_eq!(manager(&machine, "SoftRebootsCount").unwrap(), "1");
    }
    // An agent restart does not cause a second soft reboot.
    machine.exec(&["systemctl", "restart", "machinist"]);
    machine.wait_updated("", wait::seconds(30));
    assert_eq!(userspace(&machine).unwrap(), new);

    // A file that the kernel reads requires a full reboot.
    let storage = json!({"files": [file("/etc/modprobe.d/x.conf", 0o644, "# nothing\n")]});
    machine.give_config(
        "81-kernel.yaml",
        &manifest("81-kernel", storage, Value::Null),
    );
    machine.wait_new_boot(&boot, wait::seconds(60));
    let status = machine.wait_updated(&digest(&status), wait::seconds(60));
    assert_eq!(status["updates"][0]["actions"][0]["type"], "Reboot");
}

#[test]
fn an_unhealthy_soft_reboot_is_followed_by_a_reboot_and_rollback() {
    let (machine, first) = machine("soft-bad", 10);
    let (boot, started) = (machine.boot_id(), userspace(&machine).unwrap());
    let reboots = file("/etc/example.conf", 0o640, "reboots\n");
    let units = json!({"units": [{"name": "containerd.service", "mask": true}]});
    let bad = manifest("90-bad", json!({"files": [reboots]}), units);
    machine.give_config("90-bad.yaml", &bad);
    wait_soft_rebooted(&machine, &started);
    let status = machine.wait_status("the machine to be back", wait::seconds(120), |status| {
        status["phase"] == "Failed" && status["updates"][0]["outcome"] == "RolledBack"
    });
    history(&machine);
    assert_eq!(
        status["updates"][0]["reason"], "HealthRegressed",
        "{status:#}"
    );
    assert_eq!(status["config"]["digest"], first["config"]["digest"]);
    assert!(machine.try_read("/etc/example.conf").is_none());
    machine.wait("containerd to run", wait::seconds(20), || {
        machine.property("containerd", "ActiveState") == "active"
    });
    assert_ne!(machine.boot_id(), boot);
    let story = machine.agent_log();
    let orders = |what: &str| story.iter().filter(|line| line.contains(what)).count();
    assert_eq!(orders("requesting soft reboot"), 1);
    assert_eq!(orders("requesting reboot"), 2);
}

#[test]
fn a_foreign_soft_reboot_during_an_update_is_detected_and_survived() {
    let (machine, first) = machine("soft-foreign", 60);
    let (boot, started) = (machine.boot_id(), userspace(&machine).unwrap());
    // Its stop lasts until userspace ends; it is healthy afterwards.
    let slow = "[Service]\nType=oneshot\nRemainAfterExit=yes\n\
                ExecStart=/bin/sh -c 'test -e /run/soft || exec sleep 120'\n\
                [Install]\nWantedBy=multi-user.target\n";
    let units = json!({"units": [{"name": "slow.service", "contents": slow, "enabled": true}]});
    machine.give_config("90-slow.yaml", &manifest("90-slow", Value::Null, units));
    machine.wait("the restart to be under way", wait::seconds(30), || {
        machine.property("slow", "ActiveState") == "activating"
    });
    machine.write("/run/soft", "");
    // The shutdown may kill the command before it returns.
    machine.try_exec(&["systemctl", "soft-reboot"]).unwrap();
    wait_soft_rebooted(&machine, &started);
    let status = machine.wait_updated(&digest(&first), wait::seconds(60));
    history(&machine);
    assert_eq!(machine.boot_id(), boot);
    assert_eq!(status["updates"][0]["outcome"], "Done", "{status:#}");
    let phases = status["updates"][0]["phases"].to_string();
    assert!(phases.contains("Booted"), "it was a boot: {phases}");
    assert_eq!(machine.property("slow", "ActiveState"), "active");
    let story = machine.agent_log();
    let ordered = story.iter().filter(|line| line.contains("requesting "));
    assert_eq!(ordered.count(), 0, "{story:#?}");
}
