//! The cost of an idle agent, and its start-up time.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, DirEntry},
    path::Path,
    thread,
    time::Duration,
};

use crate::{
    agent::{Agent, number},
    figure, median, milliseconds, place, rounds,
};

/// The delay between the first work and the measurement: threads of the pool end after ten seconds.
const CALM: Duration = Duration::from_secs(15);
const MINUTE: Duration = Duration::from_secs(60);

/// How often each of its threads has been woken so far.
fn wakeups(agent: &Agent) -> BTreeMap<OsString, f64> {
    let tasks = fs::read_dir(agent.proc("task")).unwrap();
    let wakes = |task: DirEntry| {
        // A thread may end between the listing and the reading.
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let count = number(&status, "voluntary_ctxt_switches:");
        Some((task.file_name(), count))
    };
    tasks.filter_map(|task| wakes(task.unwrap())).collect()
}

pub(crate) fn measure() {
    let dir = tempfile::tempdir_in(place()).unwrap();
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/machine");
    let ready = || Agent::ready(dir.path(), &machine);
    let (first, _) = ready();
    thread::sleep(CALM);
    drop(first);

    println!("\nidle, on the example machine");
    let starts: Vec<_> = (0..rounds(10)).map(|_| ready().1).collect();
    let start = milliseconds(median(&starts));
    figure(
        "start → READY=1, nothing to do (median)",
        start,
        "ms",
        "≤ 100",
        start <= 100.0,
    );

    let (agent, _) = ready();
    thread::sleep(CALM);
    let before = wakeups(&agent);
    thread::sleep(MINUTE);
    let since = |(thread, count): (&OsString, &f64)| count - before.get(thread).unwrap_or(&0.0);
    let woken: f64 = wakeups(&agent).iter().map(since).sum();
    figure(
        "wake-ups of all threads in a minute",
        woken,
        "",
        "≤ 6",
        woken <= 6.0,
    );
    let resident = agent.mebibytes("VmRSS:");
    figure(
        "resident memory (VmRSS)",
        resident,
        "MiB",
        "≤ 12",
        resident <= 12.0,
    );
    let anonymous = agent.mebibytes("RssAnon:");
    let proportional = number(&agent.read("smaps_rollup"), "Pss:") / 1024.0;
    println!(
        "  of it anonymous {anonymous:.1} MiB; Pss {proportional:.1} MiB; {} threads",
        number(&agent.read("status"), "Threads:")
    );
}
