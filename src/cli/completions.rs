//! Implements `machinist completions`.

use clap::{Args, Command};
use clap_complete::Shell;

use super::{Exit, output::print_raw};

/// Arguments of `completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  machinist completions bash > /usr/share/bash-completion/completions/machinist
  source <(machinist completions zsh)")]
pub struct CompletionsArgs {
    /// bash, elvish, fish, powershell or zsh
    #[arg(hide_possible_values = true)]
    pub shell: Shell,
}

pub(super) fn run(mut all: Command, args: CompletionsArgs) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut all, "machinist", &mut script);
    print_raw(&String::from_utf8(script)?)?;
    Ok(Exit::Done)
}
