//! Commands and configs that are refused before anything starts.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Output},
};

use crate::agent::harness::{Place, code, copy_program, err, out, until};

#[test]
fn invalid_settings_are_reported_by_line_and_the_agent_does_not_start() {
    let place = Place::with_examples();
    fs::create_dir_all(place.at("/etc/machinist")).unwrap();
    let file = place.at("/etc/machinist/machinist.yaml");
    fs::write(
        &file,
        "update:\n  reboot: auto\n  rebot: never\nadmin:\n  listen: [1]\n",
    )
    .unwrap();
    let refused = place.with_source(&["run"]);
    assert_eq!(code(&refused), 64);
    for printed in [
        "machinist.yaml:3:",
        "update.rebot: unknown key; did you mean update.reboot?",
        "machinist.yaml:5:",
    ] {
        assert!(
            err(&refused).contains(printed),
            "{printed} in {}",
            err(&refused)
        );
    }
    let left: Vec<_> = place.tree().into_keys().collect();
    assert_eq!(left.len(), 3, "nothing but the settings: {left:?}");
    assert!(!place.at("/var").exists() && !place.at("/run").exists());

    for arguments in [&["run", "--admin", "nonsense"][..], &["run", "--nonsense"]] {
        let refused = place.with_source(arguments);
        assert_eq!(code(&refused), 64, "{arguments:?}");
    }
}

#[test]
fn settings_from_the_environment_are_validated_too() {
    let place = Place::with_examples();
    let mut command = place.command(&["run", "--source", &place.source_flag()]);
    let refused = command
        .env("MACHINIST_UPDATE__REBOOT", "sometimes")
        .output()
        .unwrap();
    assert_eq!(code(&refused), 64);
    assert!(
        err(&refused).contains("MACHINIST_UPDATE__REBOOT"),
        "{}",
        err(&refused)
    );
}

/// Runs a command as an ordinary user; prints the reason and returns `None` where that is
/// impossible.
fn run_unprivileged(place: &Place, test: &str, arguments: &[&str]) -> Option<Output> {
    let output = |mut command: Command| Some(command.env_clear().output().unwrap());
    let root = place.root();
    let root = ["--root", root.to_str().unwrap()];
    if !nix::unistd::geteuid().is_root() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_machinist"));
        command.args(arguments).args(root);
        return output(command);
    }
    let setpriv = ["/usr/bin/setpriv", "/bin/setpriv"].map(PathBuf::from);
    let Some(setpriv) = setpriv.iter().find(|path| path.exists()) else {
        eprintln!("skipped: {test}: run by root, and setpriv is not installed");
        return None;
    };
    // The build directory may not be accessible to others.
    let binary = place.path().join("machinist");
    copy_program(&binary);
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(setpriv);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(binary).args(arguments).args(root);
    output(command)
}

#[test]
fn a_non_root_user_is_rejected_on_a_live_root_before_any_write() {
    let test = "a_non_root_user_is_rejected_on_a_live_root_before_any_write";
    let place = Place::with_examples();
    // Makes it look as if a manager ran below this root, which is writable to everyone.
    fs::create_dir_all(place.at("/run/systemd/system")).unwrap();
    for directory in ["/", "/run", "/run/systemd"] {
        fs::set_permissions(place.at(directory), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let before = place.tree();
    let source = place.source_flag();
    for command in [&["run"][..], &["apply", "--yes"]] {
        let arguments = [command, &["--source", &source]].concat();
        let Some(refused) = run_unprivileged(&place, test, &arguments) else {
            return;
        };
        assert_eq!(code(&refused), 1, "{command:?}: {}", err(&refused));
        assert!(
            err(&refused).contains("CAP_CHOWN") && err(&refused).contains("--root DIR"),
            "{command:?}: {}",
            err(&refused)
        );
        assert_eq!(place.tree(), before, "{command:?}");
        assert!(!place.at("/var").exists(), "{command:?}");
        assert!(!place.at("/run/machinist").exists(), "{command:?}");
    }
    // Read-only access is allowed.
    let arguments = ["plan", "--source", &source, "-o", "json"];
    let looked = run_unprivileged(&place, test, &arguments).unwrap();
    assert_ne!(code(&looked), 64, "{}", err(&looked));
    assert_eq!(place.tree(), before);
}

#[test]
fn a_non_root_user_can_apply_to_a_directory_and_owners_are_recorded() {
    let test = "a_non_root_user_can_apply_to_a_directory_and_owners_are_recorded";
    let place = Place::with_examples();
    fs::create_dir(place.root()).unwrap();
    fs::set_permissions(place.root(), fs::Permissions::from_mode(0o777)).unwrap();
    let source = place.source_flag();
    let apply = ["apply", "--yes", "--source", &source];
    let Some(applied) = run_unprivileged(&place, test, &apply) else {
        return;
    };
    assert_eq!(code(&applied), 0, "{}", err(&applied));
    assert!(place.at("/etc/chrony.conf").exists());
    let verified = run_unprivileged(&place, test, &["verify"]).unwrap();
    assert_eq!(code(&verified), 0, "{}", err(&verified));
}

#[test]
fn a_config_blocked_by_an_existing_object_is_applied_after_its_removal() {
    let place = Place::with_file("/etc/app", "ours");
    fs::create_dir_all(place.at("/etc/app")).unwrap();
    fs::write(place.at("/etc/app/theirs"), "a file").unwrap();
    let agent = place.start();
    agent.wait_for_log("KindDiffers");
    until("the refusal in the status", || {
        let failure = &agent.status()["failure"];
        failure["code"] == "KindDiffers" && failure["retryable"] == true
    });
    assert!(place.at("/etc/app/theirs").exists());
    let shown = place.machinist(&["status"]);
    assert!(out(&shown).contains("retrying"), "{}", out(&shown));
    let explained = place.machinist(&["explain"]);
    let advice = "change on the machine what the message names";
    let explained = out(&explained)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(explained.contains(advice), "{explained}");
    fs::remove_dir_all(place.at("/etc/app")).unwrap();
    agent.rests();
    assert_eq!(place.read("/etc/app").as_deref(), Some("ours"));
}
