//! Checks that the commands in texts for people exist.

use clap::Parser as _;

use super::Cli;
use machinist_base::reason::Reason;
use machinist_status::{JOURNAL_TOO_NEW_ADVICE, JOURNAL_UNREADABLE_ADVICE, remedy};

/// The command lines of machinist in a text. Each one ends with the text or with punctuation.
fn command_lines(text: &str) -> Vec<String> {
    let starts = text.match_indices("machinist ");
    let own = starts.filter(|(at, _)| {
        let before = text[..*at].chars().next_back();
        before.is_none_or(|it| it.is_whitespace() || it == '(')
    });
    let lines = own.map(|(at, _)| {
        let line = text[at..].split([';', ',', '(', ')', '\n']).next();
        line.unwrap_or_default().trim().trim_end_matches('.')
    });
    let commands = lines.filter(|line| !line.starts_with("machinist that"));
    commands.map(str::to_owned).collect()
}

/// Checks every command line in a text, with node names for the placeholders. Returns how many there are.
pub(super) fn check(text: &str) -> usize {
    let lines = command_lines(text);
    for line in &lines {
        let words = line.split_whitespace();
        let words = words.map(|word| match word {
            "NODE" | "NAME" => "worker-1",
            word => word,
        });
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{text:?} advises {line:?}: {error}");
        }
    }
    lines.len()
}

#[test]
fn command_lines_end_with_the_text_or_punctuation() {
    assert_eq!(
        command_lines("wait; machinist a --b c; (machinist d), the version of machinist that x"),
        ["machinist a --b c", "machinist d"]
    );
    assert_eq!(
        command_lines("systemctl stop machinist; x-machinist y"),
        [""; 0]
    );
}

#[test]
#[should_panic(expected = "--pol")]
fn a_flag_that_does_not_exist_is_noticed() {
    check("to start it: machinist resume --pol worker");
}

#[test]
fn every_remedy_advises_commands_that_exist() {
    let remedies = Reason::ALL.iter().map(|reason| remedy(*reason, "worker-1"));
    assert!(remedies.map(|text| check(&text)).sum::<usize>() >= 2);
    for text in [JOURNAL_TOO_NEW_ADVICE, JOURNAL_UNREADABLE_ADVICE] {
        check(text);
    }
}
