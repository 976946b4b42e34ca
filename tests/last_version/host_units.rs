//! The program and the units that the last version installed on its host.

use std::{fs, path::Path, process::Command};

use machinist_agent::host_install::HostInstall;
use machinist_rootfs::Root;
use machinist_update::{journal::Journal, observe::recovery_missing, store::StateStore};
use serde_json::{Value, json};

use crate::last_version::fixture;

const HOST: &str = "host.json";
const PROGRAM: &str = "/usr/local/libexec/machinist/machinist";
const UNITS: &str = "/etc/systemd/system";

/// The head of a 64-bit ELF program without a dynamic linker, and the name of a version.
fn program(version: &str) -> Vec<u8> {
    let mut bytes = vec![0; 176];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    (bytes[32], bytes[54], bytes[56]) = (64, 56, 2);
    (bytes[64], bytes[64 + 56]) = (1, 6);
    bytes.extend_from_slice(version.as_bytes());
    bytes
}

/// Installs this version's part of the host; returns whether a file was written.
fn install(host: &Path, version: &str) -> bool {
    let pod = tempfile::tempdir().unwrap();
    fs::write(pod.path().join("machinist"), program(version)).unwrap();
    let own = Root::open(pod.path()).unwrap();
    let source = move || own.pieces(&"/machinist".parse().unwrap());
    let part = HostInstall::from(&Root::open(host).unwrap(), source);
    part.install().unwrap()
}

fn host() -> tempfile::TempDir {
    static WRITTEN: std::sync::Once = std::sync::Once::new();
    WRITTEN.call_once(|| {
        if fixture::is_wanted(HOST) {
            let dir = tempfile::tempdir().unwrap();
            assert!(install(dir.path(), "last"));
            fixture::write_tree(HOST, dir.path());
        }
    });
    let dir = tempfile::tempdir().unwrap();
    fixture::restore(HOST, dir.path());
    dir
}

#[test]
fn host_installation_of_the_last_version_is_replaced() {
    let host = host();
    assert!(install(host.path(), "next"));
    let installed = fs::read(host.path().join(&PROGRAM[1..])).unwrap();
    assert_eq!(installed, program("next"));
    let root = Root::open(host.path()).unwrap();
    assert_eq!(recovery_missing(&root).unwrap(), None);
    assert!(!install(host.path(), "next"));
}

#[test]
fn host_installation_of_the_last_version_is_uninstalled() {
    let host = host();
    let root = Root::open(host.path()).unwrap();
    StateStore::open(&root)
        .unwrap()
        .save(&Journal::default())
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_machinist"));
    command
        .env_clear()
        .args(["uninstall", "--yes", "-o", "json", "--root"]);
    let done = command.arg(host.path()).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let answer: Value = serde_json::from_slice(&done.stdout).unwrap();
    let unit = |name: &str| format!("{UNITS}/machinist-{name}.service");
    let link = format!("{UNITS}/sysinit.target.wants/machinist-recover.service");
    let paths = [link, unit("recover"), unit("guard"), PROGRAM.to_owned()];
    assert_eq!(answer["paths"], json!(paths));
    for path in paths {
        let left = fs::symlink_metadata(host.path().join(&path[1..]));
        assert!(left.is_err(), "{path}");
    }
}
