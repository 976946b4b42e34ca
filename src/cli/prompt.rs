//! Asks the user at the terminal for confirmation.

use std::io::{self, BufRead, IsTerminal, Write};

/// The user's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// Continue.
    Yes,
    /// Any other answer, including the end of input.
    No,
}

/// There is no terminal to ask on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot ask for confirmation: stdin is not a terminal; use --yes to skip it")]
pub struct NotATerminal;

/// Whether there is a terminal to ask on.
pub(super) fn has_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Asks `question` on stderr and reads one line from stdin. `yes` confirms in advance (`--yes`).
pub fn confirm(question: &str, yes: bool) -> anyhow::Result<Confirmation> {
    if yes {
        return Ok(Confirmation::Yes);
    }
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Err(NotATerminal.into());
    }
    Ok(ask(question, stdin.lock(), anstream::stderr())?)
}

fn ask(question: &str, mut from: impl BufRead, mut to: impl Write) -> io::Result<Confirmation> {
    write!(to, "{question} [y/N] ")?;
    to.flush()?;
    let mut line = String::new();
    from.read_line(&mut line)?;
    match line.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(Confirmation::Yes),
        _ => Ok(Confirmation::No),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_explicit_yes_confirms_the_prompt() {
        for (line, answer) in [
            ("y\n", Confirmation::Yes),
            (" YES \n", Confirmation::Yes),
            ("\n", Confirmation::No),
            ("", Confirmation::No),
            ("yep\n", Confirmation::No),
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
