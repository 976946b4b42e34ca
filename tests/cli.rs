//! The command line as scripts and users see it: the real binary, its exit codes and its streams.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run the program and fail by panicking"
)]

use std::{
    fs,
    io::Read,
    path::Path,
    process::{Command, Output, Stdio},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use machinist_agent::admin;
use machinist_base::reason::Reason;
use machinist_rootfs::Root;
use machinist_status::{
    Mode, Status,
    metrics::Metrics,
    readiness::{Gate, GateEffect, GateName},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

fn machinist(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_machinist"))
        .env_clear()
        .args(arguments)
        .output()
        .unwrap()
}

fn code(arguments: &[&str]) -> Option<i32> {
    machinist(arguments).status.code()
}

#[test]
fn exit_codes_are_as_documented() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path().to_str().unwrap();
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["status", "--help"],
        &["help", "settings"],
    ] {
        let output = machinist(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(
            !output.stdout.is_empty() && output.stderr.is_empty(),
            "{arguments:?}"
        );
    }
    for arguments in [
        &[][..],
        &["nonsense"],
        &["status", "--nonsense"],
        &["settings", "-o", "xml"],
    ] {
        let output = machinist(arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{arguments:?}"
        );
    }
    assert_eq!(code(&["status", "--root", root]), Some(1));
    assert_eq!(code(&["status", "--root", "/does/not/exist"]), Some(1));
    assert_eq!(code(&["settings", "--root", root]), Some(0));
    assert_eq!(
        code(&["settings", "--root", root, "--config", "/does/not/exist"]),
        Some(1)
    );
}

#[test]
fn an_error_is_one_line_on_stderr_with_its_causes() {
    let output = machinist(&["status", "--root", "/does/not/exist"]);
    assert!(output.stdout.is_empty());
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "machinist: cannot open the root /does/not/exist: No such file or directory (os error 2)\n"
    );
}

#[test]
fn a_closed_stdout_pipe_is_not_an_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_machinist"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut told = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut told)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(told, "");
}

#[test]
fn completions_and_manual_pages_are_generated() {
    for shell in ["bash", "zsh", "fish"] {
        let output = machinist(&["completions", shell]);
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(
            script.contains("log-format") && script.contains("settings"),
            "{shell}"
        );
    }
    let page = |arguments| String::from_utf8(machinist(arguments).stdout).unwrap();
    assert!(page(&["man"]).contains(".TH machinist 1"));
    let status = page(&["man", "status"]);
    assert!(
        status.contains(".TH machinist-status 1") && status.contains("\\-\\-root"),
        "{status}"
    );
    assert_eq!(code(&["man", "nonsense"]), Some(1));
}

/// A status whose `DiskSpace` gate is open or closed.
fn status(root: &Path, open: bool) -> Arc<Status> {
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let mut status = Status::starting(root.display().to_string(), Mode::Offline, now);
    status.gates = [Gate {
        name: GateName::DiskSpace.into(),
        open,
        effect: GateEffect::Hold,
        since: now,
        reason: Reason::DiskSpaceLow,
        message: "/var is full".to_owned(),
    }]
    .into_iter()
    .collect();
    status.ready = status.gates.ready();
    Arc::new(status)
}

#[tokio::test]
async fn status_queries_the_agent_below_the_given_root() {
    let directory = tempfile::tempdir().unwrap();
    let root = Root::open(directory.path()).unwrap();
    root.make_dirs(&"/run/machinist".parse().unwrap(), 0o755)
        .unwrap();
    let (sender, receiver) = watch::channel(status(directory.path(), true));
    let (_pulse, liveness) = admin::heartbeat(Duration::from_secs(60));
    let metrics = Metrics::new(receiver.clone());
    let served = admin::AppState::new(receiver, liveness, metrics);
    let routes = admin::status_routes(served);
    let listener = root
        .bind_unix(
            &admin::STATUS_SOCKET.parse().unwrap(),
            admin::STATUS_SOCKET_MODE,
        )
        .unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = tokio::net::UnixListener::from_std(listener).unwrap();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(admin::serve(listener, routes, stop.clone()));

    let path = directory.path().display().to_string();
    let ask = move |form: &'static str| {
        let path = path.clone();
        tokio::task::spawn_blocking(move || machinist(&["status", "--root", &path, "-o", form]))
    };
    let output = ask("json").await.unwrap();
    assert_eq!(output.status.code(), Some(0));
    let seen: Status = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(&seen, &**sender.borrow());

    sender.send_replace(status(directory.path(), false));
    let output = ask("text").await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(
        page.contains("not ready") && page.contains("/var is full"),
        "{page}"
    );
    assert!(
        !page.contains('\u{1b}'),
        "unexpected colours in a pipe: {page}"
    );

    stop.cancel();
    serving.await.unwrap();
    assert_eq!(ask("text").await.unwrap().status.code(), Some(1));
}

