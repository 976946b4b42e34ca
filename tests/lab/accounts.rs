//! A user declared by a config: she can log in, other users are not changed, and she is removed
//! with the config.

use serde_json::json;

use crate::support::agent::{digest, example};
use crate::support::{Machine, wait};

const DATABASES: [&str; 6] = ["passwd", "shadow", "group", "gshadow", "subuid", "subgid"];

fn databases(machine: &Machine) -> Vec<(String, String)> {
    let text = |name: &str| {
        let path = format!("/etc/{name}");
        let bytes = machine.try_read(&path).unwrap_or_default();
        let stat = machine.sh(&format!("stat -c '%a %U:%G' {path} || true"));
        (path, format!("{stat}{}", String::from_utf8(bytes).unwrap()))
    };
    DATABASES.iter().map(|name| text(name)).collect()
}

fn ann(key: &str, hash: &str) -> String {
    let user = json!({
        "name": "ann",
        "groups": ["sudo"],
        "shell": "/bin/bash",
        "passwordHash": hash,
        "sshAuthorizedKeys": [key.trim()],
    });
    json!({"ignition": {"version": "3.5.0"}, "passwd": {"users": [user]}}).to_string()
}

#[test]
fn a_config_user_can_log_in_by_key_and_is_removed_with_the_config() {
    let guest = Machine::boot("anns-desk");
    guest.sh("ssh-keygen -q -t ed25519 -N '' -f /root/key");
    let key = String::from_utf8(guest.read("/root/key.pub")).unwrap();
    let machine = Machine::build("accounts")
        .machinist()
        .file(
            "/etc/machinist/machinist.yaml",
            "users: {allowed: [core, ann]}\n",
        )
        .config(example("10"))
        .boot();
    let hash = guest.sh("openssl passwd -6 secret");
    let hash = hash.trim();
    machine.start_agent();
    let first = machine.wait_updated("", wait::seconds(30));
    let before = databases(&machine);
    let boot = machine.boot_id();

    machine.give_config("50-ann.ign", &ann(&key, hash));
    let second = machine.wait_updated(&digest(&first), wait::seconds(30));
    println!("{}", machine.agent_log().join("\n"));
    assert_eq!(second["updates"][0]["outcome"], "Done", "{second:#}");
    let to = format!("ann@{}", machine.address());
    let login = |command: &str| {
        let options = ["-oBatchMode=yes", "-oStrictHostKeyChecking=no"];
        let line = [
            "ssh",
            "-i",
            "/root/key",
            options[0],
            options[1],
            &to,
            command,
        ];
        guest.try_exec(&line).unwrap()
    };
    let done = login("id; stat -c '%a %U:%G' . .profile; echo $SHELL");
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    println!("lab: output of ann: {printed}");
    assert!(done.status.success(), "{done:?}");
    for wanted in ["(ann)", "(sudo)", "700 ann:ann\n644 ann:ann\n/bin/bash\n"] {
        assert!(printed.contains(wanted), "{wanted}: {printed}");
    }
    // The machine's own tools and the agent both report that the account files are consistent.
    machine.sh("pwck -r -q; grpck -r");
    assert!(machine.sh("passwd -S ann").starts_with("ann P "));
    machine.exec(&["machinist", "verify"]);
    assert_eq!(machine.boot_id(), boot, "nothing is restarted for a user");
    let shown = machine.sh("journalctl -u machinist; machinist status -o json; machinist history");
    assert!(!shown.contains(hash), "the hash is shown");

    // An edit of her entry by another writer is reported as drift, together with its owner.
    machine.sh("usermod -s /bin/sh ann");
    machine.wait_status("the edit to be seen", wait::seconds(10), |status| {
        let drift = status["config"]["drift"].as_array();
        drift.is_some_and(|drift| {
            drift
                .iter()
                .any(|one| one["path"] == "/etc/passwd" && one["entry"] == "ann")
        })
    });
    machine.sh("usermod -s /bin/bash ann");

    machine.take_config("50-ann.ign");
    machine.wait_updated(&digest(&second), wait::seconds(30));
    assert_eq!(databases(&machine), before);
    assert!(!login("true").status.success());
    machine.sh("test -f /home/ann/.profile && ! test -e /home/ann/.ssh/authorized_keys");
}

#[test]
fn concurrent_user_creation_during_an_update_loses_no_user() {
    let machine = Machine::build("useradds")
        .machinist()
        .file(
            "/etc/machinist/machinist.yaml",
            "users: {allowed: [core, ann]}\n",
        )
        .config(example("10"))
        .boot();
    machine.start_agent();
    let mut last = machine.wait_updated("", wait::seconds(30));
    machine.write(
        "/root/people",
        "for n in $(seq 60); do useradd -M p$n || exit; usermod -c x p$n || exit; done\n",
    );
    machine.sh("systemd-run --quiet --unit=people --remain-after-exit sh /root/people");
    for round in 0..4 {
        if round % 2 == 0 {
            machine.give_config("50-ann.ign", &ann("ssh-ed25519 AAAA", "*"));
        } else {
            machine.take_config("50-ann.ign");
        }
        last = machine.wait_updated(&digest(&last), wait::seconds(60));
        assert_eq!(last["updates"][0]["outcome"], "Done", "{last:#}");
    }
    wait::until("all to be added", wait::seconds(120), || {
        machine.property("people", "SubState") == "exited"
            || machine.property("people", "ActiveState") == "failed"
    });
    assert_eq!(machine.property("people", "Result"), "success");
    let count = machine.sh("grep -c '^p[0-9]*:.*:x:' /etc/passwd; grep -c '^p[0-9]' /etc/shadow");
    assert_eq!(count, "60\n60\n");
    assert_eq!(machine.sh("grep -c ann /etc/passwd || true"), "0\n");
    machine.sh("grpck -r");
}
