//! Tests of the harness's own machine functions.

use crate::support::digest::differences;
use crate::support::{Machine, wait};

#[test]
fn two_lab_machines_boot_side_by_side() {
    let one = Machine::boot("one");
    let two = Machine::boot("two");
    println!(
        "lab: figure: booted in {:.1?} and {:.1?}",
        one.boot_time, two.boot_time
    );
    assert_eq!(one.sh("cat /etc/hostname; hostname"), "one\none\n");
    assert_ne!(one.boot_id(), two.boot_id());
    assert_ne!(one.read("/etc/machine-id"), two.read("/etc/machine-id"));
    assert_eq!(
        one.exec(&["systemctl", "list-units", "--failed", "--quiet", "--plain"]),
        ""
    );
    let line = format!(
        "read -r line </dev/tcp/{}/22; echo \"$line\"",
        two.address()
    );
    assert!(
        one.exec(&["bash", "-c", &line]).starts_with("SSH-2.0-"),
        "two answers one"
    );
}

#[test]
fn every_reboot_through_logind_gives_a_new_boot_id() {
    let mut machine = Machine::boot("reboots");
    let first = machine.boot_id();
    machine.write("/run/gone-at-reboot", "");
    machine.write("/etc/stays", "1");
    let second = machine.reboot();
    println!(
        "lab: figure: from the call to logind to ready again {:.1?}",
        machine.boot_time
    );
    assert_ne!(first, second);
    assert!(machine.try_read("/run/gone-at-reboot").is_none());
    assert_eq!(machine.read("/etc/stays"), b"1");

    machine.exec(&["systemctl", "reboot"]);
    let third = machine.wait_new_boot(&second, wait::seconds(60));
    assert!(third != second && third != first);

    machine.power_off();
    assert_eq!(machine.current_boot_id(), None);
    machine.power_on();
    assert_ne!(machine.boot_id(), third);
}

#[test]
fn a_killed_machine_boots_again_with_all_synced_data() {
    let mut machine = Machine::boot("loses-power");
    machine.sh(
        "printf '[Service]\\nExecStart=/bin/sleep infinity\\nExecStop=/bin/touch /etc/stopped\\n' \
                >/etc/systemd/system/witness.service; systemctl start witness; \
                echo before >/etc/synced; sync",
    );
    let before = machine.boot_id();
    machine.kill();
    assert_eq!(machine.current_boot_id(), None);
    assert!(
        machine.try_exec(&["true"]).is_err(),
        "nothing runs in a machine without power"
    );
    assert_eq!(machine.read("/etc/synced"), b"before\n");
    machine.power_on();
    assert_ne!(machine.boot_id(), before);
    assert_eq!(machine.read("/etc/synced"), b"before\n");
    assert!(
        machine.try_read("/etc/stopped").is_none(),
        "no unit was stopped in order"
    );
    assert!(
        machine.journal_with(&["--list-boots"]).lines().count() >= 2,
        "the journal survived"
    );
}

#[test]
fn a_tree_digest_depends_only_on_content_mode_owner_and_target() {
    let machine = Machine::boot("digested");
    machine.sh("mkdir -p /srv/t/d /srv/t/out; echo a >/srv/t/d/file; ln -s file /srv/t/d/link");
    let digest = || machine.tree_digest(&["/srv/t"], &["/srv/t/out"]);
    let tree = || machine.tree(&["/srv/t"], &["/srv/t/out"]);
    let start = digest();
    machine.sh("touch /srv/t/d/file; cat /srv/t/d/file; echo x >/srv/t/out/x");
    assert_eq!(digest(), start, "times and excluded paths do not count");
    for (change, undo) in [
        ("echo b >/srv/t/d/file", "echo a >/srv/t/d/file"),
        ("chmod 600 /srv/t/d/file", "chmod 644 /srv/t/d/file"),
        ("chown 1:0 /srv/t/d/file", "chown 0:0 /srv/t/d/file"),
        ("chgrp 1 /srv/t/d/file", "chgrp 0 /srv/t/d/file"),
        ("ln -sfn other /srv/t/d/link", "ln -sfn file /srv/t/d/link"),
        ("chmod 700 /srv/t/d", "chmod 755 /srv/t/d"),
        (">/srv/t/d/new", "rm /srv/t/d/new"),
    ] {
        let before = tree();
        machine.sh(change);
        assert_ne!(digest(), start, "{change}");
        assert_eq!(differences(&before, &tree()).len(), 1, "{change}");
        machine.sh(undo);
        assert_eq!(digest(), start, "{undo}");
    }
}

#[test]
fn the_built_binary_and_files_given_before_the_first_boot_are_there() {
    let unit = "[Service]\nType=oneshot\nExecStart=/usr/bin/touch /run/first-boot\n";
    let machine = Machine::build("prepared")
        .file("/usr/lib/systemd/system/once.service", unit)
        .enable("once.service")
        .machinist()
        .boot();
    assert!(
        machine.try_read("/run/first-boot").is_some(),
        "the unit ran at the first boot"
    );
    let built = std::fs::read(env!("CARGO_BIN_EXE_machinist")).unwrap();
    assert!(machine.read("/usr/bin/machinist") == built);
    assert_eq!(machine.sh("stat -c %a /usr/bin/machinist"), "755\n");
    assert!(machine.journal("once.service").contains("once.service"));
}
