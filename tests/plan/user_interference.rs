//! Users who fill a file system or change managed files: they block no entry but their own, and cause no reboot.

use machinist_base::reason::Reason;
use machinist_ignition::{Content, EntryOrigin, File, MachineConfig, Owner};
use machinist_plan::{Cost, MachineFacts, MountFacts, Plan, Policies, TargetFailures};
use machinist_update::observe::CallerFacts;

use super::support::{LIVE, OFFLINE, Tree, path, show};

const ANN: u32 = 1500;

fn config(files: &[(&str, &str)]) -> MachineConfig {
    let file = |text: &str| File {
        content: Some(Content::new(text.as_bytes().to_vec())),
        mode: Some(0o644),
        user: Some(Owner::ROOT),
        group: Some(Owner::ROOT),
        origin: EntryOrigin::default(),
    };
    let files = files.iter();
    MachineConfig {
        files: files.map(|(at, text)| (path(at), file(text))).collect(),
        ..MachineConfig::default()
    }
}

/// Plans a change on a machine where `/home` is a file system of its own and full, and where ann has removed a file.
fn planned(to: &MachineConfig) -> Result<Plan, Vec<Reason>> {
    let tree = Tree::new();
    let from = config(&[("/home/ann/.prof", "ours"), ("/etc/motd", "one")]);
    tree.write("/etc/motd", "one");
    tree.write("/home/ann/own", "hers");
    let mut observed = tree.observed(&from, to, CallerFacts::default());
    fill_home(&mut observed);
    let plan = machinist_plan::between(&from, to, &observed, &Policies::default(), OFFLINE);
    plan.map_err(|refusals| {
        eprintln!("{}", show(&refusals));
        refusals.into_iter().map(|refusal| refusal.reason).collect()
    })
}

fn fill_home(observed: &mut MachineFacts) {
    let home = path("/home");
    for (at, facts) in &mut observed.objects {
        if *at == home || at.is_under(&home) {
            facts.mount = home.clone();
        }
    }
    let full = MountFacts {
        free_bytes: 0,
        ..observed.mounts[&path("/")].clone()
    };
    observed.mounts.insert(home.clone(), full);
    let users = [path("/home/ann/.prof"), path("/home/ann/new")];
    let users = users.map(|path| (path, ANN));
    let tops = users.clone().map(|(path, _)| (path, home.clone()));
    observed.exposed.extend(users.clone().map(|(path, _)| path));
    observed.user_tops.extend(tops);
    observed.users_directories.extend(users);
}

#[test]
fn an_unchanged_file_of_a_user_on_a_full_file_system_blocks_no_other_entry() {
    let plan = planned(&config(&[
        ("/home/ann/.prof", "ours"),
        ("/etc/motd", "two"),
    ]))
    .unwrap();
    let targets: Vec<_> = plan.operations.iter().map(|it| &it.target).collect();
    assert_eq!(targets, [&path("/etc/motd")]);
    assert_eq!(plan.left_behind.len(), 1, "{:?}", plan.left_behind);
    let left = &plan.left_behind[0];
    assert!(
        left.contains("/home/ann/.prof") && left.contains("not enough space on /home"),
        "{left}"
    );
}

#[test]
fn a_user_who_changes_an_unchanged_file_causes_no_reboot() {
    let tree = Tree::new();
    let config = config(&[("/home/ann/.prof", "ours")]);
    tree.write("/home/ann/.prof", "hers");
    let mut observed = tree.observed(&config, &config, CallerFacts::default());
    let plan = |observed: &MachineFacts| {
        machinist_plan::between(&config, &config, observed, &Policies::default(), LIVE).unwrap()
    };
    assert_eq!(plan(&observed).cost, Cost::Reboot);
    let file = path("/home/ann/.prof");
    observed.exposed.insert(file.clone());
    observed.user_tops.insert(file.clone(), path("/home/ann"));
    observed.users_directories.insert(file, ANN);
    let plan = plan(&observed);
    assert_eq!(plan.operations.len(), 1);
    assert_eq!((plan.cost, plan.drain), (Cost::None, false));
    assert!(
        plan.changes[0].why.ends_with("no reboot is needed"),
        "{:?}",
        plan.changes
    );
}

#[test]
fn a_new_file_on_a_full_file_system_is_refused() {
    let with_new = [("/home/ann/.prof", "ours"), ("/home/ann/new", "new")];
    assert_eq!(planned(&config(&with_new)), Err(vec![Reason::NoSpace]));
}

