//! The policy table of ordinary distributions, row by row on one machine: each change takes effect,
//! verified by independent means, without a reboot.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::agent::{digest, file, manifest};
use crate::support::builder::Builder;
use crate::support::{Machine, wait};

/// The documentation; another test compares it with the code.
const PAGE: &str = include_str!("../../docs/policies.md");
const UNITS: &str = "/usr/lib/systemd/system";

/// One row: its path, a file that matches it, and a shell line that fails before the change and
/// succeeds after it.
struct Row {
    of: &'static str,
    file: &'static str,
    content: String,
    shows: String,
}

fn row(of: &'static str, file: &'static str, content: &str, shows: &str) -> Row {
    let (content, shows) = (content.to_owned(), shows.to_owned());
    Row {
        of,
        file,
        content,
        shows,
    }
}

/// A row for a program that the image does not have: a stand-in records the files that it reads at
/// its start or reload.
fn read_by(unit: &str, of: &'static str, file: &'static str) -> Row {
    let shows = format!("grep -q '^# {of}$' /run/stand-in/{unit}");
    row(of, file, &format!("# {of}\n"), &shows)
}

/// A row whose file needs no action: programs read it when they need it.
fn nothing_to_do(of: &'static str, file: &'static str) -> Row {
    row(
        of,
        file,
        "# read when it is needed\n",
        &format!("[ -f {file} ]"),
    )
}

const CHRONY_CONF: &str = "driftfile /var/lib/chrony/chrony.drift\nconfdir /etc/chrony.d\n\
                           confdir /etc/chrony/conf.d\n";
const CONTAINERD: &str = "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n\
                          [metrics]\naddress = \"127.0.0.1:1338\"\n";

/// A shell line that succeeds if journald keeps messages of this priority.
fn keeps(weight: &str) -> String {
    format!(
        "word=row-$(cat /proc/sys/kernel/random/uuid); echo $word | systemd-cat --priority={weight}; \
         journalctl --sync; journalctl --quiet --boot --grep=$word >/dev/null"
    )
}

fn source(address: &str) -> (String, String) {
    (
        format!("server {address} offline\n"),
        format!("chronyc -n sources | grep -q {address}"),
    )
}

/// Rows of programs that the machine has.
fn real(certificate: &str) -> Vec<Row> {
    let own = source("10.99.0.201");
    let (dropin, debian) = (source("10.99.0.202"), source("10.99.0.203"));
    let forwarding = "cat /proc/sys/net/ipv4/conf/all/forwarding | grep -q";
    vec![
        row(
            "/etc/sysctl.d",
            "/etc/sysctl.d/90-row.conf",
            "net.ipv4.conf.all.log_martians = 1\n",
            "grep -q 1 /proc/sys/net/ipv4/conf/all/log_martians",
        ),
        row(
            "/etc/sysctl.conf",
            "/etc/sysctl.conf",
            "net.ipv4.conf.all.send_redirects = 0\n",
            "grep -q 0 /proc/sys/net/ipv4/conf/all/send_redirects",
        ),
        row(
            "/etc/tmpfiles.d",
            "/etc/tmpfiles.d/row.conf",
            "d /run/row-tmpfiles 0711 root root -\n",
            "[ $(stat -c %a /run/row-tmpfiles) = 711 ]",
        ),
        row(
            "/etc/systemd/journald.conf",
            "/etc/systemd/journald.conf",
            "[Journal]\nMaxLevelStore=warning\n",
            &format!("! {{ {}; }}", keeps("info")),
        ),
        // Read later, so it takes precedence.
        row(
            "/etc/systemd/journald.conf.d",
            "/etc/systemd/journald.conf.d/90-row.conf",
            "[Journal]\nMaxLevelStore=debug\n",
            &keeps("info"),
        ),
        row(
            "/etc/chrony.conf",
            "/etc/chrony.conf",
            &format!("{CHRONY_CONF}{}", own.0),
            &own.1,
        ),
        row(
            "/etc/chrony.d",
            "/etc/chrony.d/row.conf",
            &dropin.0,
            &dropin.1,
        ),
        row(
            "/etc/chrony",
            "/etc/chrony/conf.d/row.conf",
            &debian.0,
            &debian.1,
        ),
        row(
            "/etc/containerd/config.toml",
            "/etc/containerd/config.toml",
            CONTAINERD,
            "ss --listening --tcp --numeric | grep -q 127.0.0.1:1338",
        ),
        row(
            "/etc/containerd/conf.d",
            "/etc/containerd/conf.d/row.toml",
            "version = 2\n[debug]\naddress = \"/run/row-debug.sock\"\n",
            "[ -S /run/row-debug.sock ]",
        ),
        nothing_to_do(
            "/etc/containerd/certs.d",
            "/etc/containerd/certs.d/row/hosts.toml",
        ),
        row(
            "/usr/local/share/ca-certificates",
            "/usr/local/share/ca-certificates/row.crt",
            certificate,
            "openssl verify -CAfile /etc/ssl/certs/ca-certificates.crt /root/row.pem >/dev/null 2>&1",
        ),
        row(
            "/etc/udev/rules.d",
            "/etc/udev/rules.d/90-row.rules",
            "ACTION==\"add\", SUBSYSTEM==\"net\", KERNEL==\"row9\", RUN+=\"/bin/touch /run/row-udev\"\n",
            "ip link add row9 type bridge; udevadm settle; ip link delete row9; [ -e /run/row-udev ]",
        ),
        row(
            "/etc/systemd/network",
            "/etc/systemd/network/90-row.network",
            "[Match]\nName=row8\n[Network]\nAddress=10.98.0.8/32\nConfigureWithoutCarrier=yes\n",
            "ip address show row8 | grep -q 10.98.0.8",
        ),
        row(
            "/etc/systemd/networkd.conf",
            "/etc/systemd/networkd.conf",
            "[Network]\nIPv4Forwarding=yes\n",
            &format!("{forwarding} 1"),
        ),
        row(
            "/etc/systemd/networkd.conf.d",
            "/etc/systemd/networkd.conf.d/row.conf",
            "[Network]\nIPv4Forwarding=no\n",
            &format!("{forwarding} 0"),
        ),
    ]
}

