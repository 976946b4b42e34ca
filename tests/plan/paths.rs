//! Random configs on random machines where kinds differ and one object has several names: after a
//! plan was carried out nothing is left to do, and no foreign object is lost with a directory or
//! the layout.

use std::collections::{BTreeMap, BTreeSet};

use machinist_base::abs_path::AbsPath;
use machinist_ignition::{
    Content, Directory, EntryOrigin, File, Link, MachineConfig, Overwrite, Owner,
};
use machinist_plan::Policies;
use machinist_update::observe::CallerFacts;

use super::support::{Dice, OFFLINE, Tree, from_environment, path, show};

/// Several of them name one object, through links of the machine or of the config.
const NAMES: [&str; 20] = [
    "/data",
    "/data/a",
    "/data/d",
    "/data/d/b",
    "/etc/x",
    "/etc/x/y",
    "/home",
    "/home/a",
    "/home/d",
    "/var/home/a",
    "/var/home/d/b",
    "/lib",
    "/lib/a",
    "/usr/lib/a",
    "/srv/l",
    "/srv/l/a",
    "/srv/l/d/b",
    "/srv/m",
    "/srv/m/a",
    "/srv/n/a",
];

const TARGETS: [&str; 8] = [
    "/data",
    "l",
    "m",
    "../data/d",
    "/srv/m",
    "/nowhere",
    "a",
    "/home/d",
];

/// A machine with existing content.
fn machine(dice: &mut Dice) -> Tree {
    let tree = Tree::new();
    tree.link("/home", "var/home");
    tree.link("/lib", "usr/lib");
    tree.write("/usr/lib/found", "found");
    tree.write("/var/home/found", "found");
    for name in [
        "/data/a",
        "/data/d/b",
        "/etc/x/y",
        "/srv/m/a",
        "/var/home/d/b",
    ] {
        if dice.one_in(3) {
            tree.write(name, dice.pick::<&str>(&["found", "one", ""]));
        }
    }
    for name in ["/srv/l", "/etc/x", "/srv/m", "/srv/n", "/var/home/d"] {
        let exists = std::fs::symlink_metadata(tree.at(name)).is_ok();
        match dice.below(6) {
            _ if exists => {}
            0 | 1 => tree.link(name, dice.pick::<&str>(&TARGETS)),
            2 => tree.write(name, "found"),
            3 => std::fs::create_dir_all(tree.at(name)).unwrap(),
            _ => {}
        }
    }
    tree
}

fn config(dice: &mut Dice) -> MachineConfig {
    let mut config = MachineConfig::default();
    for name in NAMES {
        let name = path(name);
        if name
            .ancestors()
            .any(|above| config.files.contains_key(&above))
        {
            continue;
        }
        // Few, so that most configs do not contradict themselves or the machine.
        match dice.below(40) {
            0 | 1 => drop(config.files.insert(name, file(dice))),
            2 | 3 => drop(config.directories.insert(name, directory(dice))),
            4 => drop(config.links.insert(name, link(dice))),
            _ => {}
        }
    }
    let except = config.files.keys().chain(config.links.keys()).cloned();
    let except = except.filter(|_| dice.one_in(3)).collect();
    config.overwrite = match dice.one_in(4) {
        true => Overwrite::Any,
        false => Overwrite::Except(except),
    };
    config
}

fn file(dice: &mut Dice) -> File {
    let text = *dice.pick(&["one", "two", ""]);
    let content = (!dice.one_in(3)).then(|| Content::new(text.as_bytes().to_vec()));
    let given = content.is_some();
    File {
        mode: (given || dice.one_in(2)).then(|| *dice.pick(&[0o644, 0o600])),
        user: given.then_some(Owner::ROOT),
        group: given.then_some(Owner::ROOT),
        content,
        origin: EntryOrigin::default(),
    }
}

fn directory(dice: &mut Dice) -> Directory {
    let owner = dice.one_in(2).then_some(Owner::ROOT);
    Directory {
        mode: (!dice.one_in(3)).then(|| *dice.pick(&[0o755, 0o700])),
        user: owner.clone(),
        group: owner,
        origin: EntryOrigin::default(),
    }
}

fn link(dice: &mut Dice) -> Link {
    Link {
        hard: false,
        target: (*dice.pick(&TARGETS)).to_owned(),
        user: Owner::ROOT,
        group: Owner::ROOT,
        origin: EntryOrigin::default(),
    }
}

/// The lost objects: those of `before` that are missing or of another kind, and whose own path no
/// operation names.
fn lost(
    before: &BTreeMap<String, String>,
    tree: &Tree,
    targets: &BTreeSet<AbsPath>,
) -> Vec<String> {
    let kind = |what: &str| what.split(' ').next().map(str::to_owned);
    let after = tree.dump();
    let gone = before.iter().filter(|(name, what)| {
        let now = after.get(*name).map(String::as_str);
        let same = now.is_some_and(|now| kind(now) == kind(what));
        !same && !targets.contains(&path(&format!("/{name}")))
    });
    gone.map(|(name, what)| format!("{name} {what}")).collect()
}

#[test]
fn a_plan_with_several_paths_and_kinds_converges_without_loss() {
    let seed = from_environment("PLAN_SEED", 1);
    let (mut done, mut refused) = (0_u64, 0_u64);
    for round in 0..from_environment("PLAN_ROUNDS", 150) {
        let mut dice = Dice(seed.wrapping_mul(15_485_863).wrapping_add(round));
        let tree = machine(&mut dice);
        let found = tree.dump();
        let mut from = MachineConfig::default();
        for step in 0..3 {
            let to = config(&mut dice);
            let context = || {
                format!(
                    "PLAN_SEED={seed}, round {round}, step {step}:\n{found:#?}\nfrom {from:#?}\nto {to:#?}"
                )
            };
            let observed = tree.observed(&from, &to, CallerFacts::default());
            let planned =
                machinist_plan::between(&from, &to, &observed, &Policies::default(), OFFLINE);
            let Ok(plan) = planned else {
                refused += 1;
                continue;
            };
            done += 1;
            tree.apply(&plan);
            let observed = tree.observed(&to, &to, CallerFacts::default());
            let again = machinist_plan::between(&to, &to, &observed, &Policies::default(), OFFLINE);
            let again =
                again.unwrap_or_else(|refusals| panic!("{}\n{}", context(), show(&refusals)));
            assert!(
                again.operations.is_empty(),
                "{}\nfirst {:#?}\nagain {:#?}",
                context(),
                plan.operations,
                again.operations
            );
            assert_eq!(
                machinist_plan::drift(&to, &observed, false),
                [],
                "{}",
                context()
            );
            if step == 0 {
                let operations = plan.operations.iter();
                let targets = operations
                    .map(|operation| operation.target.clone())
                    .collect();
                assert_eq!(lost(&found, &tree, &targets), [""; 0], "{}", context());
            }
            for layout in [("home", "link var/home"), ("lib", "link usr/lib")] {
                let now = tree.dump();
                assert_eq!(now[layout.0], layout.1, "{}", context());
            }
            from = to;
        }
    }
    assert!(
        done * 3 > refused,
        "{done} plans were carried out, {refused} refused"
    );
}
