//! Runs scripts in GRUB's own emulator (package grub-emu), and compares.

#![allow(
    clippy::disallowed_methods,
    reason = "a test runs another program in a directory of its own"
)]

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use super::{super::simulated_grub::SimulatedGrub, Files};
use machinist_ignition::KernelCommandLine;

/// Random numbers of a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) >> 33).unwrap_or_default() % limit
    }

    fn pick<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    let value = std::env::var(name).ok();
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(otherwise)
}

fn word(dice: &mut Dice) -> String {
    let mut word = String::new();
    for _ in 0..=dice.below(3) {
        word += dice.pick(&[
            "a", "b=c", "$v", "${v}", "\"$v\"", "'$v'", "\"d e\"", "'f  g'", "\\ ", "\\$",
            "\"\\\"\"", "\"\\x\"", "''", "\"\"", "$none", "$1", "\"$@\"", "$@", "-", "x#y",
            "\"'\"", "'\"'", "\\\\", ".",
        ]);
    }
    word
}

fn condition(dice: &mut Dice) -> String {
    let operand = |dice: &mut Dice| match dice.below(2) {
        0 => format!("\"{}\"", dice.pick(&["$v", "", "a", "1", "-n", "a b"])),
        _ => word(dice),
    };
    let one = |dice: &mut Dice| match dice.below(5) {
        0 => format!("-z {}", operand(dice)),
        1 => format!("-n {}", operand(dice)),
        2 => format!("! {} = {}", operand(dice), operand(dice)),
        3 => format!(
            "{} -lt {}",
            dice.pick(&["1", "02", "-3", "$?"]),
            dice.pick(&["2", "1"])
        ),
        _ => format!(
            "{} {} {}",
            operand(dice),
            dice.pick(&["=", "!=", "'<'", "=="]),
            operand(dice)
        ),
    };
    match dice.below(4) {
        0 => format!("[ {} -a {} ]", one(dice), one(dice)),
        1 => format!("[ {} -o {} ]", one(dice), one(dice)),
        2 => format!("test {}", one(dice)),
        _ => format!("[ {} ]", one(dice)),
    }
}

fn script(dice: &mut Dice, depth: usize) -> String {
    let mut text = String::new();
    for _ in 0..=dice.below(3) {
        // GRUB defines functions when it parses them, so that they do not belong inside other commands.
        let line = match dice.below([7, 6, 6].get(depth).copied().unwrap_or(3)) {
            0 => format!("set {}={}", dice.pick(&["v", "w"]), word(dice)),
            1 => format!("{}={}", dice.pick(&["v", "w"]), word(dice)),
            2 => format!("linux {} {}", word(dice), word(dice)),
            3 => format!(
                "if {}; then\n{}elif {} ; then {}else\n{}fi",
                condition(dice),
                script(dice, depth + 1),
                condition(dice),
                script(dice, depth + 1),
                script(dice, depth + 1)
            ),
            4 => format!(
                "for w in {} {}; do {}done",
                word(dice),
                word(dice),
                script(dice, depth + 1)
            ),
            5 => format!("unset {} # comment }} ' \"", dice.pick(&["v", "none"])),
            _ => format!(
                "function f {{\n{}}}\nf {} {}",
                script(dice, 3),
                word(dice),
                word(dice)
            ),
        };
        let _ = writeln!(text, "{line}");
    }
    text
}

/// What GRUB hands to the command `linux`, and the variable `v` at the end.
fn in_emulator(text: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let config = format!(
        "set pager=0\necho\necho\nfunction linux {{ echo -n 'LINUX'; for argument in \"$@\"; do echo -n \"[$argument]\"; done; echo; }}\n\
         {text}\necho \"END[$v]\"\nhalt\n"
    );
    fs::write(directory.path().join("grub.cfg"), config).unwrap();
    let mut grub = Command::new("grub-emu");
    grub.arg("-d").arg(directory.path()).args(["-r", "host"]);
    grub.env("TERM", "dumb").env("LC_ALL", "C.UTF-8");
    let output = grub.stdin(Stdio::null()).output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = shown
        .lines()
        .map(|line| line.trim_end_matches('\r').trim_start_matches('\r'));
    let own = lines.filter(|line| line.starts_with("LINUX") || line.starts_with("END["));
    own.collect::<Vec<&str>>().join("\n")
}

fn simulated(text: &str) -> String {
    let files = Files::default().with("/boot/grub/grub.cfg", text);
    let mut grub = SimulatedGrub::new(&files, "/boot/grub");
    if let Err(error) = grub.menu() {
        return error.to_string();
    }
    let mut shown = String::new();
    for arguments in &grub.kernels {
        // "$@" is one empty word where there are no arguments.
        let _ = writeln!(shown, "LINUX[{}]", arguments.join("]["));
    }
    shown + &format!("END[{}]", grub.variable("v"))
}

fn is_installed() -> bool {
    let there = Path::new("/usr/bin/grub-emu").exists();
    if !there {
        println!("skipped: this needs grub-emu");
    }
    there
}

#[test]
fn scripts_have_the_same_effect_as_in_grub() {
    if !is_installed() {
        return;
    }
    let seed = number("GRUB_SEED", 1);
    for round in 0..number("GRUB_ROUNDS", 20) {
        let mut dice = Dice(seed.wrapping_mul(7_919).wrapping_add(round));
        let text = script(&mut dice, 0);
        let ours = simulated(&text);
        // The emulator wraps longer lines.
        if ours.lines().all(|line| line.len() < 75) {
            let theirs = in_emulator(&text);
            assert_eq!(ours, theirs, "GRUB_SEED={seed}, round {round}:\n{text}");
        }
    }
}

#[test]
fn accepted_arguments_reach_the_kernel_unchanged() {
    if !is_installed() {
        return;
    }
    let seed = number("GRUB_SEED", 1);
    let mut accepted = 0;
    for round in 0..number("GRUB_ROUNDS", 20) {
        let mut dice = Dice(seed.wrapping_mul(104_729).wrapping_add(round));
        let mut text = String::new();
        for _ in 0..=dice.below(4) {
            let value = dice.pick(&[
                "quiet",
                "a=\"b c\"",
                "\"d=e f\"",
                "x=$y",
                "x=`z`",
                "m=a;b",
                "n=#1",
                "p={q}",
                "r=<s>|t&",
                "u=a*?[!]",
                "w=~/x",
                "v=é",
                "--",
                "k=it's",
                "l=a\\b",
                "o=a\"b\"",
            ]);
            let _ = write!(text, "{value} ");
        }
        let line = KernelCommandLine::parse(&text);
        let Ok(words) = super::super::script_words(&line) else {
            continue;
        };
        accepted += 1;
        let script = format!("linux /vmlinuz {words}\n");
        assert_eq!(simulated(&script), in_emulator(&script), "{script}");
        let files = Files::default().with("/boot/grub/grub.cfg", &*script);
        let mut grub = SimulatedGrub::new(&files, "/boot/grub");
        grub.menu().unwrap();
        let command_line = super::super::arguments::loader_command_line(&grub.kernels[0][1..]);
        assert_eq!(KernelCommandLine::parse(&command_line), line, "{text}");
    }
    assert!(accepted > 0);
}