/// A home with a directory that its owner shares with a group, and one that she does not.
const SHARED: &str = "/home/ann/share";
const FILES: [&str; 8] = [
    "/home/ann/share/a/f",
    "/home/ann/share/b/f",
    "/home/ann/share/c/f",
    "/home/ann/own/a/f",
    "/home/ann/own/b/f",
    "/home/ann/own/c/f",
    "/home/bob/f",
    "/etc/motd",
];

/// The targets of an update of all files, after three updates failed at each of these paths, and what it leaves.
fn planned_after_failures(failed: &[&str], is_recent: bool) -> (Vec<String>, String) {
    let tree = Tree::new();
    for at in FILES {
        tree.write(at, "one");
    }
    let all = |text| config(&FILES.map(|at| (at, text)));
    let (from, to) = (all("one"), all("two"));
    let mut observed = tree.observed(&from, &to, CallerFacts::default());
    for file in FILES.iter().filter(|file| file.starts_with("/home")) {
        observed.exposed.insert(path(file));
        let home = if file.starts_with("/home/ann") {
            "/home/ann"
        } else {
            "/home/bob"
        };
        observed.user_tops.insert(path(file), path(home));
        observed.users_directories.insert(path(file), ANN);
    }
    observed.objects.get_mut(&path("/home/ann")).unwrap().uid = ANN;
    let shared = observed.objects.get_mut(&path(SHARED)).unwrap();
    (shared.mode, shared.uid, shared.gid) = (0o775, ANN, 1501);
    let failures = TargetFailures {
        updates: 3,
        is_recent,
    };
    let failed = failed.iter().map(|at| (path(at), failures));
    observed.changed_targets = failed.collect();
    let plan = machinist_plan::between(&from, &to, &observed, &Policies::default(), OFFLINE);
    let plan = plan.unwrap_or_else(|refusals| panic!("{}", show(&refusals)));
    let targets = plan.operations.iter().map(|it| it.target.to_string());
    (targets.collect(), plan.left_behind.join("\n"))
}

#[test]
fn entries_are_skipped_only_where_those_who_made_updates_fail_may_write() {
    let own = [
        "/etc/motd",
        "/home/ann/own/a/f",
        "/home/ann/own/b/f",
        "/home/ann/own/c/f",
        "/home/bob/f",
    ];
    let (targets, left) = planned_after_failures(&FILES[..1], true);
    let mut expected = own.to_vec();
    expected.extend(["/home/ann/share/b/f", "/home/ann/share/c/f"]);
    expected.sort_unstable();
    assert_eq!(targets, expected);
    assert!(
        left.contains("below /home/ann/share/a during 3 updates"),
        "{left}"
    );
    // Users who share the directory with ann cannot reach her other files.
    let (targets, _) = planned_after_failures(&FILES[..3], true);
    assert_eq!(targets, own);
    let (targets, _) = planned_after_failures(&FILES[3..6], true);
    assert_eq!(targets, ["/etc/motd", "/home/bob/f"]);
    // The mode of her home is hers, and no evidence against the homes of others.
    let (targets, _) = planned_after_failures(&["/home/ann"], true);
    assert_eq!(targets, ["/etc/motd", "/home/bob/f"]);
    // Only root may write there.
    let (targets, _) = planned_after_failures(&["/etc/motd"], true);
    assert_eq!(targets.len(), FILES.len());
    // A user who stopped delays nothing.
    let (targets, _) = planned_after_failures(&FILES[..6], false);
    assert_eq!(targets.len(), FILES.len());
}

/// A config with a file without contents of which the entry sets only the mode.
fn with_mode(at: &str, mode: u32) -> MachineConfig {
    let mut config = config(&[(at, "")]);
    let file = config.files.get_mut(&path(at)).unwrap();
    (file.content, file.mode, file.user, file.group) = (None, Some(mode), None, None);
    config
}

