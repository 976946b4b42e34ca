//! Replays the seeds of the fuzzed parsers through the same entry points: whole, truncated and with
//! bytes changed.
//!
//! `FUZZ_ROUNDS` sets how many changed texts are made of each seed, `FUZZ_SEED` the seed of their
//! random numbers.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    unreachable_pub,
    reason = "a test may panic, and reads its own files"
)]

#[path = "fuzz/entries/mod.rs"]
mod entries;

use std::{fs, panic, path::Path};

use entries::ENTRIES;

/// As long as the texts of `tests/fuzz/run`.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// Bytes that have a meaning for one of the parsers.
const PUNCTUATION: &[u8] = b"\n\t :-{}[],\"'!&*#%\\0x~\x00\xff";

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// splitmix64: one value for each call.
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    usize::try_from((value ^ (value >> 31)) >> 1).unwrap()
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut directories = vec![tests.join("fuzz/seeds").join(name)];
    match name {
        "machine_config" => {
            let cases = ["golden/input", "golden/plan"].map(|dir| fs::read_dir(tests.join(dir)));
            let cases = cases.into_iter().flat_map(Result::unwrap);
            directories.extend(cases.map(|case| case.unwrap().path()));
        }
        "unit_file" => directories.push(tests.join("../systemd")),
        _ => {}
    }
    let files = directories.iter().filter_map(|dir| fs::read_dir(dir).ok());
    let files = files.flatten().map(|file| file.unwrap().path());
    let mut files: Vec<_> = files.filter(|file| file.is_file()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// A seed that is truncated, or has some bytes changed, removed or repeated.
fn changed(seed: &[u8], state: &mut u64) -> Vec<u8> {
    let mut text = seed.to_vec();
    for _ in 0..=random(state) % 4 {
        let at = random(state) % text.len().max(1);
        match random(state) % 5 {
            _ if text.is_empty() => text.push(b'{'),
            0 => text.truncate(at),
            1 => text[at] = PUNCTUATION[random(state) % PUNCTUATION.len()],
            2 => drop(text.drain(at..text.len().min(at + 1 + random(state) % 8))),
            3 => text[at] ^= 1 << (random(state) % 8),
            _ => {
                let end = text.len().min(at + 1 + random(state) % 32);
                let piece = text[at..end].to_vec();
                text.splice(at..at, piece);
            }
        }
    }
    text.truncate(MAX_TEXT_BYTES);
    text
}

#[test]
fn fuzz_seeds_and_mutations_crash_no_parser() {
    let (rounds, first) = (number("FUZZ_ROUNDS", 40), number("FUZZ_SEED", 1));
    for entry in ENTRIES {
        let seeds = seeds(entry.name);
        let mut state = first;
        let mut texts: Vec<Vec<u8>> = seeds.clone();
        for seed in &seeds {
            texts.extend((0..rounds).map(|_| changed(seed, &mut state)));
        }
        texts.push(Vec::new());
        for text in &texts {
            let checked = panic::catch_unwind(|| (entry.check)(text));
            assert!(
                checked.is_ok(),
                "FUZZ_SEED={first}: {} breaks on {:?}",
                entry.name,
                String::from_utf8_lossy(text)
            );
        }
    }
}
