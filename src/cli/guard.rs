//! Implements `machinist guard`. `machinist-guard.service` runs it at every boot; it ends
//! immediately if no update waits for a verdict on the boot.

use clap::Args;

use super::{Exit, Global, config_context::ConfigContext, daemon, print, start_logging};
use machinist_agent::boot_guard;
use machinist_base::error_chain::chain;
use machinist_rootfs::Root;
use machinist_status::settings::{self, Fragment, Reboot, Settings, SettingsInputs};
use machinist_update::store;

/// Flags of `guard`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct GuardArgs {
    /// Show whether the boot is to be judged, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

pub(super) fn run(global: &Global, args: &GuardArgs) -> anyhow::Result<Exit> {
    let root = global.open_root()?;
    let due = boot_guard::is_due(&root)?;
    if args.dry_run {
        print(if due {
            "this boot is to be verified\n"
        } else {
            "no boot to verify\n"
        })?;
        return Ok(Exit::Done);
    }
    if !due {
        return Ok(Exit::Done);
    }
    let (settings, problem) = settings(global, &root)?;
    start_logging(settings.log)?;
    if let Some(problem) = problem {
        tracing::warn!("using the default settings: {problem}");
    }
    let runtime = daemon()?;
    let ended = runtime.block_on(boot_guard::run(&root, &settings));
    runtime.shutdown_background();
    ended?;
    Ok(Exit::Done)
}

/// The settings; the defaults if they cannot be loaded, for example because of the open update
/// itself. With the defaults, a reboot is ordered only if the agent, with the user's permission,
/// also ordered a reboot in that update.
pub(super) fn settings(global: &Global, root: &Root) -> anyhow::Result<(Settings, Option<String>)> {
    let problem = match ConfigContext::open(global, Fragment::default(), false) {
        Ok(context) => return Ok((context.settings, None)),
        Err(error) => chain(error.as_ref()),
    };
    let mut settings = settings::load(SettingsInputs::default())?;
    let journal = store::peek(root)?;
    let ordered = journal.transactions.iter().any(|tx| tx.reboot.is_some());
    if !ordered {
        settings.update.reboot = Reboot::Never;
    }
    Ok((settings, Some(problem)))
}
