//! Implements `machinist recover`, which `machinist-recover.service` runs before ordinary services
//! start.

use clap::Args;

use super::{Exit, Global, guard::settings, print, short, start_logging};
use machinist_systemd::Systemd;
use machinist_update::{
    boot_id,
    crash_recovery::recover,
    store::{self, StateStore},
};

/// Flags of `recover`.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct RecoverArgs {
    /// Show what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

pub(super) fn run(global: &Global, args: &RecoverArgs) -> anyhow::Result<Exit> {
    let root = global.open_root()?;
    if args.dry_run {
        let journal = store::peek(&root)?;
        let open = journal.transactions.iter();
        print(
            &open
                .map(|tx| format!("{}: {:?} {:?}\n", tx.id, tx.direction, tx.mark))
                .collect::<String>(),
        )?;
        return Ok(Exit::Done);
    }
    // The interrupted update may itself have made the settings invalid.
    let (settings, _) = settings(global, &root)?;
    start_logging(settings.log)?;
    let store = StateStore::open(&root)?;
    if root.is_live() {
        // Record this first: commits below belong to this start of userspace.
        short()?.block_on(boot_id::record_userspace(&root, &Systemd::of(&root)));
    }
    let (_, done) = recover(&store)?;
    if done.is_empty() {
        return Ok(Exit::Done);
    }
    tracing::info!(?done, "recovered from an interrupted update");
    if done.units_changed && root.is_live() {
        short()?.block_on(notify_manager(&Systemd::of(&root)))?;
    }
    Ok(Exit::Done)
}

/// Reloads the service manager; otherwise PID 1 would run the old units that it read before the
/// files were recovered.
async fn notify_manager(manager: &Systemd) -> anyhow::Result<()> {
    manager.daemon_reload().await?;
    manager.default_target_again().await?;
    Ok(())
}
