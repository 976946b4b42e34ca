//! Implements `machinist completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Exit, output::print_raw};

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

pub(super) fn run(args: CompletionsArgs) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "machinist", &mut script);
    print_raw(&String::from_utf8(script)?)?;
    Ok(Exit::Done)
}
