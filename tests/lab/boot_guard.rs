//! Configs with which a machine does not boot properly: it rolls back to the old one without help.

use serde_json::{Value, json};

use crate::single_machine::{SOURCE, TREES};
use crate::support::agent::{example, file, manifest};
use crate::support::digest::{Tree, differences};
use crate::support::{Machine, wait};

/// Seconds to verify a boot that is expected to fail: a lab machine boots in one or two.
const SHORT_TIMEOUT: u32 = 5;
/// Two boots of five seconds each, three reboots, and a busy host.
const BACK: std::time::Duration = wait::seconds(100);
const JOURNAL: &str = "/var/lib/machinist/journal";

/// A machine that is verified on an example, with containerd running.
struct Guarded {
    machine: Machine,
    before: Tree,
    update: Value,
}

fn guarded(name: &str, timeout: u32) -> Guarded {
    let settings = format!("update: {{verifyTimeout: {timeout}s}}\nactions: {{settle: 200ms}}\n");
    let mut machine = Machine::build(name)
        .machinist()
        .file("/etc/machinist/machinist.yaml", settings)
        .config(example("10"))
        .enable("containerd.service")
        .boot();
    machine.start_agent();
    machine.wait_updated("", wait::seconds(30));
    // Reboots first, so that files which a first and a second boot create in /etc exist before the
    // test records anything.
    machine.reboot();
    let status = machine.wait_updated("", wait::seconds(30));
    assert_eq!(machine.property("containerd", "ActiveState"), "active");
    let before = read_tree(&machine);
    let update = status["updates"][0].clone();
    Guarded {
        machine,
        before,
        update,
    }
}

fn read_tree(machine: &Machine) -> Tree {
    machine.tree(TREES, &[SOURCE, &["/var/lib/machinist"]].concat())
}

/// A config with one unit, and a file that requires a reboot.
fn config(unit: Value, files: Vec<Value>) -> String {
    let reboots = file("/etc/example.conf", 0o640, "reboots\n");
    let files: Vec<_> = files.into_iter().chain([reboots]).collect();
    let units = match unit {
        Value::Null => Value::Null,
        unit => json!({"units": [unit]}),
    };
    manifest("90-bad", json!({"files": files}), units)
}

fn masks_containerd() -> String {
    config(json!({"name": "containerd.service", "mask": true}), vec![])
}

/// Every boot in the machine's journal, the first one first.
fn boots(machine: &Machine) -> Vec<String> {
    let lines = machine.exec(&["journalctl", "--list-boots", "--no-pager", "--output=json"]);
    let boots: Value = serde_json::from_str(&lines).unwrap();
    let ids = boots.as_array().unwrap().iter();
    ids.map(|boot| boot["boot_id"].as_str().unwrap().to_owned())
        .collect()
}

impl Guarded {
    /// Saves the config and waits until the update has finished, whatever its result.
    fn apply_and_wait(&self, text: &str) -> Value {
        self.machine.give_config("90-bad.yaml", text);
        self.wait_rolled_back()
    }

    fn wait_rolled_back(&self) -> Value {
        let what = "the machine to be up again";
        self.machine.wait_status(what, BACK, |status| {
            status["phase"] == "Failed" && status["updates"][0]["id"] != self.update["id"]
        })
    }

    /// Asserts that the machine has rolled back, reports it, and stays on the old config.
    fn assert_rolled_back(&self, status: &Value, missing: &str) {
        let machine = &self.machine;
        println!("{}", machine.agent_log().join("\n"));
        assert_eq!(status["updates"][0]["outcome"], "RolledBack", "{status:#}");
        assert_eq!(status["updates"][0]["reason"], "HealthRegressed");
        assert_eq!(status["failure"]["code"], "HealthRegressed");
        assert_eq!(status["failure"]["retryable"], false);
        let message = status["failure"]["message"].as_str().unwrap();
        assert!(message.contains(missing), "{message}");
        let shown = machine.exec(&["machinist", "history"]);
        assert!(shown.contains("RolledBack"), "{shown}");
        assert_eq!(differences(&self.before, &read_tree(machine)), [""; 0]);
        let state = || machine.property("containerd", "ActiveState");
        machine.wait("containerd to run", wait::seconds(20), || {
            state() == "active"
        });
        // Neither an agent restart nor a reboot tries the config again.
        let boot = machine.boot_id();
        machine.exec(&["systemctl", "restart", "machinist"]);
        let again =
            machine.wait_status("the failure to be reported", wait::seconds(20), |status| {
                status["config"]["desired"] != "" && !status["failure"].is_null()
            });
        assert_eq!(again["updates"][0]["id"], status["updates"][0]["id"]);
        assert_eq!(machine.boot_id(), boot);
    }
}

#[test]
fn a_config_that_masks_containerd_is_rolled_back_after_two_boots() {
    let guarded = guarded("masked", SHORT_TIMEOUT);
    let known = boots(&guarded.machine).len();
    let start = std::time::Instant::now();
    let status = guarded.apply_and_wait(&masks_containerd());
    println!(
        "lab: figure: back on the old config after {:.1?}",
        start.elapsed()
    );
    // Two boots with the bad config and one after the rollback.
    assert_eq!(boots(&guarded.machine).len(), known + 3);
    guarded.assert_rolled_back(
        &status,
        "containerd.service is inactive, but was running before",
    );
}

