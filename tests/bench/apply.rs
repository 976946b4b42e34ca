//! 1,000 changed files of 4 KiB: machinist's way, file by file with fsync, and the same writes with
//! one sync at the end.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    figure, median, milliseconds, place, ratio, rounds,
    tree::{Machinist, config, make_directories, path},
};

const FILES: usize = 1000;
const SIZE: usize = 4096;
fn content(round: usize, n: usize) -> String {
    crate::tree::content(round, n, SIZE)
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

/// The durations of each way, round by round.
fn times(dir: &Path, rounds: usize) -> [Vec<Duration>; 4] {
    let tree = |way: usize| dir.join(WAYS[way].0);
    let machinist = Machinist::new(&tree(0));
    let command = Machinist::new(&tree(1));
    make_directories(&tree(2));
    make_directories(&tree(3));
    let mut times = [const { Vec::new() }; 4];
    // The first round only makes the files that the others change.
    for round in 0..=rounds {
        let config = config(FILES, |n| content(round, n));
        let manifest = dir.join("manifest.yaml");
        fs::write(
            &manifest,
            machinist_ignition::to_machine_config_yaml(&config).unwrap(),
        )
        .unwrap();
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

/// The duration of `act`, after all dirty pages were written.
pub(crate) fn timed(place: &Path, act: impl FnOnce()) -> Duration {
    sync(place);
    let start = Instant::now();
    act();
    start.elapsed()
}

fn sync(place: &Path) {
    rustix::fs::syncfs(File::open(place).unwrap()).unwrap();
}

/// Writes a temporary file and renames it over the old one.
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

/// The way of most configuration daemons.
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
