//! Defines the arguments that all commands share, and the list of commands.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use jiff::fmt::friendly::SpanParser;

use super::{
    adopt, apply, cancel, completions, cordon, crds, devices, drain, explain, guard, history,
    journal, man, plan, recover, release, render, rollback, run, settings, status, uninstall,
    vendor_check, verify,
};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;
use machinist_status::settings::{
    Fragment, LogFormat, Owners, SettingsFile, SettingsLocation, SourceSetting,
};

/// Applies machine configs, advertises devices to the kubelet and reports whether the machine is
/// ready for workloads.
#[derive(Debug, Parser)]
#[command(
    name = "machinist",
    version,
    propagate_version = true,
    after_help = "\
Exit codes: 0 done or healthy; 1 failed, refused or no agent running; 2 changes pending or drift \
(plan, verify); 64 invalid usage or settings."
)]
pub struct Cli {
    /// Flags of every command.
    #[command(flatten)]
    pub global: Global,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent: apply the machine's config, advertise its devices, report its readiness
    Run(run::RunArgs),
    /// Show what an update would change, why, and at which cost
    Plan(plan::PlanArgs),
    /// Apply a config once
    Apply(apply::ApplyArgs),
    /// Compare the machine with its current config
    Verify(verify::VerifyArgs),
    /// Return to an earlier config
    Rollback(rollback::RollbackArgs),
    /// Merge configs into one
    Render(render::RenderArgs),
    /// Show finished updates
    History(history::HistoryArgs),
    /// Explain why nothing is happening
    Explain(explain::ExplainArgs),
    /// Show the journal, or start a new one
    Journal(journal::JournalArgs),
    /// List and explain devices, check a declaration
    Devices(devices::DevicesArgs),
    /// Test a device driver against the rules of the vendor API, in place of the agent
    VendorCheck(vendor_check::VendorCheckArgs),
    /// Cordon a node and evict its pods
    Drain(drain::DrainArgs),
    /// Mark a node unschedulable
    Cordon(cordon::CordonArgs),
    /// Mark a node schedulable again
    Uncordon(cordon::UncordonArgs),
    /// Cancel the update of a node before it changes the disk
    Cancel(cancel::CancelArgs),
    /// Take a machine over from OpenShift's machine-config-daemon
    Adopt(adopt::AdoptArgs),
    /// Return a machine to OpenShift's machine-config-daemon
    Release(release::ReleaseArgs),
    /// Complete or undo an update that a crash interrupted, before anything else starts
    #[command(hide = true)]
    Recover(recover::RecoverArgs),
    /// Judge the running boot, and roll an update back if the boot fails
    #[command(hide = true)]
    Guard(guard::GuardArgs),
    /// Show the status that the running agent reports for this machine
    Status(status::StatusArgs),
    /// Show the effective settings and the origin of each
    Settings(settings::SettingsArgs),
    /// Remove what the agent installed on a host and set on its Node
    Uninstall(uninstall::UninstallArgs),
    /// Print the custom resource definitions for a cluster without OpenShift
    Crds(crds::CrdsArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
    /// Print the manual page
    Man(man::ManArgs),
}

/// Flags of every command, before or after its name.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Root directory of the machine's file system
    #[arg(long, global = true, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Directory with machinist.yaml and machinist.yaml.d, on your own file system [default:
    /// etc/machinist below the root]
    #[arg(long, global = true, value_name = "DIR")]
    pub config: Option<PathBuf>,
    /// Format of log lines on stderr [default: log.format of the settings, auto]
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        hide_possible_values = true
    )]
    pub log_format: Option<LogFormat>,
    /// Log more; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl Global {
    /// Opens the root, which must exist.
    pub fn open_root(&self) -> anyhow::Result<Root> {
        Ok(Root::open(&self.root)?)
    }

    /// The sources of the settings, including flags.
    pub fn settings_place(&self, root: &Root, flags: Fragment) -> anyhow::Result<SettingsLocation> {
        let pool = machinist_agent::pool_settings::stored_pool(root);
        let root_alone = root.accepts_only_root();
        let (root, dir) = match &self.config {
            Some(own) => (open_config(own)?, AbsPath::root()),
            None => (root.clone(), AbsPath::new(SettingsFile::DEFAULT_DIR)?),
        };
        Ok(SettingsLocation {
            root,
            dir,
            pool,
            environment: environment()?,
            flags: self.log_flags(flags),
            own_uid: nix::unistd::geteuid().as_raw(),
            root_alone,
        })
    }

    fn log_flags(&self, mut flags: Fragment) -> Fragment {
        if let Some(format) = self.log_format {
            flags = flags.with_flag("--log-format", "log.format", format.as_str());
        }
        match self.verbose {
            0 => flags,
            1 => flags.with_flag("-v", "log.level", "debug"),
            _ => flags.with_flag("-vv", "log.level", "trace"),
        }
    }
}

