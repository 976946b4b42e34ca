//! Implements `machinist history`.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use clap::Args;

use super::{
    Exit, Format, Global, OutputFormatArg, caller_path::CallerPath, output::unused_file_name,
    print, print_data,
};
use machinist_agent::reporter::finished;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Meta;
use machinist_status::{UpdateStatus, render_history, timeline};
use machinist_update::store;

/// Flags of `history`.
#[derive(Debug, Args)]
#[command(after_help = "\
The newest update comes first; the journal keeps the last 20, and the last 5 repairs of drift.

Examples:
  machinist history
  machinist history -n 3 -o json
  machinist history --timeline updates.svg")]
pub struct HistoryArgs {
    /// Show only the last updates
    #[arg(short = 'n', long, value_name = "COUNT")]
    pub last: Option<usize>,
    /// Draw the phases of these updates into an SVG file instead
    #[arg(long, value_name = "FILE")]
    pub timeline: Option<PathBuf>,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(global: &Global, args: &HistoryArgs) -> anyhow::Result<Exit> {
    let journal = store::peek(&global.open_root()?)?;
    let last = args.last.unwrap_or(usize::MAX);
    let updates: Vec<UpdateStatus> = journal
        .history
        .iter()
        .rev()
        .take(last)
        .map(finished)
        .collect();
    if let Some(file) = &args.timeline {
        write(file, &timeline(&updates))?;
        return Ok(Exit::Done);
    }
    match (args.printed.output, updates.is_empty()) {
        (Format::Text, true) => print("No updates yet.\n")?,
        (format, _) => print_data(format, &updates, |updates| render_history(updates))?,
    }
    Ok(Exit::Done)
}

/// Writes a file to the caller's own file system. Other users may be able to write to its
/// directory, so the text is written to a new file, which is renamed when it is complete.
fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let CallerPath { root, path } = CallerPath::of(file)?;
    let dir = path.parent().unwrap_or_else(AbsPath::root);
    let new = dir.join(&unused_file_name(&format!(".{}.", path.file_name())))?;
    let written = root
        .build_file(&new, text.as_bytes(), &Meta::unowned(0o644))
        .and_then(|()| root.move_over(&new, &path));
    match &written {
        // Another user has created an object with the new name.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(_) => root.remove_file(&new)?,
        Ok(()) => {}
    }
    Ok(written?)
}
