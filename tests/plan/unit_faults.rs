//! Units that systemd does not load: refused or warned of, compared with `systemd-analyze verify`.

use std::{collections::BTreeSet, process::Command};

use machinist_base::reason::Reason;
use machinist_ignition::{MachineConfig, Unit};
use machinist_plan::{Plan, Policies};
use machinist_update::observe::CallerFacts;
use serde_json::json;

use super::support::{OFFLINE, Tree, config, unit};

/// A unit, and whether systemd loads it.
const UNITS: [(&str, &str, bool); 19] = [
    ("a.timer", "[Timer]\nUnit=x.service\n", false),
    ("a.timer", "[Timer]\nUnit=x.service\nOnBootSec=5\n", true),
    (
        "a.timer",
        "[Timer]\nUnit=x.service\nOnClockChange=no\n",
        false,
    ),
    (
        "a.timer",
        "[Timer]\nUnit=x.service\nOnClockChange=yes\n",
        true,
    ),
    ("x.socket", "[Socket]\nAccept=no\n", false),
    ("x.socket", "[Socket]\nListenStream=/run/x\n", true),
    (
        "a.path",
        "[Path]\nUnit=x.service\nMakeDirectory=yes\n",
        false,
    ),
    ("a.path", "[Path]\nUnit=x.service\nPathExists=/a\n", true),
    ("mnt-q.mount", "[Mount]\nWhere=/mnt/q\n", false),
    ("mnt-q.mount", "[Mount]\nWhere=/mnt/q\nWhat=tmpfs\n", true),
    (
        "a.service",
        "[Service]\nType=dbus\nExecStart=/bin/true\n",
        false,
    ),
    (
        "a.service",
        "[Service]\nType=dbus\nBusName=a.b\nExecStart=/bin/true\n",
        true,
    ),
    ("a.service", "[Service]\nExecStart=bin/true\n", false),
    ("a.service", "[Service]\nExecStart=true\n", true),
    (
        "a.service",
        "[Service]\nExecStartPre=-./true\nExecStart=/bin/true\n",
        true,
    ),
    ("a--b.slice", "[Slice]\n", false),
    ("a-.slice", "[Slice]\n", false),
    ("a@b.slice", "[Slice]\n", false),
    ("a-b.slice", "[Slice]\n", true),
];

const SERVICE: &str = "[Service]\nExecStart=/bin/true\n";

fn warned(plan: &Plan) -> bool {
    let mut warnings = plan.warnings.iter();
    warnings.any(|warning| warning.starts_with("systemd does not load"))
}

/// Whether systemd loads it, by itself; none if this machine has no systemd.
fn loads(name: &str, text: &str) -> Option<bool> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(name), text).unwrap();
    std::fs::write(dir.path().join("x.service"), SERVICE).unwrap();
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(format!("./{name}"));
    let output = verify.current_dir(dir.path()).output().ok()?;
    Some(output.status.success())
}

#[test]
fn a_unit_that_systemd_refuses_causes_a_warning() {
    for (name, text, good) in UNITS {
        let mut to = MachineConfig::default();
        for (name, text) in [(name, text), ("x.service", SERVICE)] {
            let one = Unit {
                contents: Some(text.to_owned()),
                ..Unit::default()
            };
            unit(&mut to, name, one);
        }
        let plan = Tree::new().plan(&MachineConfig::default(), &to);
        assert_eq!(!warned(&plan), good, "{name} {text}: {:?}", plan.warnings);
        assert_eq!(loads(name, text).unwrap_or(good), good, "{name} {text}");
    }
}

