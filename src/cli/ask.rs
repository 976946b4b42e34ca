//! Asks the user at the terminal for confirmation.

use std::io::{self, BufRead, IsTerminal, Write};

/// The user's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Continue.
    Yes,
    /// Any other answer, including the end of input.
    No,
}

/// There is no terminal to ask on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot ask for confirmation: stdin is not a terminal; use --yes to skip it")]
pub struct NoTerminal;

/// Whether there is a terminal to ask on.
pub(super) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Asks `question` on stderr and reads one line from stdin. `yes` confirms in advance (`--yes`).
pub fn confirm(question: &str, yes: bool) -> anyhow::Result<Answer> {
    if yes {
        return Ok(Answer::Yes);
    }
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(NoTerminal.into());
    }
    Ok(ask(question, stdin.lock(), anstream::stderr())?)
}

fn ask(question: &str, mut from: impl BufRead, mut to: impl Write) -> io::Result<Answer> {
    write!(to, "{question} [y/N] ")?;
    to.flush()?;
    let mut line = String::new();
    from.read_line(&mut line)?;
    match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(Answer::Yes),
        _ => Ok(Answer::No),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for (line, answer) in [
            ("y\n", Answer::Yes),
            (" YES \n", Answer::Yes),
            ("\n", Answer::No),
            ("", Answer::No),
            ("yep\n", Answer::No),
        ] {
            let mut shown = Vec::new();
            assert_eq!(
                ask("Apply?", line.as_bytes(), &mut shown).unwrap(),
                answer,
                "{line:?}"
            );
            assert_eq!(shown, b"Apply? [y/N] ");
        }
    }
}
