//! The files that the agent of a DaemonSet installs on its host, and their removal.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use machinist_agent::host_install::{HostInstall, InstallError, InstalledFiles};
use machinist_base::reason::Reason;
use machinist_rootfs::{FsOp, Root};
use machinist_update::{
    journal::Journal, observe::recovery_missing, phase::Phase, store::StateStore,
};

use crate::update::{
    harness::{Driver, machine, tree},
    reboots::one,
};
use machinist_testkit::{
    node::FakeNode,
    sandbox::{Sandbox, at, conduct},
    scripted_services::Script,
};

const PROGRAM: &str = "/usr/local/libexec/machinist/machinist";
const RECOVER: &str = "/etc/systemd/system/machinist-recover.service";
const GUARD: &str = "/etc/systemd/system/machinist-guard.service";
const FALLBACK: &str = "/etc/systemd/system/machinist-trial-fallback.service";
const LINK: &str = "/etc/systemd/system/sysinit.target.wants/machinist-recover.service";

/// The head of a 64-bit ELF program, with or without a dynamic linker, and some more bytes.
fn program(version: &str, linker: bool) -> Vec<u8> {
    let mut bytes = vec![0; 300_000];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[32] = 64;
    bytes[54] = 56;
    bytes[56] = 2;
    bytes[64] = 1;
    bytes[64 + 56] = if linker { 3 } else { 6 };
    bytes.extend_from_slice(version.as_bytes());
    bytes
}

/// A host without the package.
fn bare() -> Sandbox {
    let sandbox = machine();
    let units = "/usr/lib/systemd/system";
    for path in [
        format!("{units}/machinist-recover.service"),
        format!("{units}/machinist-guard.service"),
        format!("{units}/sysinit.target.wants/machinist-recover.service"),
        "/usr/bin/machinist".to_owned(),
    ] {
        std::fs::remove_file(sandbox.path(&path)).unwrap();
    }
    sandbox
}

/// The pod that the agent runs in.
struct Pod(Sandbox);

impl Pod {
    fn with(version: &str) -> Self {
        let pod = Self(Sandbox::new());
        pod.becomes(&program(version, false));
        pod
    }

    fn becomes(&self, program: &[u8]) {
        std::fs::write(self.0.path("/machinist"), program).unwrap();
    }

    fn part(&self, root: &Root) -> HostInstall {
        let own = self.0.root();
        HostInstall::from(root, move || own.pieces(&at("/machinist")))
    }
}

fn mode(sandbox: &Sandbox, path: &str) -> u32 {
    let metadata = std::fs::symlink_metadata(sandbox.path(path)).unwrap();
    std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o7777
}

fn is_whole(sandbox: &Sandbox, version: &str) -> bool {
    let held = std::fs::read(sandbox.path(PROGRAM)).unwrap_or_default();
    held == program(version, false)
}

#[test]
fn recovery_program_units_and_enablement_are_installed_once() {
    let (host, pod) = (bare(), Pod::with("one"));
    assert!(recovery_missing(&host.root()).unwrap().is_some());
    assert!(pod.part(&host.root()).install().unwrap());
    assert_eq!(recovery_missing(&host.root()).unwrap(), None);
    assert!(is_whole(&host, "one"));
    assert_eq!(
        [
            mode(&host, PROGRAM),
            mode(&host, RECOVER),
            mode(&host, GUARD)
        ],
        [0o755, 0o644, 0o644]
    );
    assert_eq!(
        std::fs::read_link(host.path(LINK)).unwrap().to_str(),
        Some(RECOVER)
    );
    let recover = host.read(RECOVER).unwrap();
    assert!(
        recover.contains(&format!("\nExecStart={PROGRAM} recover\n")),
        "{recover}"
    );

    // By the same agent, and by the next one of the same version.
    let (root, recording) = host.root().recording();
    let part = pod.part(&root);
    assert!(!part.install().unwrap());
    assert!(!part.install().unwrap());
    assert_eq!(recording.log(), []);
}