/// Settings with values that systemd accepts, and with values that it refuses, by the unit's type and its other lines.
const SETTINGS: [(&str, &str, &[&str]); 15] = [
    (
        "service",
        "[Service]\nType=oneshot\nExecStart=/bin/true\nRestart=",
        &[
            "no",
            "always",
            "on-success",
            "on-failure",
            "on-abort",
            "bad",
        ],
    ),
    (
        "service",
        "[Service]\nExecStart=/bin/true\nRestart=",
        &["always", "on-success"],
    ),
    (
        "service",
        "[Service]\nExecStart=",
        &[
            "/bin/sh -c \"a",
            "/bin/sh -c 'a",
            "-/bin/sh -c 'a",
            "/bin/true it\"s",
            "/bin/echo don't",
            "/bin/echo don\\'t",
            "/bin/echo \"a\"b",
            "/bin/echo \"a\"b c\"",
            "/bin/echo \"it's\" 'a\"b'",
            "/bin/echo a\\\\",
            "/bin/echo \\q",
            "/bin/",
            "@/bin/true",
            "@/bin/true name",
            "-",
            "/bin/true ; /bin/true",
            "/bin/true ; bin/true",
            "/bin/true \\; bin/true",
            "/bin/true;bin/true",
            "bin/true",
            "-bin/true",
            "true",
            "+/bin/true",
            "\"/bin/true\" a",
        ],
    ),
    (
        "service",
        "[Service]\nExecStart=/bin/true\nExecStartPre=",
        &[
            "/bin/sh -c 'a",
            "-/bin/sh -c 'a",
            "@/bin/true",
            "-bin/x",
            "",
        ],
    ),
    (
        "service",
        "[Service]\nExecStart=/bin/true\nExecStop=",
        &["/bin/sh -c 'a", "/bin/true"],
    ),
    (
        "service",
        "[Service]\nExecStart=/bin/true\nPAMName=x\nKillMode=",
        &["process", "none", "mixed", "control-group", "bad"],
    ),
    (
        "timer",
        "[Timer]\nUnit=x.service\nOnBootSec=",
        &[
            "5",
            "5min",
            "1h30m",
            "1y 2 weeks",
            "2.5s",
            "abc",
            "5foo",
            "-5",
            "infinity",
            "5 min",
            "",
            "3 Days",
        ],
    ),
    (
        "timer",
        "[Timer]\nUnit=x.service\nOnActiveSec=abc\nOnCalendar=",
        &[
            "daily",
            "Weekly",
            "semi-annually",
            "dayly",
            "Mon *-*-* 00:00:00",
            "Monday",
            "Mom *-*-*",
            "mon,wed 10:00",
            "Mon..Fri 10:00",
            "Mon..Frei 10:00",
            "*:0/15",
            "25:00",
            "24:00",
            "12:60",
            "10:00:00.5",
            "*-13-01",
            "*-00-01",
            "*-02-30",
            "*-12-32",
            "*-02~01",
            "2026-01-01",
            "01-15",
            "@100",
            "12:00 Europe/Berlin",
            "12:00 UTC",
            "daily UTC",
            "1..5:00",
            "*-*-1,15 4:00",
            "08:05:40",
            "every day",
        ],
    ),
    (
        "socket",
        "[Socket]\nService=x.service\nListenStream=",
        &[
            "/run/x",
            "run/x",
            "x",
            "80",
            "0",
            "65535",
            "65536",
            "80a",
            "1.2.3.4:80",
            "1.2.3.4",
            "1.2.3.4:99999",
            "[::1]:80",
            "[::1]",
            "::1",
            "@a",
            "*:80",
            "localhost:80",
            "vsock::12",
            "vsock:2:1234",
            "1.2.3:80",
            "300.1.1.1:80",
            "@",
            "/",
            "%t/x",
            "",
        ],
    ),
    (
        "socket",
        "[Socket]\nService=x.service\nListenStream=/run/x\nListenDatagram=",
        &["bad", "/run/y"],
    ),
    (
        "socket",
        "[Socket]\nService=x.service\nListenFIFO=",
        &["rel", "/run/fifo"],
    ),
    (
        "socket",
        "[Socket]\nAccept=yes\nListenStream=/run/x\n",
        &[
            "",
            "Service=x.service",
            "ListenDatagram=/run/y",
            "ListenFIFO=/run/f",
            "ListenFIFO=f",
        ],
    ),
    (
        "socket",
        "[Socket]\nService=x.service\nListenStream=/run/x\nAccept=",
        &["yes", "no", "maybe"],
    ),
    (
        "path",
        "[Path]\nUnit=x.service\nPathExistsGlob=",
        &["/a*", "a*", "%t/a", "~/a", ""],
    ),
    (
        "path",
        "[Path]\nUnit=x.service\nPathChanged=rel\nPathModified=",
        &["/a", "b", "./b"],
    ),
];

