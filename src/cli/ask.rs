//! Asking the person at the terminal.

use std::io::{self, BufRead, IsTerminal, Write};

/// What the person said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Go on.
    Yes,
    /// Anything else, the end of input included.
    No,
}

/// Nobody can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody can be asked, since stdin is no terminal: give --yes to go on without asking")]
pub struct NoTerminal;

/// Whether there is somebody to ask.
pub(super) fn can_ask() -> bool {
    io::stdin().is_terminal()
}

/// Asks `question` on stderr and reads one line from stdin. `yes` answers beforehand (`--yes`).
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