#[test]
fn another_version_replaces_installed_recovery_and_changes_are_repaired() {
    let (host, pod) = (bare(), Pod::with("one"));
    let part = pod.part(&host.root());
    part.install().unwrap();
    pod.becomes(&program("two", false));
    assert!(pod.part(&host.root()).install().unwrap());
    assert!(is_whole(&host, "two"));

    let good = host.read(GUARD);
    host.write(GUARD, &format!("{}# mine\n", good.as_deref().unwrap()));
    let part = pod.part(&host.root());
    assert!(part.install().unwrap());
    assert_eq!(host.read(GUARD), good);
    std::fs::write(host.path(PROGRAM), "spoilt").unwrap();
    assert!(
        part.install().unwrap(),
        "although it was recorded as complete"
    );
    assert!(is_whole(&host, "two"));
}

#[test]
fn recovery_units_of_the_package_are_not_changed() {
    let (host, pod) = (machine(), Pod::with("one"));
    let before = tree(&host);
    assert!(!pod.part(&host.root()).install().unwrap());
    assert_eq!(tree(&host), before);
    assert!(InstalledFiles::on(&host.root()).unwrap().is_empty());
}

#[test]
fn an_unusable_or_obstructed_recovery_install_is_rejected_before_writing() {
    type Prepare = fn(&Sandbox, &Pod);
    let cases: [(Prepare, &str); 7] = [
        (
            |_, pod| pod.becomes(&program("one", true)),
            "not statically linked",
        ),
        (|_, pod| pod.becomes(b"#!/bin/sh\n"), "ELF"),
        (
            |host, _| std::os::unix::fs::symlink("/dev/null", host.path(RECOVER)).unwrap(),
            "machinist-recover.service is not managed by machinist: /etc/systemd/system/machinist-recover.service is masked",
        ),
        (
            |host, _| host.write(GUARD, "[Service]\nExecStart=/bin/true\n"),
            "machinist-guard.service is not managed by machinist",
        ),
        (
            |host, _| {
                let mut journal = Journal::default();
                journal.owned.insert(at(PROGRAM), None);
                StateStore::open(&host.root())
                    .unwrap()
                    .save(&journal)
                    .unwrap();
            },
            "machinist is part of the config",
        ),
        (
            |host, _| host.write("/var/lib/machinist/journal", "spoilt"),
            "cannot read the journal",
        ),
        (
            |host, _| host.write("/usr/local/libexec", "no directory"),
            "cannot install",
        ),
    ];
    for (prepare, output) in cases {
        let (host, pod) = (bare(), Pod::with("one"));
        for dir in ["/etc/systemd/system", "/usr/local"] {
            std::fs::create_dir_all(host.path(dir)).unwrap();
        }
        prepare(&host, &pod);
        let before = tree(&host);
        let error = pod.part(&host.root()).install().unwrap_err();
        assert!(
            machinist_base::error_chain::chain(&error).contains(output),
            "{output}: {error:?}"
        );
        assert_eq!(tree(&host), before, "{output}");
    }
}

/// From the `n`-th operation on every operation fails: a kill, or a disk that has become read-only.
fn dies_at(root: Root, n: usize) -> Root {
    let count = Arc::new(AtomicUsize::new(0));
    root.with_fault(Arc::new(move |_: &FsOp| {
        let over = count.fetch_add(1, Ordering::Relaxed) >= n;
        over.then(|| io::Error::from_raw_os_error(nix::libc::EROFS))
    }))
}

#[test]
fn a_crash_at_any_moment_leaves_recovery_whole_or_not_enabled() {
    for installed in [false, true] {
        let mut deaths = 0;
        for n in 0.. {
            let (host, pod) = (bare(), Pod::with("one"));
            std::fs::create_dir_all(host.path("/etc/systemd/system")).unwrap();
            if installed {
                pod.part(&host.root()).install().unwrap();
                host.write(
                    GUARD,
                    &format!("{}# an older one\n", host.read(GUARD).unwrap()),
                );
                pod.becomes(&program("two", false));
            }
            let version = if installed { "two" } else { "one" };
            let ended = pod.part(&dies_at(host.root(), n)).install();
            let missing = recovery_missing(&host.root()).unwrap();
            match ended {
                Ok(written) => {
                    assert!(written && missing.is_none() && is_whole(&host, version));
                    break;
                }
                Err(error) => {
                    assert_eq!(error.reason(), Reason::ReadOnly, "{n}: {error:?}");
                    deaths += 1;
                }
            }
            assert!(!installed || missing.is_none(), "{n}: {missing:?}");
            let whole = ["one", version]
                .iter()
                .any(|version| is_whole(&host, version));
            assert!(whole || missing.is_some(), "{n}");
            assert!(
                pod.part(&host.root()).install().unwrap() || missing.is_none(),
                "{n}"
            );
            assert_eq!(recovery_missing(&host.root()).unwrap(), None, "{n}");
            assert!(is_whole(&host, version), "{n}");
        }
        assert!(deaths > 5, "{deaths}");
    }
}

