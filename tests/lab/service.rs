//! The agent as a service: readiness with one wording everywhere, invalid input, resource use and
//! shutdown.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::single_machine::{SOURCE, TREES};
use crate::support::agent::{digest, example, needs_reboot};
use crate::support::digest::differences;
use crate::support::{Machine, rounds, wait};

/// Waits until all three outputs of the gates agree that the machine is ready or not; returns the
/// text and the status.
fn readiness(machine: &Machine, ready: bool) -> (String, Value) {
    let code = if ready { 200 } else { 503 };
    wait::value(
        &format!("/readyz to answer {code}"),
        wait::seconds(20),
        || {
            let (answer, words) = machine.probe("/readyz")?;
            let status = machine.status()?;
            let sentence = machine.property("machinist", "StatusText");
            let same = sentence == words && status["ready"] == ready;
            (answer == code && same).then_some((words, status))
        },
    )
}

fn gate<'a>(status: &'a Value, name: &str) -> &'a Value {
    let gates = status["gates"].as_array().unwrap();
    gates.iter().find(|gate| gate["name"] == name).unwrap()
}

/// Asserts that a closed gate is reported with the same text in `/readyz`, `STATUS=` and `machinist
/// status`.
fn holds(machine: &Machine, name: &str, about: &str) {
    let (words, status) = readiness(machine, false);
    println!("lab: /readyz 503: {words}");
    let gate = gate(&status, name);
    let message = gate["message"].as_str().unwrap();
    assert_eq!(
        (&gate["open"], &gate["effect"]),
        (&json!(false), &json!("hold")),
        "{gate}"
    );
    assert!(message.contains(about), "{message}");
    assert!(words.contains(&format!("{name} ({message})")), "{words}");
    let shown = machine.try_exec(&["machinist", "status"]).unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    // The table wraps long messages.
    let unwrapped = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        unwrapped.contains("not ready") && unwrapped.contains(message),
        "{text}"
    );
    assert_eq!(shown.status.code(), Some(1));
    for (probe, code) in [("/livez", 200), ("/readyz/agent", 200)] {
        assert_eq!(
            machine.probe(probe).unwrap().0,
            code,
            "{probe} is about the agent alone"
        );
    }
}

#[test]
fn readyz_is_503_while_a_gate_is_closed_and_agrees_with_status() {
    let settings = "update: {reboot: never}\nactions: {settle: 200ms}\n";
    let mut machine = Machine::build("gates")
        .machinist()
        .file("/etc/machinist/machinist.yaml", settings)
        .config(example("10"))
        .boot();
    machine.start_agent();
    let first = machine.wait_updated("", wait::seconds(30));

    // The lab's clock is never synchronised: that gate is closed and only warns.
    let (words, status) = readiness(&machine, true);
    println!("lab: /readyz 200: {words}");
    let clock = gate(&status, "TimeSync");
    assert_eq!(
        (&clock["open"], &clock["effect"]),
        (&json!(false), &json!("warn"))
    );
    // The machine's disk may be full as well: it is the host's.
    assert!(words.starts_with("ready; warnings: "), "{words}");
    assert!(words.contains("TimeSync ("), "{words}");

    // A unit that fails after the update.
    let start = std::time::Instant::now();
    machine.sh("systemd-run --quiet --unit=breaks false");
    holds(&machine, "FailedUnits", "breaks.service");
    println!(
        "lab: figure: a failed unit closes /readyz after {:.1?}",
        start.elapsed()
    );
    machine.sh("systemctl reset-failed breaks");
    readiness(&machine, true);

    // A reboot that is left to the operator.
    let old = machine.boot_id();
    machine.give_config("80-reboot.yaml", &needs_reboot("later\n"));
    machine.wait_status("the reboot to be pending", wait::seconds(20), |status| {
        status["phase"] == "RebootPending"
    });
    holds(
        &machine,
        "BootProven",
        "a reboot was requested and has not happened",
    );
    assert_eq!(machine.read("/etc/example.conf"), b"later\n");
    assert_eq!(machine.boot_id(), old);
    machine.reboot();
    let status = machine.wait_updated(&digest(&first), wait::seconds(30));
    assert_eq!(status["updates"][0]["outcome"], "Done", "{status:#}");
    readiness(&machine, true);
}

/// Name, text, a word on the faulty line, and the parts of the message besides file and line.
const BAD: &[(&str, &str, &str, &[&str])] = &[
    (
        "broken YAML",
        "kind: MachineConfig\nmetadata: {name: 90-bad\nspec: here\n",
        "spec: here",
        &["expected ',' or '}'", "SyntaxInvalid"],
    ),
    (
        "an unknown field",
        "storage:\n  files:\n  - path: /etc/bad.conf\n    colour: red\n",
        "colour",
        &[
            "storage.files[0].colour",
            "expected one of path,",
            "FieldUnknown",
        ],
    ),
    (
        "a relative path",
        "storage:\n  files:\n  - path: etc/bad.conf\n",
        "etc/bad.conf",
        &["storage.files[0].path", "no absolute path", "PathInvalid"],
    ),
    (
        "a unit without a name",
        "systemd:\n  units:\n  - enabled: true\n",
        "enabled",
        &["systemd.units[0]", "expected name", "UnitNameInvalid"],
    ),
];

