//! Users and groups: entries of files that administrators and their tools edit at the same time.

use std::{collections::BTreeSet, fmt::Write as _, process::Command};

use machinist_base::abs_path::AbsPath;
use machinist_ignition::{PasswordHash, UserAccount};
use machinist_plan::{DriftEntry, Plan, PlanDocument, Policies};
use machinist_update::{cache::ObservationCache, observe_and_plan, store};

use machinist_testkit::{
    sandbox::{Sandbox, Written, conduct, config, difference},
    stepwise_update::StepwiseUpdate,
};

const DATABASES: [&str; 6] = ["passwd", "shadow", "group", "gshadow", "subuid", "subgid"];

pub(super) fn machine() -> Sandbox {
    Sandbox::new().with_accounts()
}

pub(super) fn ann() -> Written {
    config("ann")
        .admin("ann")
        .key("ann", "ssh-ed25519 AAAA ann")
}

/// Replaces the file, as every tool for users does.
pub(super) fn edit(sandbox: &Sandbox, path: &str, from: &str, to: &str) {
    let text = sandbox.read(path).unwrap();
    assert!(text.contains(from), "{path} holds no {from:?}: {text}");
    let meta = std::fs::metadata(sandbox.path(path)).unwrap();
    std::fs::remove_file(sandbox.path(path)).unwrap();
    sandbox.write(path, &text.replacen(from, to, 1));
    std::fs::set_permissions(sandbox.path(path), meta.permissions()).unwrap();
}

fn without_home(sandbox: &Sandbox) -> machinist_rootfs::TreeSnapshot {
    let mut tree = sandbox.tree();
    tree.0
        .retain(|path, _| !path.as_str().starts_with("/home/ann"));
    tree
}

#[test]
fn a_user_is_added_with_a_home_and_removed_leaving_other_bytes_unchanged() {
    let sandbox = machine();
    let before = sandbox.tree();
    sandbox.applied(&ann());
    let line = "\nann:x:1001:1001::/home/ann:/bin/sh\n+@";
    assert!(sandbox.read("/etc/passwd").unwrap().contains(line));
    assert_eq!(
        sandbox.read("/home/ann/.profile").unwrap(),
        "# for everybody\n"
    );
    let keys = sandbox.read("/home/ann/.ssh/authorized_keys").unwrap();
    assert!(keys.contains("AAAA ann"), "{keys}");
    let modes = [
        "/home/ann",
        "/etc/shadow",
        "/etc/passwd",
        "/home/ann/.profile",
    ]
    .map(|path| {
        let meta = std::fs::metadata(sandbox.path(path)).unwrap();
        std::os::unix::fs::MetadataExt::mode(&meta) & 0o7777
    });
    assert_eq!(modes, [0o700, 0o600, 0o644, 0o644]);
    let journal = sandbox.journal();
    let owned = |path: &&machinist_base::abs_path::AbsPath| path.as_str().starts_with("/home/ann");
    let owned = journal.owned.keys().filter(owned);
    let owned: Vec<_> = owned
        .map(machinist_base::abs_path::AbsPath::as_str)
        .collect();
    assert_eq!(
        owned,
        ["/home/ann/.ssh/authorized_keys"],
        "only the keys are ours"
    );

    sandbox.applied(&config("none"));
    let after = without_home(&sandbox);
    assert!(after == before, "{}", difference(&before, &after));
    let left = sandbox.read("/home/ann/.profile");
    assert_eq!(left.as_deref(), Some("# for everybody\n"), "homes stay");
    assert_eq!(sandbox.read("/home/ann/.ssh/authorized_keys"), None);
    assert_eq!(sandbox.journal().entries, []);
}

#[test]
fn account_edits_by_others_between_staging_and_commit_are_merged() {
    let sandbox = machine();
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&ann()).unwrap();
    edit(&sandbox, "/etc/passwd", ":Bob:", ":Robert:");
    edit(
        &sandbox,
        "/etc/group",
        "bob:x:1000:",
        "bob:x:1000:\neve:x:1002:",
    );
    hand.commit().unwrap();
    // Recovery repeats the commit.
    let once = sandbox.tree();
    hand.commit().unwrap();
    assert!(sandbox.tree() == once);
    let passwd = sandbox.read("/etc/passwd").unwrap();
    assert!(passwd.contains(":Robert:") && passwd.contains("\nann:x:1001:"));
    let group = sandbox.read("/etc/group").unwrap();
    assert!(
        group.ends_with("bob:x:1000:\neve:x:1002:\nann:x:1001:"),
        "{group}"
    );
    hand.close();
    let kept = sandbox.read("/etc/passwd").unwrap();
    assert_eq!(kept, passwd);
}

