//! One complete update: a standalone machine, from its first plan to a verified reboot.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::agent::{digest, example, file, manifest, needs_reboot};
use crate::support::digest::differences;
use crate::support::{Machine, wait};

/// The trees that updates of these tests may change. Not all of `/usr`, so that they can be read in
/// a moment.
pub const TREES: &[&str] = &[
    "/etc",
    "/home",
    "/root",
    "/usr/local",
    UNITS,
    "/var/lib/machinist",
];
/// The directory of the configs themselves.
pub const SOURCE: &[&str] = &["/etc/machinist/machine.d"];
const UNITS: &str = "/usr/lib/systemd/system";
const WITNESS: &str = "[Service]\nExecStart=/bin/sleep infinity\n";

/// A machine with services that run before the agent is installed, a user, and all example configs.
fn example_machine(name: &str) -> Machine {
    let mut build = Machine::build(name).machinist();
    for unit in ["changed", "masked", "bystander"] {
        build = build
            .file(&format!("{UNITS}/{unit}.service"), WITNESS)
            .enable(&format!("{unit}.service"));
    }
    for number in ["10", "20", "30", "40", "50", "60", "70"] {
        build = build.config(example(number));
    }
    let systemd = json!({"units": [
        {"name": "changed.service", "dropins": [
            {"name": "10-env.conf", "contents": "[Service]\nEnvironment=GIVEN=yes\n"}]},
        {"name": "masked.service", "mask": true},
    ]});
    let mut owned = file(
        "/etc/containerd/certs.d/example/hosts.toml",
        0o640,
        "# none\n",
    );
    owned["user"] = json!({"name": "core"});
    owned["group"] = json!({"name": "systemd-journal"});
    let own = manifest("75-own", json!({"files": [owned]}), systemd);
    let machine = build.config(("75-own.yaml".to_owned(), own)).boot();
    // The lab masks this timer in every machine; here the example has to do so.
    machine.sh("rm /etc/systemd/system/apt-daily-upgrade.timer; systemctl daemon-reload");
    machine.sh("systemctl start apt-daily-upgrade.timer; useradd --create-home core");
    machine
}

/// Kind, name, and the text of the reason.
const CHANGES: &[(&str, &str, &str)] = &[
    ("File", "/etc/chrony.conf", "chronyd.service is restarted"),
    (
        "File",
        "/etc/containerd/certs.d/example/hosts.toml",
        "its policy requires no action",
    ),
    (
        "File",
        "/etc/machinist/devices.d/fuse.yaml",
        "its policy requires no action",
    ),
    (
        "File",
        "/etc/sysctl.d/90-inotify.conf",
        "systemd-sysctl.service is restarted",
    ),
    (
        "File",
        "/etc/systemd/journald.conf.d/10-size.conf",
        "systemd-journald.service is restarted",
    ),
    (
        "Unit",
        "example-greeting.service",
        "enabled, so it is started",
    ),
    (
        "DropIn",
        "changed.service/10-env.conf",
        "it is running, so it is restarted",
    ),
    (
        "DropIn",
        "example-greeting.service/10-after-network.conf",
        "systemd reloads the unit file",
    ),
    (
        "Enablement",
        "example-greeting.service",
        "enabled, so it is started",
    ),
    (
        "Mask",
        "apt-daily-upgrade.timer",
        "masked, so it is stopped",
    ),
    ("Mask", "masked.service", "masked, so it is stopped"),
    ("SSHKey", "core", "its policy requires no action"),
];

/// The expected actions, in this order.
const ACTIONS: &[(&str, Option<&str>)] = &[
    ("Stop", Some("apt-daily-upgrade.timer")),
    ("Stop", Some("masked.service")),
    ("DaemonReload", None),
    ("Restart", Some("changed.service")),
    ("Restart", Some("chronyd.service")),
    ("Restart", Some("example-greeting.service")),
    ("Restart", Some("systemd-journald.service")),
    ("Restart", Some("systemd-sysctl.service")),
];

