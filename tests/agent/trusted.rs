//! A running machine does not accept files that users other than root may write.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown, symlink},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::{Command, Output},
};

use crate::agent::harness::{Place, code, copy_program, err, manifest};

/// A root that looks like that of a running machine.
fn live() -> Place {
    let place = Place::new();
    fs::create_dir_all(place.at("/run/systemd/system")).unwrap();
    fs::create_dir_all(place.at("/etc/machinist")).unwrap();
    fs::write(
        place.at("/etc/machinist/machinist.yaml"),
        "update: {reboot: never}\n",
    )
    .unwrap();
    place
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub(super) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn refused(output: &Output, path: &Path, why: &str) {
    let printed = err(output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_ne!(code(output), 0, "{printed}");
    assert!(
        printed.contains(&path.display().to_string()),
        "{path:?} in {printed}"
    );
    assert!(printed.contains(why), "{why} in {printed}");
}

#[test]
fn settings_writable_by_other_users_are_rejected() {
    if !is_root() {
        return;
    }
    let place = live();
    let (dir, file) = (
        place.at("/etc/machinist"),
        place.at("/etc/machinist/machinist.yaml"),
    );
    let settings = || place.machinist(&["settings"]);
    assert_eq!(code(&settings()), 0, "{}", err(&settings()));
    for (path, mode, owner, why) in [
        (&dir, 0o775, (0, 50), "group 50 may write it (mode 0775)"),
        (&dir, 0o755, (1000, 0), "it belongs to uid 1000"),
        (&file, 0o664, (0, 50), "group 50 may write it (mode 0664)"),
        (
            &place.at("/etc"),
            0o777,
            (0, 0),
            "any user may write it (mode 0777)",
        ),
    ] {
        let before = fs::metadata(path).unwrap().permissions();
        set_mode(path, mode);
        chown(path, Some(owner.0), Some(owner.1)).unwrap();
        refused(&settings(), path, why);
        chown(path, Some(0), Some(0)).unwrap();
        fs::set_permissions(path, before).unwrap();
    }
    // A directory of another user in the path of a link.
    let theirs = place.at("/srv/theirs");
    fs::create_dir_all(&theirs).unwrap();
    fs::rename(&file, theirs.join("m.yaml")).unwrap();
    symlink("/srv/theirs/m.yaml", &file).unwrap();
    assert_eq!(code(&settings()), 0, "{}", err(&settings()));
    chown(&theirs, Some(1000), None).unwrap();
    refused(&settings(), &theirs, "it belongs to uid 1000");
}

/// The files of a ConfigMap as the kubelet lays them out: the directory is world-writable, because
/// no other user can reach it.
fn volume(dir: &Path) {
    let data = dir.join("..2026_01_01");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("machinist.yaml"), "update: {reboot: never}\n").unwrap();
    symlink("..2026_01_01", dir.join("..data")).unwrap();
    symlink("..data/machinist.yaml", dir.join("machinist.yaml")).unwrap();
    set_mode(dir, 0o777);
}

#[test]
fn config_map_volume_permissions_are_checked_at_its_mount() {
    if !is_root() {
        return;
    }
    let place = live();
    let dir = place.path().join("volume");
    volume(&dir);
    let shown = dir.display().to_string();
    let settings = ["settings", "--config", &shown];
    refused(
        &place.machinist(&settings),
        &dir,
        "any user may write it (mode 0777)",
    );

    // As in the pod: a read-only mount.
    let may = Command::new("unshare").args(["--mount", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mount namespaces are not permitted");
        return;
    }
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    let command = place.command(&settings);
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, &shown])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", err(&output));
}

#[test]
fn a_config_dir_writable_by_others_is_rejected_and_a_file_argument_warned() {
    if !is_root() {
        return;
    }
    let place = live();
    let file = place.source().join("10-one.yaml");
    fs::write(&file, manifest("10-one", "/etc/one", "zero")).unwrap();
    let rendered = place.with_source(&["render"]);
    assert_eq!((code(&rendered), err(&rendered).as_str()), (0, ""));
    chown(place.source(), Some(1000), None).unwrap();
    let why = "it belongs to uid 1000";
    refused(&place.with_source(&["render"]), &place.source(), why);

    let named = place.machinist(&["render", &file.display().to_string()]);
    assert_eq!(code(&named), 0, "{}", err(&named));
    let warned = format!("warning: {}: writable by other users", file.display());
    assert!(err(&named).contains(&warned), "{}", err(&named));
    assert!(err(&named).contains(why), "{}", err(&named));
}

#[test]
fn a_non_root_agent_accepts_its_own_users_files() {
    if !is_root() {
        return;
    }
    // As in the README: a config and a root that both belong to the user.
    let home = PathBuf::from("/tmp").join(format!("machinist-home-{}", std::process::id()));
    fs::create_dir(&home).unwrap();
    let file = home.join("one.yaml");
    fs::write(&file, manifest("10-one", "/etc/one", "zero")).unwrap();
    let program = home.join("machinist");
    copy_program(&program);
    for path in [&home, &file, &program] {
        chown(path, Some(1000), Some(1000)).unwrap();
        set_mode(path, 0o775);
    }
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command
            .env_clear()
            .args(arguments)
            .arg("--root")
            .arg(home.join("root"));
        command.arg(&file).uid(1000).gid(1000).output().unwrap()
    };
    let applied = run(&["apply", "--yes"]);
    assert_eq!(code(&applied), 0, "{}", err(&applied));
    assert!(!err(&applied).contains("warning"), "{}", err(&applied));
    let planned = run(&["plan"]);
    assert_eq!(code(&planned), 0, "{}", err(&planned));
    assert_eq!(
        fs::read_to_string(home.join("root/etc/one")).unwrap(),
        "zero"
    );
    fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_hanging_fuse_mount_does_not_delay_a_plan() {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        return;
    }
    let place = Place::new();
    let mounted = place.at("/home/bob/.config");
    fs::create_dir_all(&mounted).unwrap();
    for path in [&place.at("/home/bob"), &mounted] {
        chown(path, Some(1000), Some(1000)).unwrap();
    }
    let file = place.path().join("keys.ign");
    let entry = r#"{"path": "/home/bob/.config", "contents": {"source": "data:,x"}}"#;
    let text =
        format!(r#"{{"ignition": {{"version": "3.4.0"}}, "storage": {{"files": [{entry}]}}}}"#);
    fs::write(&file, text).unwrap();
    let may = Command::new("unshare").args(["--mount", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mount namespaces are not permitted");
        return;
    }
    // The shell keeps the server's end open and never reads from it.
    let script = "exec 3<>/dev/fuse && mount --internal-only --types fuse.stuck --options \
        fd=3,rootmode=40000,user_id=1000,group_id=1000,allow_other none \"$0\" && timeout 60 \"$@\"";
    let command = place.command(&["plan", &file.display().to_string()]);
    let output = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            script,
            &mounted.display().to_string(),
        ])
        .arg(command.get_program())
        .args(command.get_args())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(code(&output), 1, "{shown}{}", err(&output));
    assert!(shown.contains("UnsafePath"), "{shown}");
}
