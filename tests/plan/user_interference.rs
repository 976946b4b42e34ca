//! Users who fill a file system or change managed files: they block no entry but their own, and cause no reboot.

use machinist_base::reason::Reason;
use machinist_ignition::{Content, EntryOrigin, File, MachineConfig, Owner};
use machinist_plan::{Cost, MachineFacts, MountFacts, Plan, Policies};
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
    observed.mounts.insert(home, full);
    let users = [path("/home/ann/.prof"), path("/home/ann/new")];
    let users = users.map(|path| (path, ANN));
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
    observed
        .users_directories
        .insert(path("/home/ann/.prof"), ANN);
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