#[test]
fn a_plan_names_changes_actions_and_reasons_and_changes_nothing() {
    let machine = example_machine("planned");
    let before = machine.tree(TREES, SOURCE);
    let plan = |arguments: &[&str]| {
        let output = machine
            .try_exec(&[&["machinist", "plan"], arguments].concat())
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        text
    };
    let text = plan(&[]);
    println!("{text}");
    let plan: Value = serde_json::from_str(&plan(&["-o", "json"])).unwrap();
    assert_eq!(differences(&before, &machine.tree(TREES, SOURCE)), [""; 0]);

    let planned = plan["changes"].as_array().unwrap();
    for (kind, name, why) in CHANGES {
        let change = planned
            .iter()
            .find(|change| change["kind"] == *kind && change["name"] == *name);
        let change = change.unwrap_or_else(|| panic!("{kind} {name} is not in {plan:#}"));
        assert!(change["why"].as_str().unwrap().contains(why), "{change:#}");
    }
    assert_eq!(planned.len(), CHANGES.len(), "{plan:#}");
    let actions: Vec<_> = plan["actions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|action| (action["type"].as_str().unwrap(), action["unit"].as_str()))
        .collect();
    assert_eq!(actions, ACTIONS);
    assert_eq!(plan["cost"], "Restart");
    assert_eq!(plan["drain"], false);

    // The text output states the same; its lines are wrapped, and it shows at most three reasons.
    let page = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let says = |fact: &str| assert!(page.contains(fact), "not on the page: {fact}");
    for change in planned {
        for field in ["name", "why", "policy"] {
            says(change[field].as_str().unwrap());
        }
    }
    for action in plan["actions"].as_array().unwrap() {
        let reasons = action["why"].as_array().unwrap();
        reasons
            .iter()
            .take(3)
            .for_each(|why| says(why.as_str().unwrap()));
        let words = [&action["type"], &action["unit"]].map(|word| word.as_str().unwrap_or(""));
        says(words.join(" ").trim());
    }
    assert!(page.contains(&format!(
        "{} changes, {} actions; cost: Restart",
        CHANGES.len(),
        ACTIONS.len()
    )));
}

#[test]
fn the_first_update_applies_all_and_restarts_only_planned_units() {
    let guest = Machine::boot("guest");
    guest.sh("ssh-keygen -q -t ed25519 -N '' -f /root/key");
    let key = String::from_utf8(guest.read("/root/key.pub")).unwrap();
    let machine = example_machine("first");
    let address = format!("core@{}", machine.address());
    let login = || {
        let batch = ["-oBatchMode=yes", "-oStrictHostKeyChecking=no"];
        let to = [
            "ssh",
            "-i",
            "/root/key",
            batch[0],
            batch[1],
            &address,
            "id -un",
        ];
        guest.try_exec(&to).unwrap()
    };
    let (name, keys) = example("60");
    let start = keys.find("ssh-ed25519").unwrap();
    machine.give_config(&name, &format!("{}{key}", &keys[..start]));
    assert!(!login().status.success(), "the key is not there yet");

    let before = machine.invocations();
    machine.start_agent();
    let status = machine.wait_updated("", wait::seconds(60));
    let after = machine.invocations();
    println!("{}", machine.agent_log().join("\n"));
    assert_eq!(status["updates"][0]["outcome"], "Done", "{status:#}");

    in_place(&machine);
    let login = login();
    assert_eq!(
        String::from_utf8_lossy(&login.stdout),
        "core\n",
        "{login:?}"
    );

    // Units that were started or restarted; a unit that was stopped keeps its old id.
    let started: BTreeSet<_> = after
        .iter()
        .filter(|(unit, id)| before.get(*unit) != Some(id))
        .map(|(unit, _)| unit.as_str())
        // The agent itself, and the bus service that it queries about the clock.
        .filter(|unit| !["machinist.service", "systemd-timedated.service"].contains(unit))
        .collect();
    let named = [
        "changed.service",
        "chrony.service",
        "example-greeting.service",
        "systemd-journald.service",
        "systemd-sysctl.service",
    ];
    assert_eq!(started, BTreeSet::from(named));
    for unit in ["masked.service", "apt-daily-upgrade.timer"] {
        assert_eq!(machine.property(unit, "ActiveState"), "inactive", "{unit}");
    }
    assert_eq!(
        machine.property("bystander.service", "ActiveState"),
        "active"
    );

    let plan = machine.exec(&["machinist", "plan"]);
    assert!(plan.contains("No changes: "), "{plan}");
    machine.exec(&["machinist", "verify"]);
}

/// Asserts that paths (with mode, owner and content) and units match the configs.
fn in_place(machine: &Machine) {
    let user = machine.sh("id -u core; id -g core; getent group systemd-journal | cut -d: -f3");
    let ids: Vec<_> = user.lines().collect();
    let core = format!("{}:{}", ids[0], ids[1]);
    let mixed = format!("{}:{}", ids[0], ids[2]);
    let root = "0:0".to_owned();
    for (path, mode, owner, content) in [
        (
            "/etc/chrony.conf",
            "644",
            &root,
            "makestep 1.0 3\nrtcsync\n",
        ),
        (
            "/etc/sysctl.d/90-inotify.conf",
            "644",
            &root,
            "log_martians = 1\n",
        ),
        (
            "/etc/systemd/journald.conf.d/10-size.conf",
            "644",
            &root,
            "[Journal]\nStorage=persistent\nSystemMaxUse=200M\n",
        ),
        (
            "/etc/systemd/system/example-greeting.service",
            "644",
            &root,
            "Type=oneshot\n",
        ),
        (
            "/etc/systemd/system/example-greeting.service.d/10-after-network.conf",
            "644",
            &root,
            "[Unit]\nAfter=network.target\n",
        ),
        (
            "/etc/containerd/certs.d/example/hosts.toml",
            "640",
            &mixed,
            "# none\n",
        ),
        (
            "/etc/machinist/devices.d/fuse.yaml",
            "644",
            &root,
            "replicas: 2\n",
        ),
        ("/home/core/.ssh", "700", &core, ""),
        (
            "/home/core/.ssh/authorized_keys",
            "600",
            &core,
            "ssh-ed25519 ",
        ),
    ] {
        let stat = machine.exec(&["stat", "-c", "%a %u:%g", path]);
        assert_eq!(stat.trim(), format!("{mode} {owner}"), "{path}");
        if !content.is_empty() {
            let text = String::from_utf8(machine.read(path)).unwrap();
            assert!(text.contains(content), "{path}: {text}");
        }
    }
    for (unit, state) in [
        ("example-greeting.service", "enabled"),
        ("apt-daily-upgrade.timer", "masked"),
        ("masked.service", "masked"),
        ("bystander.service", "enabled"),
    ] {
        assert_eq!(machine.property(unit, "UnitFileState"), state, "{unit}");
    }
    // The running processes use the files on disk.
    assert!(
        machine
            .property("example-greeting.service", "After")
            .contains("network.target")
    );
    assert_eq!(
        machine.property("example-greeting.service", "ActiveState"),
        "active"
    );
    assert_eq!(
        machine.property("changed.service", "Environment"),
        "GIVEN=yes"
    );
    assert_eq!(
        machine.sh("cat /proc/sys/net/ipv4/conf/all/log_martians"),
        "1\n"
    );
    let stale = machine.exec(&["systemctl", "show", "*", "--property=NeedDaemonReload"]);
    assert!(!stale.contains("yes"), "units that differ from their files");
}

#[test]
fn a_change_that_needs_a_reboot_reboots_once_through_logind_and_is_verified() {
    let stays_off = json!({"units": [{"name": "masked.service", "mask": true}]});
    let machine = Machine::build("rebooting")
        .machinist()
        .file(&format!("{UNITS}/masked.service"), WITNESS)
        .enable("masked.service")
        .config(example("10"))
        .config((
            "75-own.yaml".to_owned(),
            manifest("75-own", json!({}), stays_off),
        ))
        .boot();
    let state = |property| machine.property("masked.service", property);
    assert_eq!(state("ActiveState"), "active", "before there is a config");
    machine.start_agent();
    let first = machine.wait_updated("", wait::seconds(30));
    assert_eq!(state("ActiveState"), "inactive");
    let (old, message) = (machine.boot_id(), machine.agent_log().len());
    // Without the dependencies by which the shutdown would stop it before the signal.
    machine.sh(
        "systemd-run --quiet --unit=ear --property=DefaultDependencies=no sh -c \
         'exec busctl monitor --json=short org.freedesktop.login1 >/var/log/ear 2>&1'",
    );
    machine.wait("the monitor to listen", wait::seconds(10), || {
        machine.exec(&["systemd-inhibit", "--list", "--no-legend"]);
        let received = machine.try_read("/var/log/ear").unwrap_or_default();
        String::from_utf8_lossy(&received).contains("ListInhibitors")
    });
    machine.give_config("80-reboot.yaml", &needs_reboot("hello\n"));
    let new = machine.wait_new_boot(&old, wait::seconds(60));
    let status = machine.wait_updated(&digest(&first), wait::seconds(60));

    let story = &machine.agent_log()[message..];
    println!("{}", story.join("\n"));
    assert!(story.len() <= 14, "a dozen log lines");
    let received = String::from_utf8(machine.read("/var/log/ear")).unwrap();
    let count = |member: &str, payload: &str| {
        let lines = received.lines().filter(|line| {
            line.contains(&format!("\"member\":\"{member}\"")) && line.contains(payload)
        });
        lines.count()
    };
    assert_eq!(
        count("RebootWithFlags", "") + count("Reboot", ""),
        1,
        "one order"
    );
    assert_eq!(count("PrepareForShutdown", "true"), 1, "one receipt");

    assert_eq!(machine.read("/etc/example.conf"), b"hello\n");
    let off = ["ActiveState", "UnitFileState"].map(state);
    assert_eq!(off, ["inactive", "masked"], "after the reboot as before it");
    let update = &status["updates"][0];
    assert_eq!(update["outcome"], "Done", "{update:#}");
    let phases: Vec<_> = update["phases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|phase| phase["name"].as_str().unwrap())
        .collect();
    for phase in ["Committing", "RebootPending", "Booted", "Verifying"] {
        assert!(phases.contains(&phase), "{phase} is not in {phases:?}");
    }
    let history = machine.exec(&["machinist", "history"]);
    assert!(
        history.lines().next().unwrap().contains("Done"),
        "{history}"
    );

    // The journal entries of the whole update, selected by its id, over both boots.
    let id = format!("MACHINIST_TRANSACTION={}", update["id"].as_str().unwrap());
    machine.sync_journal();
    let lines = machine.exec(&["journalctl", "--quiet", "--output=json", &id]);
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let boots: BTreeSet<_> = lines.iter().map(|line| line["_BOOT_ID"].as_str()).collect();
    assert_eq!(boots.len(), 2, "{lines:#?}");
    let printed: BTreeSet<_> = lines
        .iter()
        .map(|line| line["MACHINIST_PHASE"].as_str())
        .collect();
    for phase in ["RebootPending", "Booted", "Verifying"] {
        assert!(
            printed.contains(&Some(phase)),
            "no line of {phase}: {printed:?}"
        );
    }

    assert_eq!(
        machine.property("machinist-recover.service", "Result"),
        "success"
    );
    let ran = machine.property(
        "machinist-recover.service",
        "ExecMainStartTimestampMonotonic",
    );
    assert_ne!(ran, "0", "the recovery ran in this boot");
    let blame = machine.exec(&["systemd-analyze", "blame", "--no-pager"]);
    for line in blame.lines().filter(|line| line.contains("machinist")) {
        println!("lab: figure: boot time of{line}");
    }
    // Nothing is left that would cause another reboot, even after an agent restart.
    machine.exec(&["systemctl", "restart", "machinist"]);
    machine.wait_updated(&digest(&first), wait::seconds(30));
    let plan = machine.exec(&["machinist", "plan"]);
    assert!(plan.contains("No changes: "), "{plan}");
    assert_eq!(machine.boot_id(), new);
    let boots = machine.exec(&["journalctl", "--list-boots", "--quiet", "--no-pager"]);
    assert_eq!(boots.lines().count(), 2, "{boots}");
}

#[test]
fn a_cancelled_systemd_job_is_retried_and_the_update_continues() {
    let slow = "[Service]\nType=oneshot\nRemainAfterExit=yes\n\
                ExecStart=/bin/sh -c 'until test -e /run/go; do sleep 0.1; done'\n";
    let machine = Machine::build("canceled")
        .machinist()
        .config(example("10"))
        .file("/usr/lib/systemd/system/slow.service", slow)
        .boot();
    machine.write("/run/go", "");
    machine.exec(&["systemctl", "start", "slow"]);
    machine.start_agent();
    let first = machine.wait_updated("", wait::seconds(30));
    let dropin = json!({"name": "10-env.conf", "contents": "[Service]\nEnvironment=GIVEN=yes\n"});
    let units = json!({"units": [{"name": "slow.service", "dropins": [dropin]}]});
    machine.exec(&["rm", "/run/go"]);
    machine.give_config("20-slow.yaml", &manifest("20-slow", Value::Null, units));
    machine.wait("the restart to be under way", wait::seconds(20), || {
        machine.property("slow.service", "ActiveState") == "activating"
    });
    machine.exec(&["systemctl", "stop", "slow"]);
    machine.write("/run/go", "");
    let status = machine.wait_updated(&digest(&first), wait::seconds(30));
    println!("{}", machine.agent_log().join("\n"));
    assert_eq!(status["updates"][0]["outcome"], "Done", "{status:#}");
    assert_eq!(
        status["updates"][1]["id"], first["updates"][0]["id"],
        "nothing was rolled back"
    );
    assert_eq!(machine.property("slow.service", "ActiveState"), "active");
    assert_eq!(machine.property("slow.service", "Environment"), "GIVEN=yes");
}