#[test]
fn invalid_input_is_rejected_by_file_line_and_field_and_the_config_kept() {
    let machine = Machine::build("refusing")
        .machinist()
        .config(example("10"))
        .boot();
    machine.start_agent();
    let good = machine.wait_updated("", wait::seconds(30));
    let agent = machine.property("machinist", "MainPID");
    let busy = [SOURCE, &["/var/lib/machinist"]].concat();
    let before = machine.tree(TREES, &busy);
    for (what, text, marker, says) in BAD {
        let report = machine.agent_log().len();
        let ignition = "ignition: {version: 3.5.0}\n";
        let text = if text.starts_with("kind") {
            (*text).to_owned()
        } else {
            format!("{ignition}{text}")
        };
        let line = 1 + text.lines().position(|line| line.contains(marker)).unwrap();
        machine.give_config("90-bad.yaml", &text);
        let status = machine.wait_status(what, wait::seconds(10), |status| {
            gate(status, "Config")["reason"] == "ConfigRefused"
        });
        // The gate reports the error and stays open: the machine is unchanged.
        let config = gate(&status, "Config");
        assert_eq!(config["open"], true, "{what}: {config}");
        assert!(
            config["message"]
                .as_str()
                .unwrap()
                .contains("keeping the last valid config")
        );
        assert_eq!(machine.probe("/readyz").unwrap().0, 200, "{what}");
        assert_eq!(
            status["config"]["digest"], good["config"]["digest"],
            "{what}"
        );

        let place = format!("/etc/machinist/machine.d/90-bad.yaml:{line}:");
        let report = machine.agent_log().split_off(report);
        let complete =
            |line: &&String| line.starts_with(&place) && says.iter().all(|s| line.contains(s));
        assert!(
            report.iter().any(|line| complete(&line)),
            "{what}: {place} {says:?} is not in {report:#?}"
        );
        println!("{}", report.join("\n"));
        let plan = machine.try_exec(&["machinist", "plan"]).unwrap();
        assert_eq!(plan.status.code(), Some(1), "{what}");
        assert_eq!(
            differences(&before, &machine.tree(TREES, &busy)),
            [""; 0],
            "{what}"
        );
        machine.take_config("90-bad.yaml");
        machine.wait_status("the refusal to go", wait::seconds(10), |status| {
            status["failure"].is_null() && gate(status, "Config")["reason"] == "Ok"
        });
    }
    assert_eq!(
        machine.property("machinist", "MainPID"),
        agent,
        "the agent lives"
    );
    assert_eq!(machine.property("machinist", "NRestarts"), "0");

    // The same at the start: a config that was broken while the agent was stopped.
    machine.exec(&["systemctl", "stop", "machinist"]);
    machine.give_config("90-bad.yaml", BAD[0].1);
    machine.exec(&["systemctl", "start", "machinist"]);
    let status = machine.wait_status("the start to refuse", wait::seconds(10), |status| {
        gate(status, "Config")["reason"] == "ConfigRefused"
    });
    assert_eq!(status["config"]["digest"], good["config"]["digest"]);
    assert_eq!(differences(&before, &machine.tree(TREES, &busy)), [""; 0]);
}

/// A container has no boot loader, so that no deployment with other arguments could be tried.
#[test]
fn kernel_arguments_are_refused_where_there_is_no_boot_loader() {
    let machine = Machine::build("arguments")
        .machinist()
        .config(example("10"))
        .boot();
    machine.start_agent();
    let good = machine.wait_updated("", wait::seconds(30));
    let boot = machine.boot_id();
    let busy = [SOURCE, &["/var/lib/machinist"]].concat();
    let before = machine.tree(TREES, &busy);
    let config = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": {"name": "90-arguments"},
        "spec": {"kernelArguments": ["nosmt"]},
    });
    machine.give_config("90-arguments.yaml", &config.to_string());
    let status = machine.wait_status("the refusal", wait::seconds(10), |status| {
        status["failure"]["code"] == "NoProviderForKernelArguments"
    });
    let message = status["failure"]["message"].as_str().unwrap();
    println!("lab: refused: {message}");
    let why = "cannot change kernel arguments on a package-based host: systemd-boot has not started the kernel, and \
               there is neither /boot/grub/grub.cfg nor a /boot/grub2/grub.cfg with blscfg";
    for part in ["kernel argument nosmt", why] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(status["failure"]["retryable"], false, "{status:#}");
    let config = &status["config"];
    assert_eq!(config["digest"], good["config"]["digest"], "{config:#}");
    assert_ne!(config["desiredDigest"], config["digest"], "{config:#}");
    assert_eq!(differences(&before, &machine.tree(TREES, &busy)), [""; 0]);

    machine.take_config("90-arguments.yaml");
    machine.wait_status("the refusal to end", wait::seconds(10), |status| {
        let config = &status["config"];
        status["failure"].is_null()
            && status["phase"] == "Idle"
            && config["desiredDigest"] == good["config"]["digest"]
    });
    assert_eq!(differences(&before, &machine.tree(TREES, &busy)), [""; 0]);
    assert_eq!(machine.boot_id(), boot);
}

