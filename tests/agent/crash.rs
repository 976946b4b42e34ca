//! kill -9 during an update: the machine is on the old or the new config, and the next start
//! completes the update.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use crate::agent::harness::{Agent, Place, code, err, manifest_of, until, value};

/// Enough for the kill to happen in the middle.
const FILES: usize = 400;

fn save(place: &Place, content: &str) {
    let files: Vec<_> = (0..FILES)
        .map(|n| {
            (
                format!("/etc/many/{:02}/file{n:03}", n % 20),
                format!("{content}{n}"),
            )
        })
        .collect();
    let file = place.source().join("10-many.yaml");
    let fresh = place.source().join(".new");
    fs::write(&fresh, manifest_of("10-many", &files)).unwrap();
    fs::rename(fresh, file).unwrap();
}

/// How many files each config has, by the first word of their content.
fn count(place: &Place) -> BTreeMap<String, usize> {
    let mut seen = BTreeMap::new();
    for n in 0..FILES {
        let path = format!("/etc/many/{:02}/file{n:03}", n % 20);
        let text = place.read(&path).unwrap_or_default();
        let word = text
            .trim_end_matches(|c: char| c.is_ascii_digit())
            .to_owned();
        assert!(
            word.is_empty() || text == format!("{word}{n}"),
            "{path} holds {text:?}"
        );
        *seen.entry(word).or_default() += 1;
    }
    seen
}

fn all(word: &str) -> BTreeMap<String, usize> {
    BTreeMap::from([(word.to_owned(), FILES)])
}

/// The journal's inode: it is replaced at every mark.
fn journal(place: &Place) -> u64 {
    let about = fs::metadata(place.at("/var/lib/machinist/journal"));
    about.map_or(0, |about| about.ino())
}

/// Whether an update is open on the disk.
fn open(place: &Place) -> bool {
    let dir = place.at("/var/lib/machinist/tx");
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

/// Waits for the middle of an update to `new`, `late` journal writes after it began. Returns false
/// if the update ended before this process saw that.
fn reaches_the_middle(place: &Place, new: &str, late: usize) -> bool {
    let first = format!("{new}0");
    let mut marks = Vec::from([journal(place)]);
    save(place, new);
    value("the middle of the update", || {
        let now = journal(place);
        if marks.last() != Some(&now) {
            marks.push(now);
        }
        if open(place) {
            return (marks.len() > late).then_some(true);
        }
        (place.read("/etc/many/00/file000").as_ref() == Some(&first)).then_some(false)
    })
}

/// Kills the agent in the middle of an update, `late` journal writes after it began. Returns the
/// content before that update and the new one: if an update to `new` ends unseen, others follow.
fn kill_in_the_middle(
    place: &Place,
    mut agent: Agent,
    (old, new): (&str, &str),
    late: usize,
) -> (String, String) {
    let (mut old, mut new) = (old.to_owned(), new.to_owned());
    let mut tries = 1;
    while !reaches_the_middle(place, &new, late) {
        assert!(tries < 5, "{tries} updates ended unseen");
        tries += 1;
        until("the whole config", || count(place) == all(&new));
        agent.rests();
        let next = format!("{new}x");
        old = std::mem::replace(&mut new, next);
    }
    agent.signal(nix::sys::signal::Signal::SIGKILL);
    let status = agent.ended();
    assert_eq!(status.code(), None);
    (old, new)
}

#[test]
fn an_update_interrupted_by_a_kill_is_completed_at_the_next_start() {
    let place = Place::new();
    save(&place, "zero");
    let mut agent = place.settled();
    let mut last = "zero".to_owned();
    for (late, new) in [(1, "one"), (2, "two"), (3, "three")] {
        let (old, new) = kill_in_the_middle(&place, agent, (last.as_str(), new), late);
        eprintln!("killed at {:?}", count(&place));
        agent = place.start();
        until("the new config", || count(&place) == all(&new));
        agent.rests();
        assert_eq!(
            code(&place.machinist(&["verify"])),
            0,
            "from {old} to {new}"
        );
        assert!(!open(&place));
        last = new;
    }
}

#[test]
fn recover_finishes_an_interrupted_update_without_the_agent() {
    let place = Place::new();
    save(&place, "zero");
    let mut last = "zero".to_owned();
    for (late, new) in [(1, "one"), (2, "two"), (3, "three")] {
        let agent = place.start();
        until("the config before", || count(&place) == all(&last));
        agent.rests();
        let (old, new) = kill_in_the_middle(&place, agent, (last.as_str(), new), late);
        let before = count(&place);
        let dry = place.machinist(&["recover", "--dry-run"]);
        assert_eq!(code(&dry), 0, "{}", err(&dry));
        assert_eq!(count(&place), before, "a dry run changes nothing");
        let recovered = place.machinist(&["recover"]);
        assert_eq!(code(&recovered), 0, "{}", err(&recovered));
        let after = count(&place);
        eprintln!("killed at {before:?}, recovered to {after:?}");
        assert!(after == all(&old) || after == all(&new), "{after:?}");
        let again = place.machinist(&["recover"]);
        assert_eq!((code(&again), count(&place)), (0, after));
        last = new;
    }
    let leftovers = |dir: PathBuf| fs::read_dir(dir).map_or(0, Iterator::count);
    let agent = place.start();
    until("the last config", || count(&place) == all(&last));
    agent.rests();
    assert_eq!(leftovers(place.at("/var/lib/machinist/tx")), 0);
}
