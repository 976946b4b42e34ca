//! Users who change their own password, shell or name while an update changes the same accounts.

use machinist_ignition::{Group, PasswordHash, UserAccount};
use machinist_testkit::{
    sandbox::{Sandbox, Written, at, config},
    stepwise_update::StepwiseUpdate,
};

use super::accounts::{ann, edit, machine};

fn bobs_fields() -> Written {
    let account = UserAccount {
        shell: Some(at("/bin/zsh")),
        gecos: Some("Robert".to_owned()),
        password_hash: PasswordHash::new("$6$salt$config"),
        ..UserAccount::default()
    };
    config("bob").user("bob", account)
}

fn without_bob() -> Written {
    let account = UserAccount {
        should_exist: Some(false),
        ..UserAccount::default()
    };
    config("without").user("bob", account)
}

fn without_group(name: &str) -> Written {
    let mut wanted = config("without");
    let group = Group {
        should_exist: Some(false),
        ..Group::default()
    };
    wanted.0.groups.insert(name.to_owned(), group);
    wanted
}

/// Does what chfn, chsh and passwd do.
fn change_own_fields(sandbox: &Sandbox, name: &str) {
    let change = |path: &str, indexes: &[usize]| {
        let text = sandbox.read(path).unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let mut fields: Vec<&str> = line.split(':').collect();
        for index in indexes {
            fields[*index] = "7777";
        }
        edit(sandbox, path, line, &fields.join(":"));
    };
    change("/etc/passwd", &[4, 6]);
    change("/etc/shadow", &[1, 2]);
}

fn lines_of(sandbox: &Sandbox, name: &str) -> [Option<String>; 2] {
    ["/etc/passwd", "/etc/shadow"].map(|path| {
        let text = sandbox.read(path).unwrap();
        let line = text.lines().find(|line| line.starts_with(name));
        line.map(str::to_owned)
    })
}

#[test]
fn fields_that_a_user_changed_after_staging_have_the_value_of_the_config() {
    let sandbox = machine();
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&bobs_fields()).unwrap();
    change_own_fields(&sandbox, "bob");
    hand.commit().unwrap();
    let [passwd, shadow] = lines_of(&sandbox, "bob").map(Option::unwrap);
    assert!(passwd.ends_with(":Robert:/home/bob:/bin/zsh"), "{passwd}");
    assert!(shadow.starts_with("bob:$6$salt$config:7777:"), "{shadow}");
    // Recovery repeats the commit.
    change_own_fields(&sandbox, "bob");
    hand.commit().unwrap();
    assert_eq!(lines_of(&sandbox, "bob")[0].as_ref(), Some(&passwd));
    // A rollback keeps what the user has set since the commit.
    change_own_fields(&sandbox, "bob");
    let own = lines_of(&sandbox, "bob");
    hand.undo().unwrap();
    assert_eq!(lines_of(&sandbox, "bob"), own);
}

#[test]
fn a_user_who_changes_own_fields_does_not_prevent_the_removal_of_the_account() {
    let sandbox = machine();
    let before = lines_of(&sandbox, "bob");
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&without_bob()).unwrap();
    change_own_fields(&sandbox, "bob");
    hand.commit().unwrap();
    assert_eq!(lines_of(&sandbox, "bob"), [None, None]);
    hand.undo().unwrap();
    assert_eq!(lines_of(&sandbox, "bob"), before);
}

#[test]
fn a_rollback_removes_a_new_user_who_has_changed_own_fields() {
    let sandbox = machine();
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&ann()).unwrap();
    hand.commit().unwrap();
    change_own_fields(&sandbox, "ann");
    hand.undo().unwrap();
    assert_eq!(lines_of(&sandbox, "ann"), [None, None]);
}

#[test]
fn a_field_that_only_root_may_change_still_stops_the_commit() {
    for (from, to) in [("bob:x:1000:", "bob:x:1007:"), ("/home/bob", "/srv/bob")] {
        let sandbox = machine();
        let mut hand = StepwiseUpdate::open(&sandbox.root());
        hand.stage(&without_bob()).unwrap();
        edit(&sandbox, "/etc/passwd", from, to);
        hand.commit().unwrap_err();
        assert!(lines_of(&sandbox, "bob")[0].is_some());
    }
}

/// gpasswd lets the administrators of a group change its members and its password.
#[test]
fn a_group_whose_members_change_is_removed_and_restored() {
    let sandbox = machine();
    edit(&sandbox, "/etc/gshadow", "sudo:*::bob", "sudo:*:bob:bob");
    let before = sandbox.read("/etc/group");
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&without_group("sudo")).unwrap();
    edit(&sandbox, "/etc/group", "sudo:x:27:bob", "sudo:x:27:");
    edit(&sandbox, "/etc/gshadow", "sudo:*:bob:bob", "sudo:!:bob:");
    hand.commit().unwrap();
    assert!(!sandbox.read("/etc/group").unwrap().contains("sudo:"));
    assert!(!sandbox.read("/etc/gshadow").unwrap().contains("sudo:"));
    hand.undo().unwrap();
    assert_eq!(sandbox.read("/etc/group"), before);
}

/// vipw holds the lock of the account databases for as long as its editor is open.
#[test]
fn a_rollback_without_account_changes_does_not_wait_for_the_lock_of_the_databases() {
    let sandbox = machine();
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&bobs_fields()).unwrap();
    let before = lines_of(&sandbox, "bob");
    sandbox.write("/etc/.pwd.lock", "");
    let lock = std::fs::File::options()
        .write(true)
        .open(sandbox.path("/etc/.pwd.lock"));
    let lock = lock.unwrap();
    let whole_file = nix::libc::flock {
        l_type: i16::try_from(nix::libc::F_WRLCK).unwrap(),
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    nix::fcntl::fcntl(&lock, nix::fcntl::FcntlArg::F_OFD_SETLK(&whole_file)).unwrap();
    hand.undo().unwrap();
    assert_eq!(lines_of(&sandbox, "bob"), before);
}