#[test]
fn account_edits_by_others_between_commit_and_rollback_are_kept() {
    let sandbox = machine();
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&ann()).unwrap();
    hand.commit().unwrap();
    edit(&sandbox, "/etc/passwd", ":Bob:", ":Robert:");
    edit(
        &sandbox,
        "/etc/group",
        "sudo:x:27:bob,ann",
        "sudo:x:27:bob,ann,eve",
    );
    // The password that she set is removed with her.
    edit(&sandbox, "/etc/shadow", "$6$salt$hidden", "$6$salt$hers");
    hand.undo().unwrap();
    for database in DATABASES {
        let text = sandbox.read(&format!("/etc/{database}")).unwrap();
        assert!(!text.contains("ann"), "{database}: {text}");
    }
    assert!(sandbox.read("/etc/passwd").unwrap().contains(":Robert:"));
    assert!(
        sandbox
            .read("/etc/group")
            .unwrap()
            .contains("sudo:x:27:bob,eve\n")
    );
}

#[test]
fn a_foreign_user_of_the_same_name_fails_the_commit_and_is_kept() {
    let sandbox = machine();
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&ann()).unwrap();
    edit(
        &sandbox,
        "/etc/passwd",
        "# by hand\n",
        "# by hand\nann:x:7:7::/:/bin/true\n",
    );
    let before = without_home(&sandbox);
    hand.commit().unwrap_err();
    hand.undo().unwrap();
    drop(hand);
    let after = without_home(&sandbox);
    assert!(after == before, "{}", difference(&before, &after));
    // A new plan changes her entry only as far as the config requires.
    sandbox.applied(&ann());
    let passwd = sandbox.read("/etc/passwd").unwrap();
    assert!(passwd.contains("ann:x:7:7::/:/bin/sh\n"), "{passwd}");
    sandbox.applied(&config("none"));
    let passwd = sandbox.read("/etc/passwd").unwrap();
    assert!(passwd.contains("ann:x:7:7::/:/bin/true\n"), "{passwd}");
}

/// A password that left the config must no longer be valid, also that of a user whom machinist created.
#[test]
fn fields_that_leave_the_config_of_a_created_user_have_their_defaults_again() {
    let named = || config("named").user("ann", UserAccount::default());
    let full = || {
        let account = UserAccount {
            gecos: Some("Ann".to_owned()),
            shell: Some(machinist_testkit::sandbox::at("/bin/zsh")),
            password_hash: PasswordHash::new("$6$salt$hidden"),
            ..UserAccount::default()
        };
        config("full").user("ann", account)
    };
    for is_created_with_name_only in [false, true] {
        let sandbox = machine();
        if is_created_with_name_only {
            sandbox.applied(&named());
        }
        sandbox.applied(&full());
        let line = |file: &str| {
            let text = sandbox.read(file).unwrap();
            let line = text.lines().find(|line| line.starts_with("ann:"));
            line.unwrap().to_owned()
        };
        let passwd = "ann:x:1001:1001:Ann:/home/ann:/bin/zsh";
        assert_eq!(line("/etc/passwd"), passwd);
        assert_eq!(line("/etc/shadow"), "ann:$6$salt$hidden:::::::");
        sandbox.applied(&named());
        assert_eq!(
            line("/etc/passwd"),
            "ann:x:1001:1001::/home/ann:/bin/sh",
            "{is_created_with_name_only}"
        );
        assert_eq!(line("/etc/shadow"), "ann:*:::::::");
        assert_eq!(drifted(&sandbox, None), []);
        // The user's own password stays.
        edit(&sandbox, "/etc/shadow", "ann:*", "ann:$6$salt$own");
        sandbox.applied(&named().file("/etc/motd", "x\n", 0o644));
        assert_eq!(line("/etc/shadow"), "ann:$6$salt$own:::::::");
    }
}

pub(super) fn drifted(sandbox: &Sandbox, only: Option<&BTreeSet<AbsPath>>) -> Vec<DriftEntry> {
    let (capabilities, base) = (conduct(false).capabilities, sandbox.journal().base);
    let fresh = ObservationCache::default();
    observe_and_plan::drift(&sandbox.root(), base.as_ref(), only, capabilities, &fresh).unwrap()
}

