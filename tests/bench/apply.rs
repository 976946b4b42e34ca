//! 1,000 changed files of 4 KiB: machinist's way, file by file with fsync, and the same writes with one
//! sync at the end.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use machinist::{
    agent,
    config::{Fragment, Place, Settings},
    machine_config::{self, MachineConfig, Order, Rules},
    root::Root,
    update::run::Desired,
};
use tokio::runtime::Runtime;

use crate::{binary, figure, median, milliseconds, place, rounds};

const FILES: usize = 1000;
const SIZE: usize = 4096;
/// Twenty directories, as `/etc` has its `.d`s.
const DIRECTORIES: usize = 20;

/// Below the tree, without the first slash.
fn path(n: usize) -> String {
    format!("etc/bench/{:02}.d/file-{n:04}.conf", n % DIRECTORIES)
}

fn content(round: usize, n: usize) -> String {
    let mut text = format!("round{round}file{n}");
    text.extend(std::iter::repeat_n('x', SIZE - text.len()));
    text
}

/// The four ways, in the order in which a round goes through them.
const WAYS: [(&str, &str); 4] = [
    (
        "library",
        "machinist: plan, stage, commit, verify (library)",
    ),
    ("command", "machinist apply --yes FILE (the whole process)"),
    ("each", "temp + fsync + rename for each file"),
    ("floor", "temp + rename for each file, one syncfs (floor)"),
];

pub(crate) fn measure() {
    let dir = tempfile::tempdir_in(place()).unwrap();
    let [ours, whole, each, floor] = times(dir.path(), rounds(9));
    println!(
        "\n{FILES} changed files of {SIZE} bytes, median of {} rounds (least – most)",
        ours.len()
    );
    for ((_, what), times) in WAYS.iter().zip([&ours, &whole, &each, &floor]) {
        let (least, most) = (times.iter().min().unwrap(), times.iter().max().unwrap());
        println!(
            "{what:<52} {:>9.1} ms       ({:.1} – {:.1})",
            milliseconds(median(times)),
            milliseconds(*least),
            milliseconds(*most)
        );
    }
    let ratio = |a: &[Duration], b: &[Duration]| median(a).as_secs_f64() / median(b).as_secs_f64();
    let (to_floor, to_each) = (ratio(&ours, &floor), ratio(&each, &ours));
    // Where fsync costs next to nothing, one sync for all cannot be three times as quick.
    let fsync = ratio(&each, &floor);
    let dear = fsync >= 6.0;
    figure(
        "machinist / floor",
        to_floor,
        "times",
        "≤ 2",
        to_floor <= 2.0,
    );
    let goal = if dear { "≥ 3" } else { "–" };
    let holds = !dear || to_each >= 3.0;
    figure("file by file / machinist", to_each, "times", goal, holds);
    println!("(file by file / floor: {fsync:.1}; below 6 fsync is not dear here)");
}

/// The times of each way, round by round.
fn times(dir: &Path, rounds: usize) -> [Vec<Duration>; 4] {
    let tree = |way: usize| dir.join(WAYS[way].0);
    let machinist = Machinist::new(&tree(0));
    let command = Machinist::new(&tree(1));
    make_directories(&tree(2));
    make_directories(&tree(3));
    let mut times = [const { Vec::new() }; 4];
    // The first round only makes the files that the others change.
    for round in 0..=rounds {
        let config = machinist.config(round);
        let manifest = dir.join("manifest.yaml");
        fs::write(&manifest, machine_config::to_machine_config_yaml(&config)).unwrap();
        let took = [
            timed(dir, || machinist.apply(config)),
            timed(dir, || command.apply_by_command(&manifest)),
            timed(dir, || file_by_file(&tree(2), round)),
            timed(dir, || one_sync(&tree(3), round)),
        ];
        for (times, took) in times.iter_mut().zip(took).filter(|_| round > 0) {
            times.push(took);
        }
    }
    for (name, _) in WAYS {
        let last = fs::read_to_string(dir.join(name).join(path(FILES - 1))).unwrap();
        assert_eq!(last, content(rounds, FILES - 1), "{name}");
    }
    times
}

/// The time of `act` with nobody's dirty pages in the way.
fn timed(place: &Path, act: impl FnOnce()) -> Duration {
    sync(place);
    let start = Instant::now();
    act();
    start.elapsed()
}

fn sync(place: &Path) {
    rustix::fs::syncfs(File::open(place).unwrap()).unwrap();
}

fn make_directories(tree: &Path) {
    for n in 0..DIRECTORIES {
        fs::create_dir_all(tree.join(path(n)).parent().unwrap()).unwrap();
    }
}

/// Writes a file beside its place and renames it there.
fn replace(tree: &Path, round: usize, n: usize, durable: bool) {
    let target = tree.join(path(n));
    let beside = target.with_extension("tmp");
    let mut file = File::create_new(&beside).unwrap();
    file.write_all(content(round, n).as_bytes()).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o644))
        .unwrap();
    if durable {
        file.sync_all().unwrap();
    }
    fs::rename(&beside, &target).unwrap();
}

/// As configuration daemons usually do it.
fn file_by_file(tree: &Path, round: usize) {
    for n in 0..FILES {
        replace(tree, round, n, true);
    }
}

fn one_sync(tree: &Path, round: usize) {
    for n in 0..FILES {
        replace(tree, round, n, false);
    }
    sync(tree);
}

/// A root with what is needed to apply to it.
struct Machinist {
    root: Root,
    settings: Settings,
    runtime: Runtime,
}

impl Machinist {
    fn new(tree: &Path) -> Self {
        make_directories(tree);
        let root = Root::open(tree).unwrap();
        let place = Place {
            root: root.clone(),
            dir: "/etc/machinist".parse().unwrap(),
            environment: Vec::new(),
            flags: Fragment::default(),
            own_uid: rustix::process::geteuid().as_raw(),
        };
        Self {
            settings: place.read().unwrap(),
            root,
            runtime: machinist::cli::daemon().unwrap(),
        }
    }

    fn config(&self, round: usize) -> MachineConfig {
        let files = (0..FILES).map(|n| {
            let (path, content) = (path(n), content(round, n));
            format!("      - path: /{path}\n        mode: 0644\n        contents:\n          source: data:,{content}\n")
        });
        let text = format!(
            "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: bench\nspec:\n  config:\n    ignition:\n      version: 3.4.0\n    storage:\n      files:\n{}",
            files.collect::<String>()
        );
        let files = vec![("bench.yaml".to_owned(), text.into_bytes())];
        let (documents, _) =
            machine_config::documents_from_files(files, &Rules::default()).unwrap();
        machine_config::merge(documents, "bench", Order::AsGiven)
            .unwrap()
            .0
    }

    /// Plan, intent, stage, sync, commit, sync, verify: everything between a config and its being done.
    fn apply(&self, config: MachineConfig) {
        let digest = machine_config::digest(&config);
        let desired = Desired::Config(Arc::new(config), digest);
        let applied = agent::apply_once(&self.root, &self.settings, desired, |_| true);
        let report = self.runtime.block_on(applied).unwrap();
        assert_eq!(report.failure, None);
    }

    /// The same as a person runs it: with the start of the process and the reading of the manifest.
    fn apply_by_command(&self, manifest: &Path) {
        let mut command = Command::new(binary());
        command.args(["apply", "--yes", "-o", "json", "--root"]);
        let output = command
            .arg(self.root.display())
            .arg(manifest)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