fn open_config(dir: &Path) -> anyhow::Result<Root> {
    Root::open(dir).context("cannot open the directory given with --config")
}

/// A `MACHINIST_` variable is not UTF-8.
#[derive(Debug, thiserror::Error)]
#[error("environment variable {0} is not valid UTF-8")]
pub(super) struct NonUtf8Env(String);

/// The environment variables. Those that are not UTF-8 are skipped, except for `MACHINIST_`
/// variables, which are an error.
fn environment() -> Result<Vec<(String, String)>, NonUtf8Env> {
    let mut all = Vec::new();
    for (name, value) in std::env::vars_os() {
        let shown = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => all.push((name, value)),
            _ if shown.starts_with("MACHINIST_") => return Err(NonUtf8Env(shown)),
            _ => {}
        }
    }
    Ok(all)
}

/// The config that `plan`, `apply` and `render` work on.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// MachineConfig, Ignition or Butane files; later ones override earlier ones. Files without a
    /// name of their own are merged in this order, MachineConfigs as in OpenShift: role worker
    /// first, then by name
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Source of configs: dir:PATH, or auto [default: source of the settings, auto]
    #[arg(long, value_name = "SOURCE", value_parser = SourceSetting::from_flag, conflicts_with = "files")]
    pub source: Option<SourceSetting>,
    /// The roles of the machine, such as worker,infra; MachineConfigs of other roles are skipped
    /// [default: source.role of the settings]
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    pub role: Vec<String>,
}

impl ConfigArgs {
    /// The settings that the flags set.
    pub fn flags(&self) -> Fragment {
        let flags = source_flag(Fragment::default(), self.source.as_ref());
        role_flag(flags, &self.role)
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = SpanParser::new().parse_unsigned_duration(text);
    match (text, parsed) {
        ("0", _) => Ok(Duration::ZERO),
        (_, parsed) => parsed.map_err(|_| "not a duration such as 90s or 15m".to_owned()),
    }
}

pub(super) fn source_flag(flags: Fragment, source: Option<&SourceSetting>) -> Fragment {
    match source {
        Some(source) => flags.with_flag("--source", "source", source.to_string()),
        None => flags,
    }
}

pub(super) fn role_flag(flags: Fragment, roles: &[String]) -> Fragment {
    match roles {
        [] => flags,
        roles => flags.with_flag("--role", "source.role", roles.join(",")),
    }
}

pub(super) fn owners_flag(flags: Fragment, owners: Option<Owners>) -> Fragment {
    match owners {
        Some(owners) => flags.with_flag("--owners", "owners", owners.as_str()),
        None => flags,
    }
}

#[cfg(test)]
mod help_tests {
    use clap::CommandFactory as _;

    use super::Cli;

    fn prose(line: &str) -> bool {
        !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':')
    }

    fn look_at(command: &clap::Command) {
        let help = command.get_after_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        let lines: Vec<_> = help.lines().collect();
        for two in lines.windows(2) {
            assert!(
                !(prose(two[0]) && prose(two[1])),
                "{}: {two:?}",
                command.get_name()
            );
        }
        command.get_subcommands().for_each(look_at);
    }

    /// Terminals have different widths, so line breaks in a paragraph would be wrapped twice.
    #[test]
    fn help_paragraphs_contain_no_line_breaks() {
        look_at(&Cli::command());
    }
}
