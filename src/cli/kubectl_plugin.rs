//! Implements `kubectl machinist`: kubectl runs a program `kubectl-machinist` on the `PATH`, which
//! is a link to this program.
//!
//! kubectl only passes the arguments after the plugin name: the cluster comes from `KUBECONFIG`, or
//! from flags after the plugin name.

use std::{ffi::OsString, path::Path};

use clap::{Command, CommandFactory as _, FromArgMatches as _};

use super::Cli;

/// The program name that kubectl expects of a plugin.
const PLUGIN_PROGRAM: &str = "kubectl-machinist";

/// Parses the arguments under the name that the program was called by.
pub(super) fn parse(arguments: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut command = command(is_plugin(arguments.first()));
    let matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

fn is_plugin(own_name: Option<&OsString>) -> bool {
    let name = own_name.and_then(|name| Path::new(name).file_name());
    name.is_some_and(|name| name == PLUGIN_PROGRAM)
}

/// The command line definition; as a kubectl plugin its texts contain the plugin's name.
fn command(plugin: bool) -> Command {
    let command = Cli::command();
    match plugin {
        true => renamed(command.bin_name("kubectl machinist")),
        false => command,
    }
}

/// Replaces the program name in the examples.
fn renamed(command: Command) -> Command {
    let help = command.get_after_help().map(ToString::to_string);
    let command = match help {
        Some(help) => command.after_help(help.replace("\n  machinist ", "\n  kubectl machinist ")),
        None => command,
    };
    command.mut_subcommands(renamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage_error(own_name: &str, arguments: &[&str]) -> String {
        let all = std::iter::once(own_name).chain(arguments.iter().copied());
        let error = parse(all.map(OsString::from).collect()).unwrap_err();
        error.to_string()
    }

    #[test]
    fn help_of_the_kubectl_plugin_uses_the_kubectl_command_name() {
        for name in ["kubectl-machinist", "/usr/local/bin/kubectl-machinist"] {
            let help = usage_error(name, &["--help"]);
            assert!(
                help.contains("Usage: kubectl machinist [OPTIONS] <COMMAND>"),
                "{help}"
            );
            let help = usage_error(name, &["status", "--help"]);
            assert!(help.contains("Usage: kubectl machinist status"), "{help}");
            assert!(
                help.contains("\n  kubectl machinist status --node worker-1"),
                "{help}"
            );
            let wrong = usage_error(name, &["status", "--such"]);
            assert!(wrong.contains("Usage: kubectl machinist status"), "{wrong}");
        }
        for name in ["machinist", "/usr/bin/machinist", "kubectl-machinist.old"] {
            let help = usage_error(name, &["status", "--help"]);
            assert!(!help.contains("kubectl machinist"), "{help}");
        }
    }
}