#[test]
fn a_password_comes_back_after_a_failed_update() {
    let with_password = |name: &str| {
        let account = UserAccount {
            password_hash: PasswordHash::new(&format!("$6$salt${name}")),
            ..UserAccount::default()
        };
        config(name).user("ann", account)
    };
    let sandbox = machine();
    sandbox.applied(&with_password("first"));
    let shadow = || sandbox.read("/etc/shadow").unwrap();
    let before = shadow();
    assert!(before.contains("ann:$6$salt$first:"), "{before}");
    for next in [with_password("second"), config("none")] {
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&next).unwrap();
        hand.commit().unwrap();
        assert!(!shadow().contains("first"));
        hand.undo().unwrap();
        drop(hand);
        assert_eq!(shadow(), before);
    }
}

fn plan(sandbox: &Sandbox, to: &Written, only: Option<&AbsPath>) -> Plan {
    let how = observe_and_plan::PlanOptions {
        policies: &Policies::default(),
        capabilities: conduct(false).capabilities,
        units: None,
        only,
        remembered: &ObservationCache::default(),
    };
    let (root, journal) = (sandbox.root(), sandbox.journal());
    let looked = observe_and_plan::observe_and_plan(&root, &journal, &to.0, how);
    looked.unwrap().plan.unwrap()
}

#[test]
fn a_changed_account_entry_is_drift_and_is_repaired() {
    let sandbox = machine();
    sandbox.applied(&ann());
    edit(
        &sandbox,
        "/etc/passwd",
        "/home/ann:/bin/sh",
        "/home/ann:/bin/zsh",
    );
    edit(&sandbox, "/etc/group", "sudo:x:27:bob,ann", "sudo:x:27:bob");
    let drift = drifted(&sandbox, None);
    let message: Vec<String> = drift.iter().map(ToString::to_string).collect();
    assert_eq!(
        message,
        [
            "/etc/group has a different entry for ann",
            "/etc/passwd has a different entry for ann"
        ]
    );
    // Users may change their shell, and not their groups.
    let by_user: Vec<bool> = drift.iter().map(|drift| drift.by_user).collect();
    assert_eq!(by_user, [false, true]);
    let only = [machinist_testkit::sandbox::at("/etc/group")].into();
    let part = drifted(&sandbox, Some(&only));
    assert_eq!(part.len(), 1);
    // A user is repaired in all files at once; a repair of another path changes none of them.
    let repairs = |path: &str| {
        let only = machinist_testkit::sandbox::at(path);
        plan(&sandbox, &ann(), Some(&only)).operations.len()
    };
    assert_eq!((repairs("/etc/group"), repairs("/etc/motd")), (2, 0));
    // Another file in the config, so that there is something to do.
    sandbox.applied(&ann().file("/etc/motd", "x\n", 0o644));
    assert_eq!(drifted(&sandbox, None), []);
}

#[test]
fn a_user_made_by_the_same_config_may_own_its_files() {
    let sandbox = machine();
    let mut wanted = ann().file("/home/ann/notes/first", "hers\n", 0o600);
    for file in wanted.0.files.values_mut() {
        file.user = Some(machinist_ignition::Owner::Name("ann".into()));
        file.group = Some(machinist_ignition::Owner::Name("ann".into()));
    }
    sandbox.applied(&wanted);
    assert_eq!(sandbox.read("/home/ann/notes/first").unwrap(), "hers\n");
    if nix::unistd::geteuid().is_root() {
        let meta = std::fs::metadata(sandbox.path("/home/ann/notes/first")).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&meta), 1001);
    }
}

#[test]
fn no_password_hash_appears_in_output() {
    let sandbox = machine();
    let plan = plan(&sandbox, &ann(), None);
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    let mut message = String::new();
    let _ = write!(
        message,
        "{plan:?}{}{}",
        plan.to_text(false),
        serde_json::to_string(&PlanDocument::new("/", &plan)).unwrap()
    );
    hand.stage(&ann()).unwrap();
    hand.commit().unwrap();
    let shown = hand.journal.clone().without_secrets();
    let shown = serde_json::to_string(&shown).unwrap();
    let _ = write!(message, "{:?}{:?}{shown}", hand.journal, ann().0);
    hand.close();
    let _ = write!(message, "{:?}", hand.journal);
    assert!(message.contains("ann") && message.contains("password"));
    assert!(
        !message.contains("hidden") && !message.contains("bobs"),
        "{message}"
    );
    // Only root may read the record itself.
    let journal = std::fs::metadata(sandbox.path("/var/lib/machinist/journal")).unwrap();
    let mode = std::os::unix::fs::MetadataExt::mode(&journal) & 0o777;
    assert_eq!(mode, 0o600);
    assert!(store::peek(&sandbox.root()).is_ok());
}

