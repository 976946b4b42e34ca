//! Settings from an administrator's view: files on disk, environment, flags, the real binary.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests lay out files, run the program, and fail by panicking"
)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

fn settings(root: &Path, flags: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_machinist"))
        .env_clear()
        .envs(environment.iter().copied())
        .arg("settings")
        .arg("--root")
        .arg(root)
        .args(flags)
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn entry<'a>(document: &'a Value, key: &str) -> &'a Value {
    let all = document["settings"].as_array().unwrap();
    all.iter().find(|one| one["key"] == key).unwrap()
}

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

#[test]
fn each_setting_comes_from_the_last_source_that_sets_it() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("etc/machinist");
    write(
        &dir.join("machinist.yaml"),
        "update:\n  reboot: ask\n  rebootTimeout: 2h\nowners: set\n",
    );
    write(
        &dir.join("machinist.yaml.d/20.yaml"),
        "update: {rebootTimeout: 4h}\n",
    );
    write(
        &dir.join("machinist.yaml.d/10.yaml"),
        "update: {rebootTimeout: 3h}\n",
    );
    let environment = [("MACHINIST_UPDATE__REBOOT", "never")];
    let output = settings(root.path(), &["-o", "json", "-v"], &environment);
    let document = json(&output);
    assert_eq!(document["kind"], "Settings");
    let reboot = entry(&document, "update.reboot");
    assert_eq!(reboot["value"], "never");
    assert_eq!(reboot["from"]["name"], "MACHINIST_UPDATE__REBOOT");
    let timeout = entry(&document, "update.rebootTimeout");
    assert_eq!(timeout["value"], "4h");
    let file = timeout["from"]["name"].as_str().unwrap();
    assert!(file.ends_with("/machinist.yaml.d/20.yaml"), "{file}");
    assert_eq!(timeout["from"]["line"], 1);
    assert_eq!(entry(&document, "log.level")["from"]["name"], "-v");
    assert_eq!(entry(&document, "users.allowed")["from"]["kind"], "default");

    let own = tempfile::tempdir().unwrap();
    write(&own.path().join("machinist.yaml"), "owners: record\n");
    let flags = ["-o", "json", "--config", own.path().to_str().unwrap()];
    let document = json(&settings(root.path(), &flags, &[]));
    assert_eq!(entry(&document, "owners")["value"], "record");
    assert_eq!(entry(&document, "update.reboot")["from"]["kind"], "default");
}

#[test]
fn settings_errors_are_all_reported_and_nothing_is_printed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("etc/machinist");
    write(
        &dir.join("machinist.yaml"),
        "update:\n  reboot: perhaps\nnonsense: 1\n",
    );
    write(
        &dir.join("machinist.yaml.d/10.yaml"),
        "devices: {rescan: soon}\n",
    );
    let output = settings(
        root.path(),
        &["-o", "json"],
        &[("MACHINIST_UPDATE__OS", "1h")],
    );
    assert_eq!(output.status.code(), Some(64));
    assert!(output.stdout.is_empty());
    let message = String::from_utf8(output.stderr).unwrap();
    for part in [
        "machinist: invalid settings, 4 problems:",
        "/machinist.yaml:2:11: update.reboot: found \"perhaps\"; expected one of auto, ask, never",
        "/machinist.yaml:3:11: nonsense: unknown key; expected one of actions,",
        "/machinist.yaml.d/10.yaml:1:19: devices.rescan: found \"soon\"; expected a duration",
        "MACHINIST_UPDATE__OS: UPDATE.OS: unknown key",
    ] {
        assert!(message.contains(part), "{part}\n{message}");
    }
}

#[test]
fn a_world_writable_settings_file_is_rejected() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("etc/machinist/machinist.yaml");
    write(&file, "owners: set\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let output = settings(root.path(), &[], &[]);
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("the file is world-writable (mode 0666)"),
        "{message}"
    );
}

#[test]
fn settings_yaml_and_json_output_are_equal() {
    let root = tempfile::tempdir().unwrap();
    let document = json(&settings(root.path(), &["-o", "json"], &[]));
    let output = settings(root.path(), &["-o", "yaml"], &[]);
    let yaml: Value = serde_saphyr::from_str(str::from_utf8(&output.stdout).unwrap()).unwrap();
    assert_eq!(yaml, document);
}

#[test]
fn documented_settings_match_the_code() {
    let root = tempfile::tempdir().unwrap();
    let document = json(&settings(root.path(), &["-o", "json"], &[]));
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let all = document["settings"].as_array().unwrap();
    let mut served: Vec<_> = all
        .iter()
        .map(|one| (text(&one["key"]), text(&one["value"])))
        .collect();
    let mut documented: Vec<_> = include_str!("../docs/settings.md")
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|row| {
            let mut cells = row.split('|').map(|cell| cell.trim().replace('`', ""));
            (cells.nth(1).unwrap(), cells.next().unwrap())
        })
        .collect();
    served.sort();
    documented.sort();
    assert_eq!(documented, served);
}
