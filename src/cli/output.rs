//! Writes to stdout and stderr.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use serde::Serialize;

use machinist_base::{clock::Clock, text};
use machinist_ignition::Refusal;
use machinist_status::sentences;

/// The output format of data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text for users.
    #[default]
    Text,
    /// JSON for scripts.
    Json,
    /// The same data as in JSON, as YAML.
    Yaml,
}

/// The output flag of every command that prints data.
#[derive(Clone, Copy, Debug, Args)]
pub struct OutputFormatArg {
    /// Output format: text, json or yaml
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

/// Writes text to stdout; colours are only sent to terminals whose user wants them. A closed pipe
/// (`| head`) is not an error.
pub fn print(text: &str) -> io::Result<()> {
    print_raw(&text::escape_page(text))
}

/// Writes a config to stdout: YAML in which every text that is not plain ASCII is quoted as in JSON, or JSON.
pub(super) fn print_config(text: &str) -> io::Result<()> {
    print_raw(&text::escape_data(text))
}

/// Writes text to stdout that must not be changed, such as scripts.
pub(super) fn print_raw(text: &str) -> io::Result<()> {
    let stdout = io::stdout();
    // Write in one piece: a plan has thousands of lines, and each colour would be a separate write.
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

/// Writes data to stdout as JSON or YAML; `text` formats it for users.
pub fn print_data<T: Serialize>(
    format: Format,
    data: &T,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    let page = match format {
        Format::Text => text::escape_page(&text(data)),
        Format::Json => json(data)?,
        Format::Yaml => yaml(data)?,
    };
    Ok(print_raw(&page)?)
}

/// Data as YAML. Texts with terminal control characters are only safe in quotes, so such data is written in the form
/// of JSON, which is YAML as well.
fn yaml<T: Serialize>(data: &T) -> anyhow::Result<String> {
    let plain = serde_saphyr::to_string(data)?;
    match text::escape_data(&plain) == plain {
        true => Ok(plain),
        false => json(data),
    }
}

fn json<T: Serialize>(data: &T) -> anyhow::Result<String> {
    Ok(text::escape_data(
        &(serde_json::to_string_pretty(data)? + "\n"),
    ))
}

/// A file name that is unlikely to exist, for a file in a directory that others may write to.
pub(super) fn unused_file_name(prefix: &str) -> String {
    let now = Clock::system().now().as_nanosecond();
    format!("{prefix}{}-{now}", std::process::id())
}

/// Wraps a sentence between words: `first` precedes the first line, `others` the rest.
pub(super) fn wrapped(first: &str, others: &str, sentence: &str) -> String {
    let mut text = String::from(first);
    let mut column = first.chars().count();
    let mut begun = false;
    for word in sentence.split(' ') {
        let length = word.chars().count();
        if begun && column + 1 + length > text::LINE_COLUMNS {
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

/// Writes an error to stderr. A failure to do so is ignored.
pub(super) fn print_error(text: &str) {
    let _ = writeln!(anstream::stderr(), "machinist: {}", text::escape_page(text));
}

/// A failure with each of its reasons on its own line. A text that already ends with the code does
/// not get it again.
pub(super) fn failed(
    message: &str,
    refusals: &[Refusal],
    code: machinist_base::reason::Reason,
) -> String {
    let code = match message.contains(&format!("[{code}]")) {
        true => String::new(),
        false => format!(" [{code}]"),
    };
    let told = sentences(message, refusals);
    let mut told = told.iter().map(|one| machinist_plan::escape_line(one));
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
        text::escape_page(text)
    );
}

/// Writes text to stderr unchanged.
pub(super) fn write_error(text: &str) {
    let _ = anstream::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn escaping_yaml_keeps_its_meaning() {
        let texts = [
            "a\u{202e}b",
            "\u{9b}2J",
            "line\nwith \u{202e}\n",
            "# a\u{2066}",
            "a: \u{7f}",
            "\u{85}",
        ];
        let all: BTreeMap<String, String> = texts
            .into_iter()
            .map(|text| (format!("k{text}"), text.to_owned()))
            .collect();
        let shown = yaml(&all).unwrap();
        let misleading = |c: char| text::is_misleading(c) && c != '\n';
        assert!(!shown.chars().any(misleading), "{shown:?}");
        let read: BTreeMap<String, String> = serde_saphyr::from_str(&shown).unwrap();
        assert_eq!(read, all, "{shown}");
    }
}