#[test]
fn the_service_stops_within_a_second_excludes_a_second_agent_and_idles() {
    let machine = Machine::build("service")
        .machinist()
        .config(example("10"))
        .config(example("70"))
        .boot();
    machine.start_agent();
    machine.wait_updated("", wait::seconds(30));
    assert_eq!(machine.property("machinist", "WatchdogUSec"), "5min");

    let second = machine.try_exec(&["machinist", "run"]).unwrap();
    let report = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{report}");
    assert!(
        report.contains("another machinist process uses this root"),
        "{report}"
    );

    let security = machine.exec(&["systemd-analyze", "security", "--no-pager", "machinist"]);
    println!(
        "lab: figure: {}",
        security.trim_end().lines().last().unwrap()
    );

    let agent = machine.property("machinist", "MainPID");
    // Per thread: those of the pool for blocking work are created and end at any time.
    let switches = || -> BTreeMap<String, u64> {
        let counts = format!("grep -s ^voluntary_ctxt /proc/{agent}/task/*/status || [ $? = 2 ]");
        let lines = machine.sh(&counts);
        let counts = lines.lines().map(|line| {
            let (thread, count) = line.rsplit_once(':').unwrap();
            (thread.to_owned(), count.trim().parse().unwrap())
        });
        counts.collect()
    };
    let uptime = || {
        machine
            .sh("cut -d. -f1 /proc/uptime")
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    let window = rounds(15, 60) as u64;
    // The long version also waits for the end of what the start has triggered (timedated exits
    // after half a minute).
    let quiet = uptime() + rounds(0, 40) as u64;
    machine.wait("the start to be over", wait::seconds(60), || {
        uptime() >= quiet
    });
    let (before, start) = (switches(), uptime());
    assert!(before.len() > 1, "{before:?}");
    machine.wait("the measured time to pass", wait::seconds(120), || {
        uptime() >= start + window
    });
    let after = switches();
    let idle: u64 = before
        .iter()
        .filter_map(|(thread, count)| Some(after.get(thread)? - count))
        .sum();
    println!("lab: figure: {idle} voluntary context switches in {window} s idle");
    let memory = machine.sh(&format!("grep -h VmRSS /proc/{agent}/status"));
    println!("lab: figure: {} resident, debug build", memory.trim());

    let mut stops = Vec::new();
    for _ in 0..rounds(3, 10) {
        let start = std::time::Instant::now();
        machine.exec(&["systemctl", "stop", "machinist"]);
        stops.push(start.elapsed());
        assert_eq!(machine.property("machinist", "Result"), "success");
        machine.exec(&["systemctl", "start", "machinist"]);
    }
    println!("lab: figure: systemctl stop took {stops:.0?}");
    // The duration includes entering the machine, and a busy host can only add to it.
    let quickest = *stops.iter().min().unwrap();
    assert!(quickest < wait::seconds(1), "{stops:?}");
    // systemd kills it after 15 s.
    assert!(
        stops.iter().all(|took| *took < wait::seconds(30)),
        "{stops:?}"
    );
}

#[test]
fn the_watchdog_is_notified_while_running_and_kills_a_hanging_agent() {
    let short = "[Service]\nWatchdogSec=10s\nRestartSec=0\n";
    let machine = Machine::build("watched")
        .machinist()
        .file(
            "/etc/systemd/system/machinist.service.d/10-short.conf",
            short,
        )
        .config(example("10"))
        .boot();
    machine.start_agent();
    machine.wait_updated("", wait::seconds(30));
    let agent = machine.property("machinist", "MainPID");
    let fed = || {
        machine
            .property("machinist", "WatchdogTimestampMonotonic")
            .parse::<u64>()
            .unwrap()
    };
    let start = fed();
    machine.wait(
        "the watchdog to be fed for twice its length",
        wait::seconds(60),
        || fed() > start + 20_000_000,
    );
    assert_eq!(
        machine.property("machinist", "MainPID"),
        agent,
        "it was not killed"
    );

    machine.exec(&["kill", "-STOP", &agent]);
    machine.wait("a new agent", wait::seconds(60), || {
        let now = machine.property("machinist", "MainPID");
        now != agent && now != "0" && machine.status().is_some()
    });
    assert_eq!(machine.property("machinist", "NRestarts"), "1");
    let journal = machine.journal("machinist");
    assert!(journal.contains("Watchdog timeout"), "{journal}");
}
