//! Files below directories that users and services control, on a machine where these are hostile:
//! what is safe is written and repaired, and nothing lands where a user's link points.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::agent::{digest, file, manifest};
use crate::support::digest::{Tree, differences};
use crate::support::{Machine, wait};

const SETTINGS: &str = "drift: {default: repair}\n";
/// Nothing here needs a reboot, which would empty `/tmp`.
const POLICIES: &str = "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\n\
    metadata: {name: cluster}\nspec:\n  nodeDisruptionPolicy:\n    files:\n\
    \x20   - {path: /home, actions: [{type: None}]}\n\
    \x20   - {path: /tmp, actions: [{type: None}]}\n\
    \x20   - {path: /var, actions: [{type: None}]}\n\
    \x20   - {path: /etc/lab.conf, actions: [{type: None}]}\n";

/// A service with a user that systemd allocates. Its reload replaces a directory of its state by a
/// link into `/etc`. It tries again if the agent restores the directory before the link is there.
const SERVICE: &str = "[Service]\nDynamicUser=yes\nStateDirectory=lab-state\n\
    WorkingDirectory=/var/lib/lab-state\nExecStart=/bin/sleep infinity\n\
    ExecReload=/bin/sh -c 'ln -s /etc link; \
    until mv -T link sub; do mv --backup=numbered -T sub away; done'\n";

/// The homes of an ordinary machine: one with a directory of root's, one with a user's link to a
/// directory of hers, one elsewhere.
const PEOPLE: &str = "set -e\n\
    for name in bob alice mallory; do useradd --create-home $name; done\n\
    mkdir /data; useradd --create-home --home-dir /data/carol carol; ln -s /data/carol /home/carol\n\
    mkdir /home/bob/.config\n\
    runuser -u alice -- sh -c 'cd /home/alice && mkdir dotfiles && ln -s dotfiles .config'\n\
    systemctl start lab-state\n";

const UNITS: &str = "/etc/systemd/system";
const LINK: &str = "/home/mallory/.config/systemd/user";
const HERS: &str = "/home/mallory/.config/systemd/user/app.service";
/// A directory that the config gives to mallory.
const HER_DIRECTORY: &str = "/home/mallory/.config/systemd/user/lab.d";
const OF_SERVICE: &str = "/var/lib/lab-state/sub/app.conf";

/// Path, owner, and the place of the object where that differs.
const SAFE: [(&str, &str, Option<&str>); 9] = [
    ("/etc/lab.conf", "root", None),
    ("/home/bob/.profile", "bob", None),
    (
        "/home/bob/.config/containers/systemd/lab.container",
        "bob",
        None,
    ),
    ("/home/bob/.hushlogin", "root", None),
    (
        "/home/alice/.config/lab.conf",
        "alice",
        Some("/home/alice/dotfiles/lab.conf"),
    ),
    (
        "/home/carol/lab.conf",
        "carol",
        Some("/data/carol/lab.conf"),
    ),
    (
        "/var/lib/lab-state/lab.conf",
        "root",
        Some("/var/lib/private/lab-state/lab.conf"),
    ),
    ("/tmp/lab.conf", "root", None),
    ("/var/tmp/lab/lab.conf", "root", None),
];

fn owned(path: &str, owner: &str, content: &str) -> Value {
    let mut file = file(path, 0o644, content);
    file["user"] = json!({"name": owner});
    file["group"] = json!({"name": owner});
    file
}

/// A valid unit for podman's generator, and text for the others.
fn content(path: &str, version: u32) -> String {
    match path.ends_with(".container") {
        true => format!("# {version}\n[Container]\nImage=localhost/pause:1\n"),
        false => format!("# {version}\n"),
    }
}

fn safe(version: u32) -> String {
    let files = SAFE.map(|(path, owner, _)| owned(path, owner, &content(path, version)));
    manifest("10-safe", json!({"files": files}), Value::Null)
}

/// Entries whose users are hostile.
fn contested(text: &str) -> String {
    let files = [
        owned(HERS, "mallory", text),
        file(OF_SERVICE, 0o644, "# ours\n"),
    ];
    let hers =
        json!({"path": HER_DIRECTORY, "user": {"name": "mallory"}, "group": {"name": "mallory"}});
    let storage = json!({"files": files, "directories": [hers]});
    manifest("20-contested", storage, Value::Null)
}

/// Replaces the directory or the link at [`LINK`] by another link. A repair by the agent may restore
/// the directory in between, so this tries until the link is in place.
fn replace_by_link(machine: &Machine, link: &str) {
    let retry = format!("until mv -T {link} {LINK}; do mv --backup=numbered -T {LINK} away; done");
    mallory(machine, &retry);
}