#[test]
fn hard_links_of_users_block_neither_a_new_mode_nor_the_removal_of_an_entry() {
    let at = "/var/log/ann.log";
    let tree = Tree::new();
    tree.write(at, "hers");
    tree.write("/home/ann/.profile", "");
    std::fs::hard_link(tree.at(at), tree.at("/home/ann/log")).unwrap();
    let nothing = MachineConfig::default();
    let from = with_mode(at, 0o640);
    let mut twice = with_mode(at, 0o600);
    twice.files.extend(with_mode("/home/ann/log", 0o644).files);
    let both = with_mode(at, 0o600);
    for (to, owner, is_exposed, expected) in [
        (&both, ANN, false, Ok(vec![at])),
        (&nothing, ANN, false, Ok(vec![at])),
        // Only root can have made the other name, and may not expect that it changes.
        (&both, 0, false, Err(vec![Reason::DuplicateTarget])),
        (&nothing, 0, false, Ok(vec![])),
        // Two entries cannot give one file two modes, and users choose no names below their directories.
        (&twice, ANN, false, Err(vec![Reason::DuplicateTarget])),
        (&twice, ANN, true, Ok(vec![at])),
    ] {
        let mut observed = tree.observed(&from, to, CallerFacts::default());
        observed.objects.get_mut(&path(at)).unwrap().uid = ANN.min(owner);
        let log = observed.objects.get_mut(&path("/home/ann/log"));
        log.into_iter().for_each(|facts| facts.uid = owner);
        let first = machinist_plan::Attributes {
            mode: 0o600,
            uid: owner,
            gid: 0,
        };
        observed.modes.insert(path(at), first);
        if is_exposed {
            let link = path("/home/ann/log");
            observed.users_directories.insert(link, ANN);
        }
        let plan = machinist_plan::between(&from, to, &observed, &Policies::default(), OFFLINE);
        let targets = plan.as_ref().map(|plan| {
            let targets = plan.operations.iter();
            targets.map(|it| it.target.as_str()).collect::<Vec<_>>()
        });
        let targets = targets.map_err(|refusals| {
            let reasons = refusals.iter().map(|refusal| refusal.reason);
            reasons.collect::<Vec<_>>()
        });
        let what = format!("{:?} {owner} {is_exposed}", to.files.keys());
        assert_eq!(targets, expected, "{what}");
    }
}

#[test]
fn the_owner_of_an_object_may_have_changed_its_mode_where_the_config_sets_no_owner() {
    let tree = Tree::new();
    tree.write("/var/log/ann.log", "hers");
    let config = with_mode("/var/log/ann.log", 0o640);
    for (owner, expected) in [(ANN, true), (0, false)] {
        let mut observed = tree.observed(&config, &config, CallerFacts::default());
        for facts in observed.objects.values_mut() {
            facts.uid = owner;
        }
        let drift = machinist_plan::drift(&config, &observed, true);
        assert_eq!(drift.len(), 1, "{drift:?}");
        assert_eq!(drift[0].by_user, expected, "{owner}");
    }
}

#[test]
fn a_difference_that_a_user_may_have_caused_is_told_apart() {
    let tree = Tree::new();
    let at = path("/srv/f");
    let caused = |owner: Owner, mode, text: Option<&str>, change: &dyn Fn(&mut MachineFacts)| {
        tree.write("/srv/f", text.unwrap_or_default());
        if text.is_none() {
            std::fs::remove_file(tree.at("/srv/f")).unwrap();
        }
        let mut config = config(&[("/srv/f", "ours")]);
        let file = config.files.get_mut(&at).unwrap();
        (file.mode, file.user, file.group) = (Some(mode), Some(owner.clone()), Some(owner));
        let mut observed = tree.observed(&config, &config, CallerFacts::default());
        change(&mut observed);
        let drift = machinist_plan::drift(&config, &observed, false);
        assert_eq!(drift.len(), 1, "{drift:?}");
        drift[0].by_user
    };
    let roots = |_: &mut MachineFacts| ();
    let sticky = |observed: &mut MachineFacts| {
        observed.exposed.insert(at.clone());
    };
    let shared = |observed: &mut MachineFacts| {
        observed.exposed.insert(at.clone());
        observed.user_tops.insert(at.clone(), path("/srv"));
    };
    let ann = || Owner::Id(ANN);
    for (owner, mode, text, change, expected) in [
        (Owner::ROOT, 0o644, None, &roots as &dyn Fn(&mut _), false),
        (Owner::ROOT, 0o644, Some("theirs"), &roots, false),
        (Owner::ROOT, 0o646, Some("theirs"), &roots, true),
        (Owner::ROOT, 0o646, None, &roots, false),
        (Owner::ROOT, 0o664, Some("theirs"), &roots, false),
        (ann(), 0o664, Some("theirs"), &roots, true),
        (ann(), 0o644, None, &roots, false),
        (ann(), 0o644, None, &sticky, true),
        (Owner::ROOT, 0o644, None, &sticky, false),
        (Owner::ROOT, 0o644, None, &shared, true),
    ] {
        let what = format!("{owner:?} {mode:o} {text:?}");
        assert_eq!(caused(owner, mode, text, change), expected, "{what}");
    }
}
