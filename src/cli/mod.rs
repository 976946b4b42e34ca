//! Implements the command line: arguments in, text on stdout, one exit code. Only this module
//! prints to stdout.

mod agent_client;
mod args;
mod bootstrap;
mod caller_path;
mod commands;
mod completions;
mod config_context;
mod crds;
mod fleet;
mod handover;
mod kubectl_plugin;
mod man;
mod node_selection;
mod notify_args;
mod output;
mod progress;
mod prompt;
mod selector;
mod settings;
mod status;

pub mod adopt;
pub mod apply;
pub mod cancel;
pub mod controller;
pub mod cordon;
pub mod devices;
pub mod drain;
pub mod explain;
pub mod guard;
pub mod history;
pub mod journal;
pub mod plan;
pub mod pool;
pub mod recover;
pub mod release;
pub mod render;
pub mod rollback;
pub mod run;
pub mod uninstall;
pub mod vendor_check;
pub mod verify;

pub use args::{ConfigArgs, Global};
pub use bootstrap::{daemon, protect_memory, short, start_logging, start_logging_beside_a_page};
pub use commands::{Cli, Command};
pub use output::{Format, OutputFormatArg, print, print_data};
pub use prompt::{Confirmation, NotATerminal, confirm};

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::CommandFactory as _;

use crate::logging::TelemetryError;
use machinist_agent::AgentError;
use machinist_base::error_chain::chain;
use machinist_rootfs::Root;
use machinist_status::settings::{FindError, LoadError};

/// The exit codes, which are part of the stable interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done, healthy, nothing to do.
    Done,
    /// 1: failed, refused, or no agent or terminal available.
    Failed,
    /// 2: changes are pending (`plan`), the machine drifted (`verify`).
    Pending,
    /// 64: wrong usage or settings (`EX_USAGE` of sysexits.h).
    Usage,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::from(0),
            Exit::Failed => Self::from(1),
            Exit::Pending => Self::from(2),
            Exit::Usage => Self::from(64),
        }
    }
}

/// The flag that selects this root, after a space; empty for `/`.
fn root_flag(root: &Root) -> String {
    match root.display() {
        root if root == Path::new("/") => String::new(),
        root => format!(" --root {}", root.display()),
    }
}

/// Runs the command line and returns how it ended. An error is printed once, here.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> Exit {
    let cli = match kubectl_plugin::parse(arguments.into_iter().collect()) {
        Ok(cli) => cli,
        Err(told) => return tell(&told),
    };
    match dispatch(cli) {
        Ok(exit) => exit,
        Err(error) => {
            output::print_error(&chain(error.as_ref()));
            code_of(&error)
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    let Cli { global, command } = cli;
    // It starts a program of its user, which would inherit the limit.
    if !matches!(command, Command::VendorCheck(_))
        && let Err(error) = protect_memory()
    {
        output::print_error(&format!("cannot prevent core dumps: {error}"));
    }
    match command {
        Command::Run(args) => run::run(&global, &args),
        Command::Plan(args) => plan::run(&global, &args),
        Command::Apply(args) => apply::run(&global, &args),
        Command::Verify(args) => verify::run(&global, &args),
        Command::Rollback(args) => rollback::run(&global, &args),
        Command::Render(args) => render::run(&global, &args),
        Command::History(args) => history::run(&global, &args),
        Command::Explain(args) => explain::run(&global, &args),
        Command::Journal(args) => journal::run(&global, &args),
        Command::Devices(args) => devices::run(&global, &args),
        Command::VendorCheck(args) => vendor_check::run(&args),
        Command::Drain(args) => drain::run(&global, &args),
        Command::Cordon(args) => cordon::cordon(&global, &args),
        Command::Uncordon(args) => cordon::uncordon(&global, &args),
        Command::Cancel(args) => cancel::run(&global, &args),
        Command::Pool(args) => pool::run(&global, &args),
        Command::Estimate(args) => pool::estimate(&global, &args),
        Command::Pause(args) => pool::pause(&global, &args),
        Command::Resume(args) => pool::resume(&global, &args),
        Command::Skip(args) => pool::skip(&global, &args),
        Command::ReleaseGrant(args) => pool::release_grant(&global, &args),
        Command::Controller(args) => controller::run(&global, &args),
        Command::Adopt(args) => adopt::run(&global, &args),
        Command::Release(args) => release::run(&global, &args),
        Command::Recover(args) => recover::run(&global, &args),
        Command::Guard(args) => guard::run(&global, &args),
        Command::Status(args) => status::run(&global, args),
        Command::Settings(args) => settings::run(&global, args),
        Command::Uninstall(args) => uninstall::run(&global, &args),
        Command::Crds(args) => crds::run(&args),
        Command::Completions(args) => completions::run(Cli::command(), args),
        Command::Man(args) => man::run(Cli::command(), &args),
    }
}

/// Prints a clap error. Help and version go to stdout and are not errors; everything else that clap
/// refuses is wrong usage.
fn tell(told: &clap::Error) -> Exit {
    match (told.use_stderr(), told.print()) {
        (true, _) => Exit::Usage,
        (false, Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => Exit::Failed,
        (false, _) => Exit::Done,
    }
}

fn code_of(error: &anyhow::Error) -> Exit {
    let settings = match error.downcast_ref() {
        Some(LoadError::Settings(_)) => true,
        // A directory or a pipe in place of a file is an error in the settings, not a failure.
        Some(LoadError::Find(FindError::Read(error))) => error.is_wrong_kind(),
        None | Some(LoadError::Find(FindError::Path(_))) => false,
    };
    let settings =
        settings || error.is::<args::NonUtf8Env>() || error.is::<machinist_agent::PoliciesError>();
    let settings = settings || matches!(error.downcast_ref(), Some(AgentError::Policies(_)));
    let filter = matches!(error.downcast_ref(), Some(TelemetryError::Filter { .. }));
    match settings || filter {
        true => Exit::Usage,
        false => Exit::Failed,
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod advised_commands;