/// A machine on which `useradd` and the checkers report nothing.
fn clean() -> Sandbox {
    let sandbox = machine();
    for (path, from, to) in [
        ("/etc/passwd", "# by hand\n+@netgroup::::::\n", ""),
        ("/etc/group", "bob:x:1000:", "bob:x:1000:\n"),
        ("/etc/gshadow", "bob:!::", "bob:!::\n"),
    ] {
        edit(&sandbox, path, from, to);
    }
    for path in ["/bin/sh", "/bin/bash", "/root/.profile"] {
        sandbox.write(path, "");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(sandbox.path(path), mode).unwrap();
    }
    let settings = "HOME_MODE 0700\nUSERGROUPS_ENAB yes\nCREATE_HOME yes\n";
    sandbox.write("/etc/login.defs", settings);
    sandbox
}

/// Runs a tool of the host on the sandbox; returns whether it succeeds, and its output.
fn run(sandbox: &Sandbox, tool: &str, rest: &[&str]) -> (bool, String) {
    let mut command = Command::new(format!("/usr/sbin/{tool}"));
    let root = sandbox.path("/");
    let done = command.arg("-R").arg(root).args(rest).output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    (
        done.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// A database without the day of the last change, which no plan contains.
fn undated(sandbox: &Sandbox, database: &str) -> Vec<String> {
    let text = sandbox.read(&format!("/etc/{database}")).unwrap();
    let line = |line: &str| {
        let mut fields: Vec<&str> = line.split(':').collect();
        if database == "shadow" {
            fields[2] = "";
        }
        fields.join(":")
    };
    text.lines().map(line).collect()
}

/// Compares with the tools that own these files, where they are installed: `useradd` writes the
/// same entries, and the checkers report nothing.
#[test]
fn account_entries_match_useradd_and_pass_pwck_and_grpck() {
    let here = |tool: &&str| std::path::Path::new("/usr/sbin").join(tool).exists();
    let tools = ["useradd", "pwck", "grpck"].iter().all(here);
    if !nix::unistd::geteuid().is_root() || !tools {
        println!("skipped: this needs root, useradd, pwck and grpck");
        return;
    }
    let (ours, theirs) = (clean(), clean());
    let account = UserAccount {
        groups: vec!["sudo".to_owned()],
        gecos: Some("Ann".to_owned()),
        shell: Some(machinist_testkit::sandbox::at("/bin/sh")),
        ..UserAccount::default()
    };
    ours.applied(&config("ann").user("ann", account));
    let line = "-m -s /bin/sh -G sudo -c Ann -p * ann";
    let made = run(&theirs, "useradd", &line.split(' ').collect::<Vec<_>>());
    assert!(made.0, "{}", made.1);
    for database in DATABASES {
        assert_eq!(undated(&ours, database), undated(&theirs, database));
    }
    let home = |sandbox: &Sandbox| {
        let mut tree = sandbox.tree();
        let own = |path: &machinist_base::abs_path::AbsPath| path.as_str().starts_with("/home/ann");
        tree.0.retain(|path, _| own(path));
        tree
    };
    let (ours_home, theirs_home) = (home(&ours), home(&theirs));
    assert!(
        ours_home == theirs_home,
        "{}",
        difference(&ours_home, &theirs_home)
    );
    for tool in ["pwck", "grpck"] {
        let (good, text) = run(&ours, tool, &["-r"]);
        assert!(good, "{tool}: {text}");
    }
}

/// sshd and login(1) refuse a user whose shell does not exist; useradd(8) warns of it as well.
#[test]
fn a_shell_that_is_no_program_is_warned_of() {
    let with_shell = || {
        let account = UserAccount {
            shell: Some(machinist_testkit::sandbox::at("/usr/local/bin/shell")),
            ..UserAccount::default()
        };
        config("shell").user("ann", account)
    };
    let program = |mode| with_shell().file("/usr/local/bin/shell", "#!/bin/sh\n", mode);
    let sandbox = machine();
    for (wanted, is_warned_of) in [
        (with_shell(), true),
        (program(0o644), true),
        (program(0o755), false),
    ] {
        let planned = plan(&sandbox, &wanted, None);
        let warned = planned.warnings.iter().any(|it| {
            it == "shell /usr/local/bin/shell of user ann is no program on this machine: ann cannot log in"
        });
        assert_eq!(warned, is_warned_of, "{:?}", planned.warnings);
    }
}
