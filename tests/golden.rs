//! Whole updates as directories: the machine before, the config, the plan, the machine afterwards,
//! and the machine after a rollback. A case is a directory below `tests/golden/update`:
//!
//! * `before.txt`: the machine, one object a line (`/etc/motd file 644 "text"`, `/srv/d dir 755`,
//!   `/etc/l link to`, `/srv/other hard /etc/motd` for another name of a file above it); empty if
//!   there is nothing;
//! * `from.yaml`: the current config, if there is one; `to.yaml`, or `to.bu` with the files beside
//!   it: the desired config;
//! * `plan.txt`, `after.txt`: the expected plan and machine.
//!
//! The rollback has no file: it must restore exactly the machine before the update, and so must an
//! update back to the previous config. `UPDATE_GOLDEN=1` writes the files; a reviewer checks the
//! difference.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays everybody else who writes into the tree"
)]

use machinist_testkit::{first_config, object_kinds, sandbox, stepwise_update};
use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use machinist_agent::config_dir::LocalFiles;
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{ConfigRules, MachineConfig, Overwrite, documents_from_files};
use machinist_plan::{Capabilities, HostKind, OsCapabilities, Plan, Policies};
use machinist_rootfs::{Root, SnapshotObject, TreeSnapshot};
use machinist_update::{cache::ObservationCache, observe_and_plan, store};

use sandbox::{
    NoServices, Sandbox, Written, at, conduct, difference, from_environment, long, once,
    without_staging,
};
use stepwise_update::StepwiseUpdate;

const OFFLINE: Capabilities = Capabilities {
    live: false,
    chown: false,
    os: OsCapabilities::without_provider(HostKind::Unknown),
};

#[test]
fn each_golden_update_plans_applies_and_rolls_back_as_recorded() {
    let mut cases: Vec<PathBuf> = fs::read_dir("tests/golden/update")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    cases.sort();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    for case in cases {
        Case { dir: &case }.check();
    }
}

/// The result of a config does not depend on the configs before it, and nothing is left when all of
/// them are removed.
#[test]
fn the_result_does_not_depend_on_the_update_path() {
    let rounds = from_environment("ROUNDS").unwrap_or(if long() { 2_000 } else { 25 });
    let seed = from_environment("SEED").unwrap_or(1);
    for round in seed..seed + rounds {
        let mut numbers = object_kinds::Numbers(round);
        let found = object_kinds::FOUND[numbers.below(object_kinds::FOUND.len())];
        let way: Vec<_> = (0..4).map(|_| object_kinds::any(&mut numbers)).collect();
        let configs = way
            .iter()
            .map(|(file, directory)| object_kinds::config(file, directory));
        let message = format!("ROUNDS=1 SEED={round}: {found:?} {way:?}");
        walk(found, configs.map(Written).collect(), &message);
    }
}

fn walk(found: &str, way: Vec<Written>, message: &str) {
    let start = || {
        let sandbox = Sandbox::without_package(&[]);
        for line in found.lines() {
            make(&sandbox, line).unwrap();
        }
        sandbox
    };
    let walked = start();
    let as_found = seen(&walked);
    for (step, config) in way.iter().enumerate() {
        apply(&walked, config);
        let again = plan(&walked, config);
        assert!(
            again.is_empty(),
            "{message}, step {step}: {}",
            again.to_text(false)
        );
        let direct = start();
        apply(&direct, config);
        let other = difference(&seen(&direct), &seen(&walked));
        assert_eq!(other, "", "{message}, step {step}");
    }
    apply(&walked, &Written::default());
    assert_eq!(
        difference(&as_found, &seen(&walked)),
        "",
        "{message}, at the end"
    );
}

/// The previous version stored absent fields as empty or default values: an unchanged config that
/// it stored causes no update.
#[test]
fn a_config_stored_by_the_previous_version_plans_no_change() {
    let mut configs: Vec<(String, Written)> = Vec::new();
    for case in fs::read_dir("tests/golden/update").unwrap() {
        let dir = case.unwrap().path();
        let case = Case { dir: &dir };
        if fs::read_to_string(dir.join("after.txt")).unwrap() != "refused\n" {
            configs.extend(case.config("to").map(|to| (dir.display().to_string(), to)));
        }
    }
    for (file, directory) in object_kinds::FILES
        .iter()
        .zip(object_kinds::DIRECTORIES.iter().cycle())
    {
        let config = Written(object_kinds::config(file, directory));
        configs.push((format!("{file} {directory}"), config));
    }
    let mut absent = 0;
    for (message, config) in configs {
        let name = Path::new(&message).join("before.txt");
        let found = fs::read_to_string(name).unwrap_or_else(|_| object_kinds::FOUND[7].to_owned());
        let sandbox = Sandbox::without_package(&[]);
        found.lines().for_each(|line| make(&sandbox, line).unwrap());
        let stored = config.0.with_defaults().into_owned();
        // That version also refused a directory over a link to a directory.
        let stored = Written(stored);
        if plan(&sandbox, &stored)
            .refusals
            .iter()
            .any(|refusal| refusal.reason == Reason::KindDiffers)
        {
            continue;
        }
        absent += usize::from(stored.0 != config.0);
        apply(&sandbox, &stored);
        let mut update = StepwiseUpdate::open(&sandbox.root());
        if let Some(base) = &mut update.journal.base {
            base.tells_absent = false;
        }
        update.store.save(&update.journal).unwrap();
        drop(update);
        let as_stored = seen(&sandbox);
        let plan = plan(&sandbox, &config);
        assert!(plan.is_empty(), "{message}: {}", plan.to_text(false));
        apply(&sandbox, &config);
        assert_eq!(difference(&as_stored, &seen(&sandbox)), "", "{message}");
    }
    assert!(absent >= 5, "{absent}");
}

