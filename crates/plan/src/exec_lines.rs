//! Reads command lines of services as systemd does (systemd.service(5), "COMMAND LINES").

/// The characters before a program that change how systemd runs it.
const PREFIXES: [char; 6] = ['-', '@', ':', '+', '!', '|'];

/// One command of a line.
#[derive(Debug, PartialEq)]
pub(super) struct Command<'l> {
    pub(super) program: &'l str,
    /// Whether systemd ignores it if it is faulty.
    pub(super) may_fail: bool,
    fault: Option<&'static str>,
}

/// What systemd does with a command line.
#[derive(Debug, PartialEq)]
pub(super) enum LineVerdict {
    /// It has this number of commands.
    Commands(usize),
    /// It is faulty, and systemd ignores it.
    Ignored,
    /// It is faulty, and systemd refuses the unit.
    Refused(&'static str),
}

/// The commands of a line, up to the first faulty one.
pub(super) fn commands(line: &str) -> Vec<Command<'_>> {
    let (words, closed) = words(line);
    let mut found: Vec<Command<'_>> = words
        .split(|word| *word == ";")
        .filter(|words| !words.is_empty())
        .map(command)
        .collect();
    if !closed && let Some(last) = found.last_mut() {
        last.fault.get_or_insert("a quote is not closed");
    }
    found
}

pub(super) fn verdict(line: &str) -> LineVerdict {
    let commands = commands(line);
    match commands.iter().position(|command| command.fault.is_some()) {
        Some(at) => match &commands[at] {
            Command {
                fault: Some(fault),
                may_fail: false,
                ..
            } => LineVerdict::Refused(fault),
            // The commands before it count.
            _ if at > 0 => LineVerdict::Commands(at),
            _ => LineVerdict::Ignored,
        },
        None if commands.is_empty() => LineVerdict::Ignored,
        None => LineVerdict::Commands(commands.len()),
    }
}

/// The words of a line with their quotes, and whether all quotes are closed.
fn words(line: &str) -> (Vec<&str>, bool) {
    let (mut words, mut start) = (Vec::new(), None);
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in line.char_indices() {
        if start.is_none() && !c.is_ascii_whitespace() {
            start = Some(at);
        }
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' | '\'' if quote.is_none() => quote = Some(c),
            _ if quote == Some(c) => quote = None,
            _ if quote.is_none() && c.is_ascii_whitespace() => {
                words.extend(start.take().map(|from| &line[from..at]));
            }
            _ => {}
        }
    }
    words.extend(start.map(|from| &line[from..]));
    (words, quote.is_none())
}

fn command<'l>(words: &[&'l str]) -> Command<'l> {
    let first = words.first().copied().unwrap_or_default();
    let bare = first.trim_start_matches(PREFIXES);
    let prefixes = &first[..first.len() - bare.len()];
    let quoted = bare.strip_prefix(['"', '\'']);
    let program = quoted.map_or(bare, |quoted| quoted.trim_end_matches(['"', '\'']));
    let unknown = program.starts_with(['%', '$']);
    let fault = if program.is_empty() {
        Some("it names no program")
    } else if unknown {
        None
    } else if program.contains('/') && !program.starts_with('/') {
        Some("the program is not an absolute path")
    } else if program.ends_with('/') {
        Some("the program is a directory")
    } else if prefixes.contains('@') && words.len() < 2 {
        Some("@ needs a name after the program")
    } else {
        None
    };
    Command {
        program,
        may_fail: prefixes.contains('-'),
        fault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_of_a_command_follows_its_prefixes() {
        for (line, program, may_fail) in [
            ("/bin/a b", "/bin/a", false),
            ("-/bin/a", "/bin/a", true),
            ("!!/bin/a", "/bin/a", false),
            ("\"/opt/a b\" c", "/opt/a b", false),
        ] {
            let found = commands(line);
            let found: Vec<_> = found
                .iter()
                .map(|command| (command.program, command.may_fail))
                .collect();
            assert_eq!(found, [(program, may_fail)], "{line}");
        }
        assert!(commands("").is_empty());
    }

    #[test]
    fn lines_are_judged_as_by_systemd() {
        for (line, verdict_of_line) in [
            ("/bin/a ; /bin/b", LineVerdict::Commands(2)),
            ("/bin/a \\; /bin/b", LineVerdict::Commands(1)),
            ("/bin/a 'it\"s'", LineVerdict::Commands(1)),
            ("-/bin/a 'b", LineVerdict::Ignored),
            ("/bin/a ; -bin/b", LineVerdict::Commands(1)),
            ("/bin/a it's", LineVerdict::Refused("a quote is not closed")),
            ("/bin/", LineVerdict::Refused("the program is a directory")),
        ] {
            assert_eq!(verdict(line), verdict_of_line, "{line}");
        }
    }
}