fn mallory(machine: &Machine, line: &str) {
    let line = format!("cd /home/mallory && {line}");
    machine.exec(&["runuser", "-u", "mallory", "--", "sh", "-c", &line]);
}

/// `/etc` with neither the files of the safe config nor the agent's staging.
fn etc(machine: &Machine) -> Tree {
    let others = ["/etc/lab.conf", "/etc/machinist", "/etc/.machinist"];
    machine.tree(&["/etc"], &others)
}

fn drifted(status: &Value) -> BTreeSet<(&str, &str)> {
    let drift = status["config"]["drift"].as_array().unwrap();
    let pairs = drift.iter().map(|one| {
        let [path, kind] = ["path", "kind"].map(|key| one[key].as_str().unwrap());
        (path, kind)
    });
    pairs.collect()
}

fn wait_drift(machine: &Machine, expected: &[(&str, &str)]) {
    let expected: BTreeSet<_> = expected.iter().copied().collect();
    let what = format!("only the drift {expected:?}");
    machine.wait_status(&what, wait::seconds(60), |status| {
        status["phase"] == "Idle" && drifted(status) == expected
    });
}

fn wait_refused(machine: &Machine) -> String {
    let status = machine.wait_status("the refusal", wait::seconds(60), |status| {
        status["failure"]["code"] == "UnsafePath"
    });
    status["failure"].to_string()
}

fn are_in_place(machine: &Machine, version: u32) {
    for (path, owner, place) in SAFE {
        let place = place.unwrap_or(path);
        let text = machine.exec(&["cat", place]);
        assert_eq!(text, content(path, version), "{place}");
        let stat = machine.exec(&["stat", "-c", "%F %a %U:%G", place]);
        assert_eq!(
            stat.trim(),
            format!("regular file 644 {owner}:{owner}"),
            "{place}"
        );
    }
}

#[test]
fn users_and_services_cannot_redirect_writes_below_their_directories() {
    let machine = Machine::build("shared")
        .machinist()
        .file("/etc/machinist/machinist.yaml", SETTINGS)
        .file("/etc/machinist/policies.yaml", POLICIES)
        .file("/usr/lib/systemd/system/lab-state.service", SERVICE)
        // Removed, if a link to this directory were followed when the entry leaves the config.
        .file(&format!("{UNITS}/app.service"), "# of the administrator\n")
        .file(
            &format!("{UNITS}/lab.d/10.conf"),
            "# of the administrator\n",
        )
        .file("/etc/app.conf", "# of the administrator\n")
        .config(("10-safe.yaml".to_owned(), safe(1)))
        .config(("20-contested.yaml".to_owned(), contested("# ours\n")))
        .boot();
    machine.sh(PEOPLE);
    machine.exec(&[
        "systemctl",
        "enable",
        "--quiet",
        "machinist-recover",
        "machinist",
    ]);
    let before = etc(&machine);
    let is_untouched = || assert_eq!(differences(&before, &etc(&machine)), [""; 0]);

    // A link from before the first apply: the config is refused by its name.
    mallory(
        &machine,
        &format!("mkdir -p .config/systemd && ln -s {UNITS} .config/systemd/user"),
    );
    machine.start_agent();
    let why = wait_refused(&machine);
    let uid = machine.sh("id -u mallory");
    let named = format!("the link {LINK}, which belongs to user {}", uid.trim());
    assert!(why.contains(&named), "{why}");
    assert_eq!(machine.try_read("/etc/lab.conf"), None);
    is_untouched();

    // Without it everything is applied, in the places and for the owners that the machine has.
    mallory(&machine, "rm .config/systemd/user");
    machine.exec(&["machinist", "apply", "--yes"]);
    let first = machine.wait_updated("", wait::seconds(60));
    println!("{}", machine.agent_log().join("\n"));
    assert_eq!(first["updates"][0]["outcome"], "Done", "{first:#}");
    are_in_place(&machine, 1);
    for (path, owner) in [
        ("/home/bob/.config", "root"),
        ("/home/bob/.config/containers", "bob"),
        ("/home/bob/.config/containers/systemd", "bob"),
        ("/var/tmp/lab", "root"),
        (LINK, "mallory"),
        (HERS, "mallory"),
        (HER_DIRECTORY, "mallory"),
    ] {
        let stat = machine.exec(&["stat", "-c", "%U:%G", path]);
        assert_eq!(stat.trim(), format!("{owner}:{owner}"), "{path}");
    }
    wait_drift(&machine, &[]);
    machine.exec(&["machinist", "verify"]);
    is_untouched();

    let unsafe_paths = [HERS, HER_DIRECTORY, OF_SERVICE].map(|path| (path, "unsafe"));
    links_made_later_are_left_alone(&machine, &unsafe_paths, &is_untouched);
    other_entries_are_updated(&machine, &digest(&first), &unsafe_paths);
    is_untouched();
}