#[test]
fn a_config_that_boots_to_emergency_mode_is_rolled_back_after_two_boots() {
    let guarded = guarded("emergency", SHORT_TIMEOUT);
    let known = boots(&guarded.machine).len();
    let breaks = "[Unit]\nDefaultDependencies=no\nBefore=local-fs.target\n\
                  [Service]\nType=oneshot\nExecStart=/bin/false\n\
                  [Install]\nRequiredBy=local-fs.target\n";
    let unit = json!({"name": "breaks-boot.service", "contents": breaks, "enabled": true});
    let status = guarded.apply_and_wait(&config(unit, vec![]));
    assert_eq!(boots(&guarded.machine).len(), known + 3);
    guarded.assert_rolled_back(&status, "the machine is in rescue or emergency mode");
}

#[test]
fn a_config_that_loses_the_gateway_is_rolled_back_after_two_boots() {
    let guarded = guarded("silent", SHORT_TIMEOUT);
    let elsewhere = "[Match]\nName=host0\n[Network]\nAddress=10.98.0.2/24\nGateway=10.98.0.1\n\
                     LinkLocalAddressing=no\nIPv6AcceptRA=no\n";
    let network = file("/etc/systemd/network/10-host0.network", 0o644, elsewhere);
    let status = guarded.apply_and_wait(&config(Value::Null, vec![network]));
    guarded.assert_rolled_back(
        &status,
        "gateway 10.99.0.1 is unreachable, but was reachable before",
    );
}

/// Users whose service managers run from the boot on: one kills hers at each boot, that of the other never starts.
const USERS: [(&str, &str, &str); 2] = [
    (
        "killer",
        "default.target",
        "[Service]\nType=oneshot\nExecStart=/bin/kill -KILL $MANAGERPID\n",
    ),
    (
        "hanger",
        "basic.target",
        "[Unit]\nDefaultDependencies=no\nBefore=basic.target\n[Service]\nType=oneshot\nExecStart=/bin/sleep infinity\n",
    ),
];

#[test]
fn users_whose_service_managers_fail_or_hang_cause_no_rollback() {
    // This boot has to pass, however slow the host is.
    let guarded = guarded("users", 60);
    let machine = &guarded.machine;
    let manager = |user: &str| {
        format!(
            "user@{}.service",
            machine.sh(&format!("id -u {user}")).trim()
        )
    };
    for (user, target, unit) in USERS {
        // logind wants the caller in one of the machine's control groups.
        machine.sh(&format!(
            "useradd --create-home {user} && systemd-run --quiet --wait loginctl enable-linger {user}"
        ));
        machine.wait("the user's service manager", wait::seconds(30), || {
            machine.property(&manager(user), "ActiveState") == "active"
        });
        let dir = format!("/home/{user}/.config/systemd/user");
        let text = unit.replace('\n', "\\n");
        let make = format!(
            "mkdir -p {dir}/{target}.wants && printf '{text}' >{dir}/at-boot.service && \
             ln -s ../at-boot.service {dir}/{target}.wants/"
        );
        machine.exec(&["runuser", "-u", user, "--", "sh", "-c", &make]);
    }
    let known = boots(machine).len();
    machine.give_config("90-good.yaml", &config(Value::Null, vec![]));
    let status = machine.wait_status("the update to end", BACK, |status| {
        status["phase"] == "Idle" && status["updates"][0]["id"] != guarded.update["id"]
    });
    println!("{}", machine.agent_log().join("\n"));
    assert_eq!(status["updates"][0]["outcome"], "Done", "{status:#}");
    assert_eq!(machine.read("/etc/example.conf"), b"reboots\n");
    assert_eq!(boots(machine).len(), known + 1);
    let states = USERS.map(|(user, ..)| machine.property(&manager(user), "ActiveState"));
    assert_eq!(states, ["failed", "activating"]);
    machine.wait("the agent to be ready", wait::seconds(30), || {
        machine
            .probe("/readyz")
            .is_some_and(|(code, _)| code == 200)
    });
}

#[test]
fn rollback_survives_loss_of_guard_agent_socket_and_power() {
    // Long enough for what the test does to the first boot before the timeout.
    let guarded = guarded("broken", 20);
    let machine = &guarded.machine;
    let old = machine.boot_id();
    machine.give_config("90-bad.yaml", &masks_containerd());
    let first = machine.wait_new_boot(&old, wait::seconds(60));
    let status = machine.wait_status("the boot to be judged", wait::seconds(20), |status| {
        status["phase"] == "Verifying" && !status["failure"].is_null()
    });
    assert_eq!(status["failure"]["code"], "HealthRegressed", "{status:#}");
    let pid = |unit: &str| machine.property(unit, "MainPID");
    assert_ne!(pid("machinist-guard"), "0");
    // The guard is killed and another process takes the lock before the guard is restarted. The
    // agent is killed as well, and its sockets are removed.
    machine.exec(&["kill", "-KILL", &pid("machinist-guard")]);
    machine.wait("the guard to be restored", wait::seconds(10), || {
        pid("machinist-guard") != "0"
    });
    let control = "/var/lib/machinist/control/agent.sock";
    machine.exec(&["rm", "/run/machinist/agent.sock", control]);
    machine.exec(&["kill", "-KILL", &pid("machinist")]);
    let second = machine.wait_new_boot(&first, wait::seconds(60));
    // Cuts the power as soon as the journal records the rollback.
    let undoes = || {
        let journal = machine.try_read(JOURNAL).unwrap_or_default();
        String::from_utf8_lossy(&journal).contains("\"direction\":\"Undo\"")
    };
    machine.wait("the undo to begin", wait::seconds(60), undoes);
    machine.kill();
    machine.power_on_without_waiting();
    let third = machine.wait_new_boot(&second, wait::seconds(60));
    let status = guarded.wait_rolled_back();
    guarded.assert_rolled_back(
        &status,
        "containerd.service is inactive, but was running before",
    );
    assert_ne!(third, first);
}