const TIMESYNC: &str = "systemd-timesyncd.service";
const CRIO: &str = "crio.service";
const NETWORK_MANAGER: &str = "NetworkManager.service";
const CA_TRUST: &str = "update-ca-trust.service";
const CA_CERTIFICATES: &str = "update-ca-certificates.service";

/// Rows of programs that Debian's image does not have, or that conflict with those it has.
fn stand_in_rows() -> Vec<Row> {
    vec![
        read_by(
            TIMESYNC,
            "/etc/systemd/timesyncd.conf",
            "/etc/systemd/timesyncd.conf",
        ),
        read_by(
            TIMESYNC,
            "/etc/systemd/timesyncd.conf.d",
            "/etc/systemd/timesyncd.conf.d/row.conf",
        ),
        read_by(CRIO, "/etc/crio/crio.conf", "/etc/crio/crio.conf"),
        read_by(
            CRIO,
            "/etc/crio/crio.conf.d",
            "/etc/crio/crio.conf.d/row.conf",
        ),
        read_by(
            CA_TRUST,
            "/etc/pki/ca-trust/source/anchors",
            "/etc/pki/ca-trust/source/anchors/row.pem",
        ),
        read_by(
            CA_CERTIFICATES,
            "/etc/pki/trust/anchors",
            "/etc/pki/trust/anchors/row.pem",
        ),
        read_by(
            NETWORK_MANAGER,
            "/etc/NetworkManager/conf.d",
            "/etc/NetworkManager/conf.d/row.conf",
        ),
        read_by(
            NETWORK_MANAGER,
            "/etc/NetworkManager/NetworkManager.conf",
            "/etc/NetworkManager/NetworkManager.conf",
        ),
        nothing_to_do(
            "/etc/NetworkManager/dispatcher.d",
            "/etc/NetworkManager/dispatcher.d/row",
        ),
        // The next test of this row: what the new policy allows.
        row(
            "/etc/machinist",
            "/etc/machinist/policies.yaml",
            POLICIES,
            "[ -f /etc/machinist/policies.yaml ]",
        ),
    ]
}

const POLICIES: &str = "{apiVersion: operator.openshift.io/v1, kind: MachineConfiguration, \
     spec: {nodeDisruptionPolicy: {files: [{path: /etc/row, actions: [{type: None}]}]}}}\n";

/// Rows whose effect no lab machine can show.
const AT_PLAN_LEVEL: &[&str] = &["/etc/modules-load.d"];

/// A service that records the content of these places when it starts, and when it reloads if it
/// can.
fn add_stand_in(build: Builder, unit: &str, places: &str, kind: StandIn) -> Builder {
    let note = format!(
        "/bin/sh -c 'mkdir -p /run/stand-in; cat {places} >/run/stand-in/{unit} 2>/dev/null; true'"
    );
    let service = match kind {
        StandIn::Runs => format!("ExecStartPre={note}\nExecStart=/bin/sleep infinity"),
        StandIn::Reloads => {
            format!("ExecStartPre={note}\nExecReload={note}\nExecStart=/bin/sleep infinity")
        }
        StandIn::RunsOnce => {
            format!("Type=oneshot\nExecStart={note}\nExecStart=-/usr/sbin/update-ca-certificates")
        }
    };
    let text = format!("[Unit]\nDescription={unit}\n[Service]\n{service}\n");
    build.file(&format!("{UNITS}/{unit}"), text).enable(unit)
}

enum StandIn {
    Runs,
    Reloads,
    RunsOnce,
}

