//! Defines the list of commands.

use clap::{Parser, Subcommand};

use super::{
    Global, adopt, apply, cancel, completions, controller, cordon, crds, devices, drain, explain,
    guard, history, journal, man, plan, pool, recover, release, render, rollback, run, settings,
    status, uninstall, vendor_check, verify,
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
    /// Show the rollout of a pool and each of its nodes
    Pool(pool::PoolArgs),
    /// Estimate how long the rollout of a pool takes
    Estimate(pool::EstimateArgs),
    /// Pause the rollouts of a pool
    Pause(pool::PauseArgs),
    /// Unpause a pool, remove its pin, and start a first or stopped rollout
    Resume(pool::ResumeArgs),
    /// Leave a node out of the present rollout of its pool
    Skip(pool::SkipArgs),
    /// Free the slot of a grant that no agent will end
    ReleaseGrant(pool::ReleaseGrantArgs),
    /// Run the controller: render MachineConfigPools and roll them out, in a cluster without OpenShift
    Controller(controller::ControllerArgs),
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

#[cfg(test)]
mod help_tests {
    use clap::CommandFactory as _;

    use super::Cli;

    fn prose(line: &str) -> bool {
        !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':')
    }

    fn check_texts(command: &clap::Command) {
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
        command.get_subcommands().for_each(check_texts);
    }

    /// Terminals have different widths, so line breaks in a paragraph would be wrapped twice.
    #[test]
    fn help_paragraphs_contain_no_line_breaks() {
        check_texts(&Cli::command());
    }
}