/// Only a change of fields that no update can change is refused, also in a first config.
#[test]
fn a_first_config_is_compared_with_the_config_of_machine_config_daemon() {
    use first_config::{CURRENT_CONFIG, ENCAPSULATED, rendered};
    let same = rendered("rendered-worker-1", "/dev/sda");
    let other = rendered("rendered-worker-0", "/dev/sdx");
    let to = next_config();
    let cases: [(&[(&str, &serde_json::Value)], usize); 5] = [
        (&[(CURRENT_CONFIG, &same)], 0),
        (&[(ENCAPSULATED, &same)], 0),
        // The daemon's file is newer than that of the first boot.
        (&[(ENCAPSULATED, &other), (CURRENT_CONFIG, &same)], 0),
        (&[(ENCAPSULATED, &same), (CURRENT_CONFIG, &other)], 1),
        // Nothing is known about this machine: every such field but the two images, which share one
        // reason, is refused.
        (&[], 9),
    ];
    for (files, refusals) in cases {
        let sandbox = Sandbox::without_package(&[]);
        for (path, object) in files {
            let text = serde_json::to_string(&object.to_string()).unwrap();
            make(&sandbox, &format!("{path} file 600 {text}")).unwrap();
        }
        let plan = plan(&sandbox, &to);
        let message = plan.to_text(false);
        assert_eq!(plan.refusals.len(), refusals, "{files:?}: {message}");
    }
}

/// A config like those that the other daemon left.
fn next_config() -> Written {
    let to = first_config::rendered("rendered-worker-2", "/dev/sda").to_string();
    let documents = machinist_ignition::parse(&to, "to.json", &ConfigRules::default()).unwrap();
    let order = machinist_ignition::MergeOrder::AsGiven;
    let merged = machinist_ignition::merge(documents, "worker", order);
    Written(merged.unwrap().0)
}

#[test]
fn a_config_of_another_daemon_that_cannot_be_read_is_reported() {
    use first_config::{CURRENT_CONFIG, ENCAPSULATED, rendered};
    let sandbox = Sandbox::without_package(&[]);
    let same = rendered("rendered-worker-1", "/dev/sda").to_string();
    let whole = serde_json::to_string(&same).unwrap();
    make(&sandbox, &format!("{ENCAPSULATED} file 600 {whole}")).unwrap();
    let warned = |sandbox: &Sandbox| {
        let plan = plan(sandbox, &next_config());
        assert!(plan.refusals.is_empty(), "{}", plan.to_text(false));
        let warnings = plan.warnings;
        let message = format!("{CURRENT_CONFIG} is not a MachineConfig");
        warnings.iter().any(|warning| warning.starts_with(&message))
    };
    assert!(!warned(&sandbox));
    make(&sandbox, &format!("{CURRENT_CONFIG} file 600 \"{{\"")).unwrap();
    assert!(warned(&sandbox));
}

struct Case<'a> {
    dir: &'a Path,
}

