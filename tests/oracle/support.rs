//! Shared parts of the oracles: the number of rounds, random choices from a seed, and the output of
//! a program.

use std::{
    collections::BTreeSet,
    env,
    io::Write as _,
    process::{Command, Stdio},
    thread,
};

use serde::{Serialize, de::DeserializeOwned};

/// How many inputs are generated: the number from the command line, otherwise `short`, or `long`
/// with `LONG=1`.
pub(crate) fn rounds(short: u64, long: u64) -> u64 {
    let usual = if number("LONG").unwrap_or(0) > 0 {
        long
    } else {
        short
    };
    number("MACHINIST_ORACLE_ROUNDS").unwrap_or(usual)
}

/// The seed of the random choices. A failure message must contain it.
pub(crate) fn seed() -> u64 {
    number("MACHINIST_ORACLE_SEED").unwrap_or(1)
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
    )
}

/// Random choices that depend only on their seed (SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    /// The choices of one round.
    pub(crate) fn new(seed: u64, round: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(round))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    /// True in one of `chances` cases.
    pub(crate) fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// The verdicts of an oracle's program, which reads cases as JSON and writes one verdict for each.
///
/// `name` is the directory of its sources; `tests/oracle/run` builds it and passes its path in
/// `MACHINIST_ORACLE_<NAME>`.
pub(crate) fn ask<C: Serialize, V: DeserializeOwned>(name: &str, cases: &[C]) -> Vec<V> {
    let mut child = program(name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let texts: Vec<Vec<u8>> = cases
        .iter()
        .map(|case| serde_json::to_vec(case).unwrap())
        .collect();
    // The program answers while it still reads, so a thread writes its input.
    let writer = thread::spawn(move || texts.iter().try_for_each(|text| stdin.write_all(text)));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{name}: {}", output.status);
    writer.join().unwrap().unwrap();
    let answers = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<V>();
    let verdicts: Vec<V> = answers.map(|answer| answer.unwrap()).collect();
    assert_eq!(
        verdicts.len(),
        cases.len(),
        "{name}: one verdict for each case"
    );
    verdicts
}

/// The output of an oracle's program that is started with arguments.
pub(crate) fn answer(name: &str, arguments: &[&str]) -> String {
    let output = program(name).args(arguments).output().unwrap();
    assert!(output.status.success(), "{name}: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn program(name: &str) -> Command {
    let variable = format!("MACHINIST_ORACLE_{}", name.to_uppercase());
    Command::new(env::var(&variable).unwrap_or_else(|_| panic!("start this by tests/oracle/run")))
}

/// The first cells of the table below a heading of `differences.md`.
pub(crate) fn rows(heading: &str) -> BTreeSet<&'static str> {
    let page = include_str!("differences.md");
    let (_, below) = page.split_once(&format!("{heading}\n")).unwrap();
    let lines = below.lines().take_while(|line| !line.starts_with("## "));
    let cells = lines.filter_map(|line| Some(line.strip_prefix("| ")?.split_once(" | ")?.0));
    cells.filter(|cell| *cell != "input").collect()
}

/// Every entry of an oracle's list is explained by a row of `differences.md`, and every row is
/// shown by an entry.
pub(crate) fn assert_rows_have_entries(heading: &str, entries: impl Iterator<Item = &'static str>) {
    assert_eq!(
        entries.collect::<BTreeSet<_>>(),
        rows(heading),
        "entries and rows of {heading}"
    );
}