#[test]
fn settings_that_are_no_regular_file_or_not_utf8_are_rejected() {
    use std::os::unix::ffi::OsStrExt as _;

    let root = tempfile::tempdir().unwrap();
    let config = root.path().join("etc/machinist");
    let at = root.path().to_str().unwrap();
    let settings = &["settings", "--root", at][..];
    std::fs::create_dir_all(config.join("machinist.yaml")).unwrap();
    assert_eq!(code(settings), Some(64), "a directory");
    std::fs::remove_dir(config.join("machinist.yaml")).unwrap();
    let mode = nix::sys::stat::Mode::from_bits_truncate(0o644);
    nix::unistd::mkfifo(&config.join("machinist.yaml"), mode).unwrap();
    assert_eq!(code(settings), Some(64), "a pipe, which must not block");
    std::fs::remove_file(config.join("machinist.yaml")).unwrap();
    std::fs::write(config.join("machinist.yaml.d"), "").unwrap();
    assert_eq!(
        code(settings),
        Some(64),
        "a file for the directory of drop-ins"
    );
    std::fs::remove_file(config.join("machinist.yaml.d")).unwrap();
    assert_eq!(code(settings), Some(0));

    let told = |name: &[u8], value: &[u8]| {
        let output = Command::new(env!("CARGO_BIN_EXE_machinist"))
            .env_clear()
            .env(
                std::ffi::OsStr::from_bytes(name),
                std::ffi::OsStr::from_bytes(value),
            )
            .args(settings)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    let (ended, said) = told(b"MACHINIST_UPDATE__REBOOT", b"\xff");
    assert_eq!(ended, Some(64));
    assert!(said.contains("MACHINIST_UPDATE__REBOOT"), "{said}");
    assert_eq!(told(b"OTHER", b"\xff").0, Some(0), "not ours");
}

#[test]
fn settings_json_has_every_origin_field() {
    let root = tempfile::tempdir().unwrap();
    let output = machinist(&[
        "settings",
        "-o",
        "json",
        "--root",
        root.path().to_str().unwrap(),
    ]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let from = &document["settings"][0]["from"];
    assert_eq!(
        *from,
        serde_json::json!({"kind": "default", "name": null, "line": null, "column": null})
    );
}

/// A truncated text, one that the machine cannot apply, one that contradicts it, one without a
/// provider.
const REFUSED: [(&str, &str); 4] = [
    (
        "a.bu",
        "variant: fcos
version: 1.6.0
storage:
  files:
  - path: /etc/a
    mode: 644
    contents: {inline: text
",
    ),
    (
        "b.bu",
        "variant: fcos
version: 1.6.0
storage:
  directories:
  - path: /etc/b
  files:
  - path: /etc/c
    user: {name: nosuch}
    contents: {inline: text}
",
    ),
    (
        "c.ign",
        r#"{"ignition":{"version":"3.5.0"},"storage":{"links":[{"path":"/etc/c/below","target":"/x"}]}}"#,
    ),
    (
        "d.yaml",
        "apiVersion: machineconfiguration.openshift.io/v1
kind: MachineConfig
metadata: {name: d}
spec:
  kernelArguments: [quiet]
",
    ),
];

/// Where and why a plan is refused, as short lines.
fn refusals(root: &Path, more: &[&str]) -> Vec<String> {
    let arguments = ["plan", "-o", "json", "--root", root.to_str().unwrap()];
    let output = machinist(&[&arguments[..], more].concat());
    assert_eq!(output.status.code(), Some(1));
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let refusals = plan["refusals"].as_array().unwrap().iter();
    let shown = refusals.map(|refusal| {
        let file = refusal["file"].as_str().unwrap().rsplit('/').next();
        let reason = refusal["reason"].as_str().unwrap();
        format!("{}:{} {reason}", file.unwrap(), refusal["line"])
    });
    shown.collect()
}

#[test]
fn one_plan_reports_syntax_conflict_and_host_refusals_together() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("source");
    fs::create_dir(&source).unwrap();
    for (name, text) in REFUSED {
        fs::write(source.join(name), text).unwrap();
    }
    fs::create_dir(source.join("e.yaml")).unwrap();
    std::os::unix::fs::symlink("nowhere", source.join("f.yaml")).unwrap();
    let source = source.to_str().unwrap();
    let expected = [
        "a.bu:7 SyntaxInvalid",
        "c.ign:1 EntryDuplicate",
        "f.yaml:null SourceUnreadable",
        "b.bu:7 FileOwnerUnknown",
        "d.yaml:5 NoProviderForKernelArguments",
    ];
    let flag = format!("dir:{source}");
    assert_eq!(refusals(root.path(), &["--source", &flag]), expected);
    let named = ["a.bu", "b.bu", "c.ign", "d.yaml", "e.yaml", "g.yaml"];
    let named = named.map(|name| format!("{source}/{name}"));
    let expected = [
        "a.bu:7 SyntaxInvalid",
        "c.ign:1 EntryDuplicate",
        "e.yaml:null SourceUnreadable",
        "g.yaml:null SourceUnreadable",
        "b.bu:7 FileOwnerUnknown",
        "d.yaml:5 NoProviderForKernelArguments",
    ];
    assert_eq!(
        refusals(root.path(), &named.each_ref().map(String::as_str)),
        expected
    );
}

#[test]
fn devices_check_rejects_a_declaration_the_agent_would_not_load() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("null.yaml");
    let declare = |with: &str| {
        let text = format!(
            "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: nothing}}\nspec:\n  resource: acme.dev/null\n  match: [{with}]\n"
        );
        fs::write(&file, text).unwrap();
    };
    let check = |mode: u32| {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let root = ["--root", place.path().to_str().unwrap()];
        machinist(&[&["devices", "check", file.to_str().unwrap()][..], &root].concat())
    };
    let said = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    declare("{path: /dev/null}");
    let good = check(0o644);
    assert_eq!(good.status.code(), Some(0), "{}", said(&good));
    let loose = check(0o666);
    assert_eq!(loose.status.code(), Some(1));
    let why = said(&loose);
    assert!(
        why.contains("0666") && why.contains("0644 at most"),
        "{why}"
    );
    declare("{usb: {vendor: '0x1d6b'}}");
    let why = said(&check(0o644));
    assert_eq!(why.matches("spec.match[0].usb").count(), 1, "{why}");
}

#[test]
fn devices_check_names_another_file_that_declares_the_resource() {
    let place = tempfile::tempdir().unwrap();
    let dir = |below: &str| {
        let dir = place.path().join("etc/machinist").join(below);
        fs::create_dir_all(&dir).unwrap();
        dir
    };
    let declaration = |name: &str| {
        format!(
            "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: {name}}}\nspec:\n  resource: acme.dev/null\n  match: [{{path: /dev/null}}]\n"
        )
    };
    let (first, second) = (
        dir("devices.d").join("first.yaml"),
        place.path().join("second.yaml"),
    );
    fs::write(&first, declaration("first")).unwrap();
    fs::write(&second, declaration("second")).unwrap();
    let vendor = "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {name: acme}\nspec: {connects: program, resources: [acme.dev/*], devices: [/dev/null]}\n";
    let vendors = dir("vendors.d").join("acme.yaml");
    let check = |file: &std::path::Path| {
        let root = ["--root", place.path().to_str().unwrap()];
        let file = ["devices", "check", file.to_str().unwrap()];
        let output = machinist(&[&file[..], &root].concat());
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(check(&first), "", "a file does not conflict with itself");
    let told = check(&second);
    assert!(
        told.contains("/etc/machinist/devices.d/first.yaml"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
    fs::write(vendors, vendor).unwrap();
    let told = check(&first);
    assert!(
        told.contains("/etc/machinist/vendors.d/acme.yaml"),
        "{told}"
    );
    assert!(
        told.contains("vendor acme may also offer acme.dev/null"),
        "{told}"
    );
}