fn machine() -> Machine {
    let mut build = Machine::build("table")
        .machinist()
        .file("/etc/machinist/machinist.yaml", "actions: {settle: 50ms}\n")
        .file("/etc/chrony.conf", CHRONY_CONF)
        .file("/etc/chrony.d/found.conf", "")
        .file(
            "/etc/default/chrony",
            "DAEMON_OPTS=\"-x -F 1 -f /etc/chrony.conf\"\n",
        )
        .file(
            "/etc/containerd/config.toml",
            "version = 2\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n",
        )
        // As on Fedora, and on Debian up to 12.
        .link("/etc/sysctl.d/99-sysctl.conf", "../sysctl.conf")
        .enable("containerd.service");
    let (timesync, crio) = ("/etc/systemd/timesyncd.conf*", "/etc/crio/crio.conf*");
    for (unit, places, kind) in [
        (TIMESYNC, format!("{timesync} {timesync}/*"), StandIn::Runs),
        (CRIO, format!("{crio} {crio}/*"), StandIn::Runs),
        (
            NETWORK_MANAGER,
            "/etc/NetworkManager/NetworkManager.conf /etc/NetworkManager/conf.d/*".to_owned(),
            StandIn::Reloads,
        ),
        (
            CA_TRUST,
            "/etc/pki/ca-trust/source/anchors/*".to_owned(),
            StandIn::RunsOnce,
        ),
        (
            CA_CERTIFICATES,
            "/etc/pki/trust/anchors/*".to_owned(),
            StandIn::RunsOnce,
        ),
    ] {
        build = add_stand_in(build, unit, &places, kind);
    }
    build.boot()
}

#[test]
fn every_documented_policy_takes_effect_without_a_reboot() {
    let machine = machine();
    machine.sh("ip link add row8 type bridge");
    let certificate = machine.sh(
        "openssl req -x509 -newkey ed25519 -nodes -subj /CN=row -days 9 -keyout /dev/null -out /root/row.pem \
         2>/dev/null; cat /root/row.pem",
    );
    let rows: Vec<_> = real(&certificate)
        .into_iter()
        .chain(stand_in_rows())
        .collect();
    let shown = rows
        .iter()
        .map(|row| row.of)
        .chain(AT_PLAN_LEVEL.iter().copied());
    assert_eq!(
        shown.collect::<BTreeSet<_>>(),
        written_down(),
        "the table's rows"
    );

    let boot = machine.boot_id();
    let first = manifest(
        "00-first",
        json!({"files": [file("/etc/machinist/found", 0o644, "")]}),
        Value::Null,
    );
    machine.give_config("00-first.yaml", &first);
    machine.start_agent();
    let mut last = digest(&machine.wait_updated("", wait::seconds(60)));
    for (number, row) in rows.iter().enumerate() {
        let in_effect = || {
            machine
                .try_exec(&["sh", "-c", &row.shows])
                .unwrap()
                .status
                .success()
        };
        assert!(!in_effect(), "{}: before: {}", row.of, row.shows);
        let name = format!("{:02}-row", number + 10);
        let files = json!({"files": [file(row.file, 0o644, &row.content)]});
        let before = machine.invocations();
        machine.give_config(
            &format!("{name}.yaml"),
            &manifest(&name, files, Value::Null),
        );
        let status = machine.wait_updated(&last, wait::seconds(60));
        last = digest(&status);
        let what = format!("{}: {}", row.of, row.shows);
        machine.wait(&what, wait::seconds(15), in_effect);
        if row.content.contains("read when it is needed") {
            let after = machine.invocations();
            let kept = |unit: &str| before.get(unit) == after.get(unit);
            assert!(
                kept("containerd.service") && kept(NETWORK_MANAGER),
                "{}",
                row.of
            );
        }
        assert_eq!(machine.boot_id(), boot, "{} cost a reboot", row.of);
    }
    // With the policy file of the previous row this change needs no action; without it, a reboot
    // would be needed.
    let allowed = json!({"files": [file("/etc/row/allowed", 0o644, "allowed\n")]});
    machine.give_config(
        "90-allowed.yaml",
        &manifest("90-allowed", allowed, Value::Null),
    );
    machine.wait_updated(&last, wait::seconds(60));
    assert_eq!(machine.read("/etc/row/allowed"), b"allowed\n");
    assert_eq!(machine.boot_id(), boot);

    let files = json!({"files": [file("/etc/modules-load.d/row.conf", 0o644, "dm_mod\n")]});
    machine.write(
        "/root/modules.yaml",
        manifest("modules", files, Value::Null),
    );
    let plan = ["machinist", "plan", "-o", "json", "/root/modules.yaml"];
    let plan: Value = serde_json::from_slice(&machine.try_exec(&plan).unwrap().stdout).unwrap();
    let changes = plan["changes"].as_array().unwrap();
    let change = changes
        .iter()
        .find(|change| change["name"] == "/etc/modules-load.d/row.conf");
    let actions = &change.unwrap()["actions"];
    assert_eq!(*actions, json!(["Restart systemd-modules-load.service"]));
}

/// The paths of the documentation's table for ordinary distributions.
fn written_down() -> BTreeSet<&'static str> {
    let table = PAGE
        .split("## Files of ordinary distributions")
        .nth(1)
        .unwrap();
    let table = table.split("\n## ").next().unwrap();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| `"));
    cells.filter_map(|cells| cells.split('`').next()).collect()
}
