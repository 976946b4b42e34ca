//! Writing to stdout and stderr.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::{clock::Clock, status::sentences, words};

/// How data is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For scripts.
    Json,
    /// The same data as JSON, for people and scripts.
    Yaml,
}

/// The flag of every command that prints data.
#[derive(Clone, Copy, Debug, Args)]
pub struct Printed {
    /// Form of the output: text, json or yaml
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    pub output: Format,
}

/// Writes text to stdout; colours only reach a terminal whose user wants them. A reader that has seen
/// enough (`| head`) is no error.
pub fn print(text: &str) -> io::Result<()> {
    print_raw(&words::page(text))
}

/// The same for what is as it must be: scripts, configs.
pub(super) fn print_raw(text: &str) -> io::Result<()> {
    let stdout = io::stdout();
    // In one piece: a plan has thousands of lines, and each colour would be a write of its own.
    let plain = match anstream::AutoStream::choice(&stdout) {
        anstream::ColorChoice::Never => Some(anstream::adapter::strip_str(text).to_string()),
        _ => None,
    };
    let text = plain.as_deref().unwrap_or(text);
    let mut stdout = stdout.lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes data to stdout as JSON or YAML; `text` makes the form for people.
pub fn print_data<T: Serialize>(
    format: Format,
    data: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let page = match format {
        Format::Text => words::page(&text(data)),
        Format::Json => words::data(&(serde_json::to_string_pretty(data)? + "\n")),
        Format::Yaml => words::data(&serde_saphyr::to_string(data)?),
    };
    Ok(print_raw(&page)?)
}

/// A name that others can hardly have taken, for a file that is made where they may write.
pub(super) fn fresh(prefix: &str) -> String {
    let now = Clock::system().now().as_nanosecond();
    format!("{prefix}{}-{now}", std::process::id())
}

/// Where sentences are broken.
const WIDTH: usize = 80;

/// A sentence broken between words: `first` before the first line, `others` before the rest.
pub(super) fn wrapped(first: &str, others: &str, sentence: &str) -> String {
    let mut text = String::from(first);
    let mut column = first.chars().count();
    let mut begun = false;
    for word in sentence.split(' ') {
        let length = word.chars().count();
        if begun && column + 1 + length > WIDTH {
            text.push('\n');
            text.push_str(others);
            column = others.chars().count();
        } else if begun {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
        begun = true;
    }
    text.push('\n');
    text
}

/// Writes an error to stderr. When even that fails there is nobody left to tell.
pub(super) fn complain(text: &str) {
    let _ = writeln!(anstream::stderr(), "machinist: {}", words::page(text));
}

/// A failure, each of its reasons by itself. What already ends with its code does not say it twice.
pub(super) fn failed(message: &str, code: crate::reason::Reason) -> String {
    let code = match message.contains(&format!("[{code}]")) {
        true => String::new(),
        false => format!(" [{code}]"),
    };
    let mut told = sentences(&crate::plan::printable(message)).into_iter();
    let first = told.next().unwrap_or_default();
    let mut text = wrapped("Failed: ", "  ", &format!("{first}{code}"));
    for more in told {
        text += &wrapped("  ", "    ", &more);
    }
    text
}

/// Writes a warning to stderr.
pub(super) fn warn(text: &str) {
    let _ = writeln!(
        anstream::stderr(),
        "machinist: warning: {}",
        words::page(text)
    );
}

/// Writes text to stderr as it is.
pub(super) fn write_error(text: &str) {
    let _ = anstream::stderr().write_all(text.as_bytes());
}
