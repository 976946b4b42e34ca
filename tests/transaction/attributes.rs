//! Access control lists and user attributes: which of them a new file takes over from the old one.

use machinist_ignition::Owner;
use machinist_plan::{Capabilities, Plan, Policies};
use machinist_update::{cache::ObservationCache, observe_and_plan};
use rustix::fs::{XattrFlags, getxattr, setxattr};

use machinist_testkit::{
    sandbox::{Sandbox, Written, at, conduct, config},
    stepwise_update::StepwiseUpdate,
};

const LIST: &str = "system.posix_acl_access";

/// A list that lets user 1001 read and write, in the format of posix_acl_xattr: version, then tag,
/// permissions and id of each entry.
pub(super) fn list_for_1001() -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, NONE),
        (0x02, 6, 1001),
        (0x04, 4, NONE),
        (0x10, 6, NONE),
        (0x20, 0, NONE),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

/// A machine where `/etc/app` is a file of `owner` with an access control list and an attribute;
/// `None` where this process cannot create one.
fn machine(owner: u32) -> Option<Sandbox> {
    if !nix::unistd::geteuid().is_root() {
        println!("not tried: only root may give files away");
        return None;
    }
    let sandbox = Sandbox::new();
    sandbox.write("/etc/app", "found\n");
    let file = sandbox.path("/etc/app");
    for (name, value) in [(LIST, list_for_1001()), ("user.note", b"kept".to_vec())] {
        if let Err(error) = setxattr(&file, name, &value, XattrFlags::empty()) {
            println!("not tried: {name} cannot be set here: {error}");
            return None;
        }
    }
    std::os::unix::fs::chown(&file, Some(owner), Some(owner)).unwrap();
    Some(sandbox)
}

/// A config with `/etc/app` as a file of `owner` that its group may write.
fn wanted(owner: u32) -> Written {
    let mut wanted = config("wanted").file("/etc/app", "ours\n", 0o660);
    let file = wanted.0.files.get_mut(&at("/etc/app")).unwrap();
    (file.user, file.group) = (Some(Owner::Id(owner)), Some(Owner::Id(owner)));
    wanted
}

fn attributes(sandbox: &Sandbox) -> Vec<&'static str> {
    let has = |name: &&str| getxattr(sandbox.path("/etc/app"), *name, &mut [0; 256]).is_ok();
    let names = [LIST, "user.note"].into_iter();
    names.filter(has).collect()
}

fn plan(sandbox: &Sandbox, to: &Written) -> Plan {
    let (journal, policies) = (sandbox.journal(), Policies::default());
    let remembered = ObservationCache::default();
    let how = observe_and_plan::PlanOptions {
        remembered: &remembered,
        policies: &policies,
        capabilities: Capabilities {
            chown: true,
            ..conduct(false).capabilities
        },
        units: None,
        only: None,
    };
    let looked = observe_and_plan::observe_and_plan(&sandbox.root(), &journal, &to.0, how).unwrap();
    looked.plan.unwrap()
}

#[test]
fn xattrs_of_another_users_file_are_not_copied_to_a_root_file() {
    let Some(sandbox) = machine(1000) else { return };
    let warnings = plan(&sandbox, &wanted(0)).warnings;
    let output = warnings.iter().any(|warning| {
        warning.starts_with("/etc/app belongs to user 1000: its access control list")
    });
    assert!(output, "{warnings:?}");
    sandbox.applied(&wanted(0));
    assert_eq!(attributes(&sandbox), [""; 0]);
    assert!(plan(&sandbox, &wanted(0)).warnings.is_empty());
    // The original file is restored unchanged.
    sandbox.applied(&config("empty"));
    assert_eq!(attributes(&sandbox), [LIST, "user.note"]);
}

#[test]
fn xattrs_are_copied_from_files_of_root_and_of_the_new_owner() {
    for (before, after) in [(0, 0), (0, 1000), (1000, 1000)] {
        let Some(sandbox) = machine(before) else {
            return;
        };
        let warnings = plan(&sandbox, &wanted(after)).warnings;
        assert!(warnings.is_empty(), "{warnings:?}");
        sandbox.applied(&wanted(after));
        assert_eq!(
            attributes(&sandbox),
            [LIST, "user.note"],
            "{before} {after}"
        );
    }
}

#[test]
fn xattrs_are_dropped_when_a_file_moves_between_two_users() {
    let Some(sandbox) = machine(1000) else { return };
    sandbox.applied(&wanted(1002));
    assert_eq!(attributes(&sandbox), [""; 0]);
}

/// A directory of user 1000 that its access control lists let user 1001 write to.
fn directory() -> Option<Sandbox> {
    let sandbox = machine(0)?;
    let directory = sandbox.path("/srv/app");
    std::fs::create_dir_all(&directory).unwrap();
    for name in [LIST, "system.posix_acl_default"] {
        setxattr(&directory, name, &list_for_1001(), XattrFlags::empty()).unwrap();
    }
    std::os::unix::fs::chown(&directory, Some(1000), Some(1000)).unwrap();
    Some(sandbox)
}

fn lists(sandbox: &Sandbox) -> [Option<Vec<u8>>; 2] {
    [LIST, "system.posix_acl_default"].map(|name| {
        let mut value = vec![0; 256];
        let length = getxattr(sandbox.path("/srv/app"), name, &mut value[..]).ok()?;
        value.truncate(length);
        Some(value)
    })
}

#[test]
fn a_directory_passed_to_root_loses_its_acls_until_rollback() {
    let Some(sandbox) = directory() else { return };
    let before = lists(&sandbox);
    assert!(before.iter().all(Option::is_some));
    let wanted = config("wanted").dir("/srv/app", 0o775);
    let warnings = plan(&sandbox, &wanted).warnings;
    let output = |warning: &String| {
        warning.starts_with("the owner of /srv/app changes from user 1000 to user 0")
    };
    assert!(warnings.iter().any(output), "{warnings:?}");
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    hand.stage(&wanted).unwrap();
    hand.commit().unwrap();
    assert_eq!(lists(&sandbox), [None, None]);
    hand.undo().unwrap();
    assert_eq!(lists(&sandbox), before);
    drop(hand);
    sandbox.applied(&wanted);
    assert_eq!(lists(&sandbox), [None, None]);
}

#[test]
fn a_directory_that_keeps_its_owner_keeps_its_acls() {
    let Some(sandbox) = directory() else { return };
    let before = lists(&sandbox);
    let mut wanted = config("wanted").dir("/srv/app", 0o775);
    let directory = wanted.0.directories.get_mut(&at("/srv/app")).unwrap();
    (directory.user, directory.group) = (Some(Owner::Id(1000)), Some(Owner::Id(0)));
    sandbox.applied(&wanted);
    assert_eq!(lists(&sandbox)[1], before[1]);
    assert!(lists(&sandbox)[0].is_some());
}