/// The units that systemd refuses; none if this machine has no systemd.
fn refused_by_systemd(units: &[(String, String)]) -> Option<BTreeSet<String>> {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in units {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    verify.args(units.iter().map(|(name, _)| format!("./{name}")));
    let output = verify.current_dir(dir.path()).output().ok()?;
    let text = String::from_utf8(output.stderr).unwrap();
    let refused = text.lines().filter_map(|line| {
        let name = line.strip_prefix("Unit ")?;
        name.strip_suffix(" has a bad unit file setting.")
    });
    Some(refused.map(str::to_owned).collect())
}

#[test]
fn warnings_of_units_that_are_not_loaded_agree_with_systemd() {
    let mut units = vec![("x.service".to_owned(), SERVICE.to_owned())];
    for (kind, text, values) in SETTINGS {
        for value in values {
            let name = format!("u{}.{kind}", units.len());
            units.push((name, format!("{text}{value}\n")));
        }
    }
    let mut to = MachineConfig::default();
    for (name, text) in &units {
        let one = Unit {
            contents: Some(text.clone()),
            ..Unit::default()
        };
        unit(&mut to, name, one);
    }
    let plan = Tree::new().plan(&MachineConfig::default(), &to);
    let warned = plan.warnings.iter().filter_map(|warning| {
        let (name, _) = warning
            .strip_prefix("systemd does not load ")?
            .split_once(':')?;
        Some(name.to_owned())
    });
    let warned: BTreeSet<String> = warned.collect();
    assert!(warned.len() > 40, "{warned:?}");
    if let Some(refused) = refused_by_systemd(&units) {
        let differs: Vec<_> = units
            .iter()
            .filter(|(name, _)| warned.contains(name) != refused.contains(name))
            .map(|(name, text)| (warned.contains(name), text))
            .collect();
        assert!(differs.is_empty(), "(warned, text): {differs:#?}");
    }
}

#[test]
fn a_service_that_runs_a_script_of_the_config_needs_its_execute_bit() {
    for (mode, message) in [(Some(0o644), true), (None, true), (Some(0o755), false)] {
        let to = config(
            &json!({"ignition": {"version": "3.4.0"},
                "storage": {"files": [{"path": "/opt/run.sh", "mode": mode,
                    "contents": {"source": "data:,%23!/bin/sh%0A"}}]},
                "systemd": {"units": [{"name": "a.service",
                    "contents": "[Service]\nExecStart=-/opt/run.sh now\n"}]}})
            .to_string(),
        );
        let plan = Tree::new().plan(&MachineConfig::default(), &to);
        let found = plan.warnings.iter().any(|warning| {
            warning.contains("a.service cannot run ExecStart=/opt/run.sh")
                && warning.contains("0644")
        });
        assert_eq!(found, message, "{mode:?}: {:?}", plan.warnings);
    }
}

/// A config with a service that lacks a command, and more files.
fn incomplete(name: &str, files: &[&str]) -> MachineConfig {
    let text = "data:,%5BService%5D%0AExecStart=/bin/true%0A";
    let files = files
        .iter()
        .map(|path| json!({"path": path, "contents": {"source": text}}));
    let files: Vec<_> = files.collect();
    config(
        &json!({"ignition": {"version": "3.4.0"}, "storage": {"files": files},
            "systemd": {"units": [{"name": name, "contents": "[Service]\nType=simple\n"}]}})
        .to_string(),
    )
}

fn reasons(tree: &Tree, to: &MachineConfig) -> Vec<Reason> {
    let nothing = MachineConfig::default();
    let observed = tree.observed(&nothing, to, CallerFacts::default());
    let plan = machinist_plan::between(&nothing, to, &observed, &Policies::default(), OFFLINE);
    let refusals = plan.err().unwrap_or_default();
    refusals.iter().map(|refusal| refusal.reason).collect()
}

#[test]
fn drop_ins_from_anywhere_may_complete_a_service() {
    let tree = Tree::new();
    for (name, drop_in, complete) in [
        ("a.service", None, false),
        ("a.service", Some("b.service.d"), false),
        ("a.service", Some("a.service.d"), true),
        ("a-b.service", Some("a-.service.d"), true),
        ("a@.service", Some("a@.service.d"), true),
        ("a@.service", Some("a@1.service.d"), true),
        ("a.service", Some("service.d"), true),
    ] {
        let path = drop_in.map(|directory| format!("/etc/systemd/system/{directory}/x.conf"));
        let files: Vec<&str> = path.as_deref().into_iter().collect();
        let expected: &[Reason] = if complete {
            &[]
        } else {
            &[Reason::UnitInvalid]
        };
        let found = reasons(&tree, &incomplete(name, &files));
        assert_eq!(found, expected, "{name} {drop_in:?}");
    }
    tree.write(
        "/usr/lib/systemd/system/a.service.d/x.conf",
        "[Service]\nExecStart=/bin/true\n",
    );
    assert_eq!(reasons(&tree, &incomplete("a.service", &[])), []);
}