impl Case<'_> {
    fn check(&self) {
        let (mut from, to) = (self.config("from"), self.config("to"));
        // The machine is on it; another version may have applied it.
        if let Some(Written(from)) = &mut from {
            from.overwrite = Overwrite::Any;
        }
        let to = to.unwrap_or_default();
        let sandbox = self.machine(from.as_ref());
        let before = seen(&sandbox);
        let plan = plan(&sandbox, &to);
        self.compare("plan.txt", &plan.to_text(false));
        if !plan.refusals.is_empty() {
            self.compare("after.txt", "refused\n");
            return;
        }

        // Committed, and rolled back.
        let mut update = StepwiseUpdate::open(&sandbox.root());
        update.stage(&to).unwrap();
        update.commit().unwrap();
        update.undo().unwrap();
        drop(update);
        self.same(&before, &seen(&sandbox), "the undo");

        apply(&sandbox, &to);
        self.compare("after.txt", &listing(&seen(&sandbox)));
        apply(&sandbox, &from.unwrap_or_default());
        self.same(&before, &seen(&sandbox), "the way back");
    }

    /// The config in `name.yaml`, or in `name.bu` with the files beside it.
    fn config(&self, name: &str) -> Option<Written> {
        let files = ["yaml", "bu"].map(|ending| format!("{name}.{ending}"));
        let texts = files
            .into_iter()
            .filter_map(|file| Some((file.clone(), fs::read(self.dir.join(file)).ok()?)));
        let texts: Vec<_> = texts.take(1).collect();
        let (file, _) = texts.first()?;
        let mut local = LocalFiles::new(Root::open(self.dir).unwrap());
        local.text(file, AbsPath::root());
        let read = documents_from_files(texts, &ConfigRules::default(), &local);
        let order = machinist_ignition::MergeOrder::AsGiven;
        let (config, _) = read
            .and_then(|(documents, _)| machinist_ignition::merge(documents, "worker", order))
            .unwrap_or_else(|refusals| panic!("{}: {refusals:?}", self.dir.display()));
        let name = name.to_owned();
        Some(Written(MachineConfig { name, ..config }))
    }

    /// The machine before, updated to the previous config.
    fn machine(&self, from: Option<&Written>) -> Sandbox {
        let sandbox = Sandbox::without_package(&[]);
        let found = fs::read_to_string(self.dir.join("before.txt")).unwrap_or_default();
        for line in found.lines() {
            make(&sandbox, line).unwrap_or_else(|| panic!("{}: {line}", self.dir.display()));
        }
        if let Some(from) = from {
            apply(&sandbox, from);
        }
        sandbox
    }

    fn compare(&self, name: &str, found: &str) {
        let file = self.dir.join(name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(&file, found).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        assert!(expected == found, "{} differs:\n{found}", file.display());
    }

    fn same(&self, before: &TreeSnapshot, after: &TreeSnapshot, what: &str) {
        let message = difference(before, after);
        assert!(
            before == after,
            "{}: {what} gives\n{message}",
            self.dir.display()
        );
    }
}

/// Creates the object that one line describes.
fn make(sandbox: &Sandbox, line: &str) -> Option<()> {
    let mut words = line.splitn(4, ' ');
    let (named, kind) = (at(words.next()?), words.next()?);
    // Independent of the umask.
    sandbox.root().make_dirs(&named.parent()?, 0o755).ok()?;
    let path = sandbox.path(named.as_str());
    let mut mode = || u32::from_str_radix(words.next()?, 8).ok();
    match kind {
        "file" => {
            let mode = mode()?;
            let text: String = serde_json::from_str(words.next()?).ok()?;
            fs::write(&path, text).ok()?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).ok()
        }
        "dir" => {
            fs::create_dir_all(&path).ok()?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode()?)).ok()
        }
        "link" => symlink(words.next()?, &path).ok(),
        "hard" => fs::hard_link(sandbox.path(words.next()?), &path).ok(),
        _ => None,
    }
}

fn plan(sandbox: &Sandbox, to: &Written) -> Plan {
    let (root, policies) = (sandbox.root(), Policies::default());
    let journal = store::peek(&root).unwrap();
    let remembered = ObservationCache::default();
    let how = observe_and_plan::PlanOptions {
        policies: &policies,
        capabilities: OFFLINE,
        units: None,
        only: None,
        remembered: &remembered,
    };
    let looked = observe_and_plan::observe_and_plan(&root, &journal, &to.0, how).unwrap();
    let refused = |refusals| Plan::refused(&looked.from, &to.0, refusals);
    looked.plan.unwrap_or_else(refused)
}

fn apply(sandbox: &Sandbox, to: &Written) {
    let conduct = machinist_update::reconciler::ReconcilerOptions {
        capabilities: OFFLINE,
        ..conduct(false)
    };
    let report = once(&sandbox.root(), None::<NoServices>, conduct, to).unwrap();
    assert_eq!(report.failure, None);
}

fn seen(sandbox: &Sandbox) -> TreeSnapshot {
    without_staging(&sandbox.tree())
}

/// The format of `before.txt`, without the directories that every machine here has.
fn listing(tree: &TreeSnapshot) -> String {
    let mut lines = String::new();
    for (path, node) in &tree.0 {
        let path = path.as_str();
        if ["/", "/etc", "/var", "/var/lib"].contains(&path) {
            continue;
        }
        lines += &match &node.object {
            _ if node.same.is_some() => {
                format!("{path} hard {}\n", node.same.as_ref().unwrap())
            }
            SnapshotObject::File(bytes) => {
                let text = serde_json::to_string(&String::from_utf8_lossy(bytes)).unwrap();
                format!("{path} file {:o} {text}\n", node.mode)
            }
            SnapshotObject::Directory => format!("{path} dir {:o}\n", node.mode),
            SnapshotObject::Link(to) => format!("{path} link {to}\n"),
            SnapshotObject::Socket => format!("{path} socket\n"),
        };
    }
    lines
}
