//! The performance goals of machinist. Each is a ratio to a reference that runs next to it, or a
//! count; the plain times are printed only to show how the ratios arise.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints, and ends at the first trouble"
)]

mod advertising;
mod agent;
mod apply;
mod drift;
mod idle;
mod large;
mod reaction;
mod running;
mod tree;
mod vendor;

use std::{env, path::PathBuf, time::Duration};

/// The directory for the trees, on the disk to be measured.
fn place() -> PathBuf {
    env::var_os("MACHINIST_BENCH_DIR").map_or_else(env::temp_dir, PathBuf::from)
}

/// The binary under test: the one that MACHINIST_BENCH_BINARY names, otherwise that of this build.
fn binary() -> PathBuf {
    let built = || PathBuf::from(env!("CARGO_BIN_EXE_machinist"));
    env::var_os("MACHINIST_BENCH_BINARY").map_or_else(built, PathBuf::from)
}

fn rounds(usual: usize) -> usize {
    let asked = env::var("MACHINIST_BENCH_ROUNDS").ok();
    asked.map_or(usual, |asked| asked.parse().unwrap())
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() / 2]
}

fn ratio(a: &[Duration], b: &[Duration]) -> f64 {
    median(a).as_secs_f64() / median(b).as_secs_f64()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Prints one figure, its goal, and whether it is met.
fn figure(what: &str, value: f64, unit: &str, goal: &str, holds: bool) {
    let holds = if holds { "ok" } else { "MISSED" };
    println!("{what:<52} {value:>9.1} {unit:<8} goal {goal:<8} {holds}");
}

/// The benchmarks that can be run individually.
const FIGURES: [(&str, fn()); 17] = [
    ("apply", apply::measure),
    ("one", large::one_of_many),
    ("plan", large::plan),
    ("verify", large::verify),
    ("undo", large::undo),
    ("memory", large::memory),
    ("drift", drift::measure),
    ("idle", idle::measure),
    ("allocate", advertising::allocation),
    ("list", advertising::list),
    ("advertised", advertising::memory),
    ("start", advertising::start),
    ("restart", advertising::restart),
    ("follow", reaction::follow),
    ("stop", reaction::stop),
    ("hostile", reaction::hostile),
    ("vendor", vendor::memory),
];

fn main() {
    advertising::echo_if_asked();
    println!("{}", about_this_machine());
    let asked: Vec<String> = env::args().skip(1).collect();
    for (name, measure) in FIGURES {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            measure();
        }
    }
    if !asked.is_empty() {
        return;
    }
    let Some(binary) = env::var_os("MACHINIST_BENCH_DIST") else {
        println!("dist binary: not built (--no-dist)");
        return;
    };
    #[expect(clippy::cast_precision_loss, reason = "a size in megabytes")]
    let size = std::fs::metadata(binary).unwrap().len() as f64 / 1e6;
    figure("dist binary", size, "MB", "≤ 14", size <= 14.0);
}

fn about_this_machine() -> String {
    let cores = std::thread::available_parallelism().unwrap();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    format!(
        "kernel {}, {cores} cores, load {}, trees in {}",
        kernel.trim(),
        load.split(' ').next().unwrap(),
        place().display()
    )
}
