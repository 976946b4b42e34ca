//! Changes the machine through a running agent: sends it the request and follows its progress.

use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::time::{Instant, sleep};

use super::{
    Confirmation, Exit, Format,
    config_context::{ConfigContext, print_refusals},
    confirm, print, print_data,
    progress::UpdateProgressLine,
    short, status,
};
use machinist_agent::admin::submit_config;
use machinist_ignition::MachineConfig;
use machinist_plan::Plan;
use machinist_status::{Status, UpdateOutcomeStatus, UpdateStatus, settings};

/// The interval for polling the agent's progress, short enough to look smooth.
const PROGRESS_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long the agent may be unreachable while it is followed. A restarted agent is reachable again
/// within that time.
const AGENT_UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Options for applying a config.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApplyMode {
    /// The command that applies it.
    pub(super) by: &'static str,
    /// Do not ask for confirmation.
    pub(super) yes: bool,
    /// The output format.
    pub(super) output: Format,
}

/// Plans, asks the user for confirmation, sends the request to the agent and follows it to the end.
pub(super) fn apply_through_agent(
    context: &ConfigContext,
    before: &Status,
    config: &MachineConfig,
    how: ApplyMode,
) -> anyhow::Result<Exit> {
    if !how.yes && !super::prompt::has_terminal() {
        return Err(super::NotATerminal.into());
    }
    let Some(plan) = plan(context, config)? else {
        return Ok(Exit::Failed);
    };
    if !plan.is_empty() {
        if how.output == Format::Text {
            print(&plan.to_text(true))?;
        }
        if confirm("Apply this plan through the agent?", how.yes)? == Confirmation::No {
            super::output::warn("nothing was changed");
            return Ok(Exit::Failed);
        }
    }
    let digest = machinist_ignition::digest(config);
    let text = machinist_ignition::to_portable_json(config)?;
    let taken = submit_config(&context.root, how.by, &config.name, &text)?;
    let progress = UpdateProgressLine::new(how.output);
    let digest = digest.to_string();
    let ended = follow(context, taken.requested, &digest, &progress);
    let ended = short()?.block_on(ended)?;
    drop(progress);
    let known = before.updates.first().map(|update| &update.id);
    let update = ended.updates.first();
    let update = update.filter(|update| Some(&update.id) != known);
    finish(context, &ended, &digest, update, how)
}

/// The plan; none if the config is refused, after printing the refusals.
fn plan(context: &ConfigContext, config: &MachineConfig) -> anyhow::Result<Option<Plan>> {
    let capabilities =
        machinist_agent::read_only_capabilities(&context.root, context.settings.owners);
    let policies = context.policies()?;
    let planned = machinist_agent::plan(&context.root, config, capabilities, &policies);
    let planned = short()?.block_on(planned)?;
    match planned {
        Ok(plan) => Ok(Some(plan)),
        Err(refusals) => {
            print_refusals(&refusals);
            Ok(None)
        }
    }
}

/// Waits until the agent has received request `requested` and is idle, or cannot continue on its own.
async fn follow(
    context: &ConfigContext,
    requested: u64,
    digest: &str,
    progress: &UpdateProgressLine,
) -> anyhow::Result<Status> {
    let mut heard = Instant::now();
    // A restarted agent counts requests from zero, but has read the request from the disk.
    let mut restarted = false;
    loop {
        match status::fetch_status(&context.root) {
            Ok(status) => {
                heard = Instant::now();
                progress.phase(&status.phase);
                let wanted = status.config.desired_digest == digest;
                let rests = match status.phase.as_str() {
                    // If it is idle and the config is not applied yet, it has received the request
                    // and not started.
                    "Idle" => status.config.digest == digest || !wanted || status.failure.is_some(),
                    "Failed" => true,
                    // The reboot ends this command, or another actor has to trigger it.
                    "RebootPending" => wanted,
                    _ => false,
                };
                if rests && (status.requested >= requested || restarted && wanted) {
                    return Ok(status);
                }
            }
            Err(error) if heard.elapsed() > AGENT_UNREACHABLE_TIMEOUT => {
                return Err(error).context(
                    "lost connection to the agent; it resumes the update when it starts again",
                );
            }
            Err(_) => restarted = true,
        }
        sleep(PROGRESS_POLL_INTERVAL).await;
    }
}

/// Prints the result.
fn finish(
    context: &ConfigContext,
    ended: &Status,
    digest: &str,
    update: Option<&UpdateStatus>,
    how: ApplyMode,
) -> anyhow::Result<Exit> {
    if let Some(failure) = &ended.failure {
        print_data(how.output, &update, |_| {
            super::output::failed(&failure.message, &failure.refusals, failure.code)
        })?;
        return Ok(Exit::Failed);
    }
    if ended.phase == "RebootPending" {
        let never = context.settings.update.reboot == settings::Reboot::Never;
        print_data(how.output, &update, |_| {
            match never {
                true => "All changes are in place and take effect after a manual reboot (update.reboot: never). Kernel arguments and OS \
                     images take effect only after a reboot that machinist requests (update.reboot: ask).\n",
                false => "All changes are in place, rebooting.\n",
            }
            .to_owned()
        })?;
        return Ok(Exit::Done);
    }
    if ended.config.digest != digest {
        bail!("the agent applied {} in the meantime", ended.config.current);
    }
    print_data(how.output, &update, |update| match update {
        Some(update) => {
            let outcome = update.outcome.map_or("", UpdateOutcomeStatus::as_str);
            format!("{outcome}: config is now {}.\n", ended.config.current)
        }
        None => "The machine matches the config.\n".to_owned(),
    })?;
    Ok(Exit::Done)
}