/// Every kind of link, each with an edit of another file that is to be repaired.
fn links_made_later_are_left_alone(
    machine: &Machine,
    unsafe_paths: &[(&str, &str)],
    is_untouched: &dyn Fn(),
) {
    machine.exec(&["systemctl", "reload", "lab-state"]);
    assert_eq!(
        machine.exec(&["cat", OF_SERVICE]),
        "# of the administrator\n"
    );
    mallory(
        machine,
        &format!("ln -s {UNITS} absolute && ln -s ../../../../etc/systemd/system relative"),
    );
    machine.sh(&format!("ln -s {UNITS} /home/mallory/of-root"));
    let bob = "/home/bob/.hushlogin";
    for (link, edit) in [
        ("absolute", "echo edited > /etc/lab.conf".to_owned()),
        (
            "relative",
            // In one step: the agent would restore a removed file, which bob then could not write.
            format!("runuser -u bob -- sh -c 'echo mine > {bob}.new && mv -f {bob}.new {bob}'"),
        ),
        (
            "of-root",
            "runuser -u alice -- sh -c 'echo mine > /home/alice/dotfiles/lab.conf'".to_owned(),
        ),
    ] {
        replace_by_link(machine, link);
        machine.exec(&["cat", HERS]);
        machine.sh(&edit);
        // One command, because each starts several processes.
        let look = SAFE.map(|(path, ..)| format!("cat {path}; stat -c %U $(realpath {path})"));
        let expected = SAFE.map(|(path, owner, _)| format!("{}{owner}\n", content(path, 1)));
        machine.wait("the edit to be repaired", wait::seconds(60), || {
            machine.sh(&look.join("; ")) == expected.concat()
        });
        wait_drift(machine, unsafe_paths);
        is_untouched();
    }
    let verify = machine.try_exec(&["machinist", "verify"]).unwrap();
    assert_eq!(verify.status.code(), Some(2), "{verify:?}");
    let verify = String::from_utf8_lossy(&verify.stdout).into_owned();
    assert!(
        verify.contains(HERS) && verify.contains(OF_SERVICE),
        "{verify}"
    );
}

/// Links in the way stop no other entry: neither an update, nor the removal of the entries behind
/// them. A changed entry behind a link is refused.
fn other_entries_are_updated(machine: &Machine, first: &str, unsafe_paths: &[(&str, &str)]) {
    machine.give_config("10-safe.yaml", &safe(2));
    let second = machine.wait_updated(first, wait::seconds(60));
    assert_eq!(second["updates"][0]["outcome"], "Done", "{second:#}");
    are_in_place(machine, 2);
    wait_drift(machine, unsafe_paths);

    machine.give_config("20-contested.yaml", &contested("# changed\n"));
    let why = wait_refused(machine);
    assert!(why.contains(LINK), "{why}");
    machine.give_config("20-contested.yaml", &contested("# ours\n"));
    machine.wait_status("the config before", wait::seconds(60), |status| {
        status["phase"] == "Idle" && status["failure"].is_null()
    });

    machine.take_config("20-contested.yaml");
    let third = machine.wait_updated(&digest(&second), wait::seconds(60));
    assert_eq!(third["updates"][0]["outcome"], "Done", "{third:#}");
    are_in_place(machine, 2);
    wait_drift(machine, &[]);
    let plan = machine.exec(&["machinist", "plan"]);
    assert!(plan.contains("No changes: "), "{plan}");
    let history = machine.exec(&["machinist", "history", "-o", "json"]);
    println!("{history}");
    let history: Value = serde_json::from_str(&history).unwrap();
    let updates = history.as_array().unwrap();
    let left = updates[0]["leftBehind"].to_string();
    for path in [HERS, HER_DIRECTORY, OF_SERVICE] {
        assert!(left.contains(path), "{path}: {left}");
    }
    // What mallory moved away stays hers; a restored directory may have been moved as well, before
    // its file was restored.
    let away = machine.sh("cat /home/mallory/away*/app.service");
    assert!(
        !away.is_empty() && away.lines().all(|line| line == "# ours"),
        "{away}"
    );
}
