//! What local users do between a commit and its verification.

use std::{
    io::Write as _,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use machinist_update::{journal::Outcome, reconciler::RebootPolicy};

use crate::update::{
    harness::{Driver, boot, machine},
    reboots::start,
};
use machinist_testkit::{
    sandbox::{Sandbox, Written, config},
    scripted_services::Script,
};

const BOB: u32 = 61_234;

/// What bob does, by a name.
type UserAct = (&'static str, fn(&Sandbox));

fn wanted() -> Written {
    config("one")
        .file("/etc/found", "one\n", 0o644)
        .file("/home/bob/app.conf", "one\n", 0o644)
}

async fn committed(sandbox: &Sandbox, script: &Script) {
    let mut driver: Driver = start(sandbox, script, &wanted(), RebootPolicy::Auto);
    driver.patience = Duration::from_secs(60);
    script.wait_for_requests("reboot Logind").await;
    driver.stop().await;
    assert_eq!(sandbox.read("/home/bob/app.conf").unwrap(), "one\n");
    boot(sandbox, "boot-2");
}

#[tokio::test]
async fn user_changes_before_verification_do_not_fail_the_update() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to make objects of other users");
        return;
    }
    let acts: [UserAct; 3] = [
        ("other content", |sandbox| {
            sandbox.write("/home/bob/app.conf", "mine\n")
        }),
        ("gone", |sandbox| {
            std::fs::remove_file(sandbox.path("/home/bob/app.conf")).unwrap()
        }),
        ("led elsewhere", |sandbox| {
            let file = sandbox.path("/home/bob/app.conf");
            std::fs::remove_file(&file).unwrap();
            std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
            std::os::unix::fs::lchown(&file, Some(BOB), Some(BOB)).unwrap();
        }),
    ];
    for (what, act) in acts {
        let (sandbox, script) = (machine(), Script::new());
        std::fs::create_dir_all(sandbox.path("/home/bob")).unwrap();
        let home = sandbox.path("/home/bob");
        std::os::unix::fs::chown(home, Some(BOB), Some(BOB)).unwrap();
        committed(&sandbox, &script).await;
        act(&sandbox);
        let mut driver = start(&sandbox, &script, &wanted(), RebootPolicy::Auto);
        let report = driver.until_on(&wanted()).await;
        assert_eq!(report.updates[0].outcome, Outcome::Done, "{what}");
        let left = sandbox.journal().history[0].left_behind.join("; ");
        assert!(left.contains("/home/bob/app.conf"), "{what}: {left}");
        driver.stop().await;
    }
}

#[tokio::test]
async fn changes_in_root_only_paths_before_verification_fail_the_update() {
    let (sandbox, script) = (machine(), Script::new());
    committed(&sandbox, &script).await;
    sandbox.write("/etc/found", "other\n");
    let mut driver = start(&sandbox, &script, &wanted(), RebootPolicy::Auto);
    let failed = |report: &machinist_update::reconciler::UpdateReport| report.failure.is_some();
    driver.until("a failure", failed).await;
    driver.stop().await;
}

#[test]
fn a_user_who_writes_all_the_time_delays_no_update() {
    let sandbox = Sandbox::new();
    let is_root = nix::unistd::geteuid().is_root();
    let uid = if is_root {
        BOB
    } else {
        nix::unistd::geteuid().as_raw()
    };
    let gid = if is_root {
        BOB
    } else {
        nix::unistd::getegid().as_raw()
    };
    sandbox.write(
        "/etc/passwd",
        &format!("bob:x:{uid}:{gid}::/home/bob:/bin/sh\n"),
    );
    sandbox.write("/home/bob/.ssh/authorized_keys", "");
    for path in ["", "/.ssh", "/.ssh/authorized_keys"] {
        let path = sandbox.path(&format!("/home/bob{path}"));
        std::os::unix::fs::chown(path, Some(uid), Some(gid)).unwrap();
    }
    let keys = sandbox.path("/home/bob/.ssh/authorized_keys");
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let file = std::fs::File::options().append(true).open(&keys);
                drop(file.map(|mut file| file.write_all(b"# a line\n")));
                thread::sleep(Duration::from_micros(200));
            }
        });
        for round in 0..4 {
            let name = format!("config-{round}");
            let wanted = config(&name).key("bob", &format!("ssh-ed25519 AAAA{round} key"));
            let report = sandbox.apply(&wanted.file("/etc/other", &name, 0o644));
            if report.failure.is_some() {
                ended.store(true, Ordering::Relaxed);
            }
            assert_eq!(report.failure, None, "{name}");
        }
        ended.store(true, Ordering::Relaxed);
    });
    let text = sandbox.read("/home/bob/.ssh/authorized_keys").unwrap();
    assert!(
        text.contains("AAAA3 key"),
        "{}",
        text.replace("# a line\n", "")
    );
}

#[test]
fn an_update_that_only_leaves_a_users_path_behind_is_in_the_history() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: this needs root, to make objects of other users");
        return;
    }
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.path("/home/bob")).unwrap();
    std::os::unix::fs::chown(sandbox.path("/home/bob"), Some(BOB), Some(BOB)).unwrap();
    let kept = |name: &str| config(name).file("/etc/found", "one\n", 0o644);
    let path = "/home/bob/sub/app.conf";
    sandbox.apply(&kept("one").file(path, "one\n", 0o644));
    assert_eq!(sandbox.read(path).unwrap(), "one\n");
    let sub = sandbox.path("/home/bob/sub");
    std::fs::rename(&sub, sandbox.path("/home/bob/away")).unwrap();
    std::os::unix::fs::symlink("/etc", &sub).unwrap();
    std::os::unix::fs::lchown(&sub, Some(BOB), Some(BOB)).unwrap();
    sandbox.write("/etc/app.conf", "of the administrator\n");

    let report = sandbox.apply(&kept("two"));
    assert_eq!(report.failure, None);
    let history = sandbox.journal().history;
    let left = history.last().unwrap().left_behind.join("; ");
    assert!(left.contains(path), "{left}");
    assert_eq!(
        sandbox.read("/etc/app.conf").unwrap(),
        "of the administrator\n"
    );
    // It is no reason for another update.
    sandbox.apply(&kept("two"));
    assert_eq!(sandbox.journal().history.len(), history.len());
}
