//! Large configs: one change among many files, verification, rollback, and the memory these need.

use std::{
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::{
    agent::Agent,
    apply::timed,
    binary, figure, median, milliseconds, place, ratio, rounds,
    running::Running,
    tree::{Machinist, config, content, path},
};

const FILES: usize = 5000;
/// 5,000 of these are as much as etcd accepts as one MachineConfig: 1.5 MiB with their base64.
const SMALL: usize = 200;
/// 5,000 of these are 488 MiB; a config may hold 512.
const LARGE: usize = 100 << 10;
/// The number of files that are changed and rolled back.
const CHANGED: usize = 1000;

/// One changed file of 5,000, compared with rewriting all of them.
pub(crate) fn one_of_many() {
    let dir = tempfile::tempdir_in(place()).unwrap();
    let machinist = Machinist::new(&dir.path().join("root"));
    let (mut one, mut all) = (Vec::new(), Vec::new());
    let mut agent = Running::on(&machinist);
    agent.apply(config(FILES, |n| content(0, n, SMALL)));
    // The cached digest of a file that changed just now is not relied on.
    thread::sleep(Duration::from_secs(4));
    // The first round is not measured: the agent knows the digests after it.
    for round in 0..=rounds(5) {
        let change = |n| content(if n == 0 { round + 1 } else { 0 }, n, SMALL);
        let changed = config(FILES, change);
        let took = timed(dir.path(), || agent.apply(changed));
        if round == 0 {
            continue;
        }
        one.push(took);
        all.push(timed(dir.path(), || {
            rewrite(&dir.path().join("all"), round)
        }));
    }
    let times = ratio(&all, &one);
    println!(
        "one changed: {:.1} ms; all rewritten, fsync each: {:.1} ms",
        milliseconds(median(&one)),
        milliseconds(median(&all))
    );
    let what = "rewriting all / one of 5,000 changed";
    figure(what, times, "times", "≥ 100", times >= 100.0);
}

/// `plan` for one changed file of 5,000, less the time it takes to read the files and the manifest.
pub(crate) fn plan() {
    let dir = tempfile::tempdir_in(place()).unwrap();
    let root = dir.path().join("root");
    Machinist::new(&root).apply(config(FILES, |n| content(0, n, SMALL)));
    let changed = config(FILES, |n| content(usize::from(n == 7), n, SMALL));
    let manifest = dir.path().join("manifest.yaml");
    let text = machinist_ignition::to_machine_config_yaml(&changed).unwrap();
    fs::write(&manifest, text).unwrap();
    let (mut whole, mut reading) = (Vec::new(), Vec::new());
    // The first round brings the files into the cache.
    for round in 0..=rounds(5) {
        let start = Instant::now();
        let planned = Command::new(binary())
            .args(["plan", "-o", "json", "--root"])
            .args([&root, &manifest])
            .output()
            .unwrap();
        let took = start.elapsed();
        assert_eq!(planned.status.code(), Some(2), "{planned:?}");
        let start = Instant::now();
        let mut bytes = fs::read(&manifest).unwrap().len();
        for n in 0..FILES {
            bytes += fs::read(root.join(path(n))).unwrap().len();
        }
        assert!(bytes > FILES * SMALL);
        if round > 0 {
            whole.push(took);
            reading.push(start.elapsed());
        }
    }
    let (whole, reading) = (milliseconds(median(&whole)), milliseconds(median(&reading)));
    println!("plan: {whole:.1} ms; reading: {reading:.1} ms");
    let rest = whole - reading;
    let what = "plan 5,000 files, less reading them";
    figure(what, rest, "ms", "≤ 100", rest <= 100.0);
}

fn rewrite(tree: &Path, round: usize) {
    for n in 0..FILES {
        let target = tree.join(path(n));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        let beside = target.with_extension("tmp");
        fs::write(&beside, content(round, n, SMALL)).unwrap();
        fs::File::open(&beside).unwrap().sync_all().unwrap();
        fs::rename(&beside, &target).unwrap();
    }
}

/// `verify` of 488 MiB in the page cache, compared with sha256sum on as many cores.
pub(crate) fn verify() {
    let dir = tempfile::tempdir_in(place()).unwrap();
    let tree = dir.path().join("root");
    let machinist = Machinist::new(&tree);
    machinist.apply(config(FILES, |n| content(0, n, LARGE)));
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let cores = thread::available_parallelism().unwrap();
    let sums = format!(
        "find {}/etc/bench -type f -print0 | xargs -0 -n 100 -P {cores} sha256sum",
        tree.display()
    );
    // The first round brings the files into the cache.
    for round in 0..=rounds(5) {
        let start = Instant::now();
        machinist.command(&["verify"]);
        let mine = start.elapsed();
        let start = Instant::now();
        let output = Command::new("sh").args(["-c", &sums]).output().unwrap();
        let other = start.elapsed();
        assert_eq!(output.stdout.split(|b| *b == b'\n').count(), FILES + 1);
        if round > 0 {
            ours.push(mine);
            theirs.push(other);
        }
    }
    println!(
        "verify: {:.1} ms; sha256sum on {cores} cores: {:.1} ms",
        milliseconds(median(&ours)),
        milliseconds(median(&theirs))
    );
    let times = ratio(&ours, &theirs);
    let what = "verify 488 MiB / sha256sum";
    figure(what, times, "times", "≤ 1.2", times <= 1.2);
}

/// 1,000 changed files and their rollback.
pub(crate) fn undo() {
    let dir = tempfile::tempdir_in(place()).unwrap();
    let machinist = Machinist::new(&dir.path().join("root"));
    let (mut there, mut back) = (Vec::new(), Vec::new());
    let manifest = dir.path().join("manifest.yaml");
    let of = |round| config(CHANGED, |n| content(round, n, 4096));
    machinist.apply(of(0));
    for round in 1..=rounds(5) {
        fs::write(
            &manifest,
            machinist_ignition::to_machine_config_yaml(&of(round)).unwrap(),
        )
        .unwrap();
        there.push(timed(dir.path(), || machinist.apply_by_command(&manifest)));
        back.push(timed(dir.path(), || {
            machinist.command(&["rollback", "--yes"]);
        }));
        machinist.apply(of(0));
    }
    println!(
        "apply {CHANGED}: {:.1} ms; back: {:.1} ms",
        milliseconds(median(&there)),
        milliseconds(median(&back))
    );
    let times = ratio(&back, &there);
    figure("undo / apply", times, "times", "≤ 1", times <= 1.0);
}

/// The peak memory of an agent while it applies 5,000 files, compared with its memory before.
pub(crate) fn memory() {
    let dir = tempfile::tempdir_in(place()).unwrap();
    let (root, source) = (dir.path().join("root"), dir.path().join("source"));
    fs::create_dir_all(&source).unwrap();
    let mut agent = Agent::start(&root, &source, None);
    thread::sleep(Duration::from_secs(3));
    let idle = agent.mebibytes("VmHWM:");
    let manifest =
        machinist_ignition::to_machine_config_yaml(&config(FILES, |n| content(0, n, SMALL)))
            .unwrap();
    fs::write(source.join(".next"), &manifest).unwrap();
    fs::rename(source.join(".next"), source.join("50-large.yaml")).unwrap();
    let last = root.join(path(FILES - 1));
    let start = Instant::now();
    while !last.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "never applied");
        assert!(agent.is_alive(), "it ended");
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_secs(2));
    let more = agent.mebibytes("VmHWM:") - idle;
    println!(
        "a MachineConfig of {:.1} MiB",
        manifest.len() as f64 / f64::from(1 << 20)
    );
    figure(
        "more memory while applying it",
        more,
        "MiB",
        "≤ 16",
        more <= 16.0,
    );
}