#[test]
fn a_full_disk_fails_the_recovery_install_without_partial_files() {
    let (host, pod) = (bare(), Pod::with("one"));
    let full = host.root().with_fault(Arc::new(|op: &FsOp| {
        let write = matches!(op.act, machinist_rootfs::FsOpKind::Write(_));
        write.then(|| io::Error::from_raw_os_error(nix::libc::ENOSPC))
    }));
    let error = pod.part(&full).install().unwrap_err();
    assert_eq!(error.reason(), Reason::NoSpace);
    let left = std::fs::read_dir(host.path("/usr/local/libexec/machinist")).unwrap();
    assert_eq!(left.count(), 0);
    assert!(matches!(error, InstallError::Root(_)));
}

#[tokio::test(start_paused = true)]
async fn the_reconciler_installs_recovery_before_the_first_cordon() {
    let (host, pod, script) = (bare(), Pod::with("one"), Script::new());
    pod.becomes(&program("one", true));
    let node = FakeNode::of(&host);
    let before = tree(&host);
    let wanted = (one().desired(), conduct(true));
    let part = pod.part(&host.root());
    let mut driver = Driver::installing_recovery(&host.root(), &script, &node, part, wanted);
    let report = driver.until_failed().await;
    let failure = report.failure.as_ref().unwrap();
    assert_eq!(failure.code, Reason::RecoveryMissing);
    assert!(
        failure.message.contains("not statically linked"),
        "{}",
        failure.message
    );
    assert_eq!((node.log(), tree(&host)), (vec![], before));

    pod.becomes(&program("one", false));
    driver
        .until("the update", |report| report.phase == Phase::RebootPending)
        .await;
    assert_eq!(
        script.asked()[0],
        "daemon-reload",
        "the units are loaded by PID 1"
    );
    assert_eq!(recovery_missing(&host.root()).unwrap(), None);
    assert!(is_whole(&host, "one"));
    driver.stop().await;
}

#[test]
fn uninstalling_recovery_restores_the_host_even_if_interrupted() {
    let (host, pod) = (bare(), Pod::with("one"));
    std::fs::create_dir_all(host.path("/etc/systemd/system/sysinit.target.wants")).unwrap();
    std::fs::create_dir_all(host.path("/usr/local/libexec")).unwrap();
    let before = tree(&host);
    for n in 0.. {
        pod.part(&host.root()).install().unwrap();
        let found = InstalledFiles::on(&host.root()).unwrap();
        assert_eq!(
            found.units,
            [at(LINK), at(RECOVER), at(GUARD), at(FALLBACK)]
        );
        assert_eq!(found.program, [at(PROGRAM)]);
        let dying = dies_at(host.root(), n);
        let ended = found
            .remove_units(&dying)
            .and_then(|()| found.remove_program(&dying));
        // Every enabled unit still has its program.
        assert!(
            host.path(LINK).symlink_metadata().is_err()
                || recovery_missing(&host.root()).unwrap().is_none()
        );
        let rest = InstalledFiles::on(&host.root()).unwrap();
        rest.remove_units(&host.root()).unwrap();
        rest.remove_program(&host.root()).unwrap();
        assert_eq!(tree(&host), before, "{n}");
        assert!(InstalledFiles::on(&host.root()).unwrap().is_empty());
        if ended.is_ok() {
            break;
        }
    }
}
