//! Implements `machinist journal`: shows the state that survives a crash, and replaces a journal
//! that cannot be read.

use std::fmt::Write as _;

use anyhow::bail;
use clap::{Args, Subcommand};

use super::{Confirmation, Exit, Global, OutputFormatArg, confirm, print, print_data};
use machinist_base::clock::Clock;
use machinist_rootfs::Root;
use machinist_update::{
    journal::{Journal, OsTrial, OsTrialState, Transaction},
    store::{self, StateStore, StoreError, paths},
};

/// Arguments of `journal`.
#[derive(Debug, Args)]
pub struct JournalArgs {
    /// The command to run.
    #[command(subcommand)]
    pub command: JournalCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum JournalCommand {
    /// Show the current config of the machine and a running update
    Show(ShowArgs),
    /// Move the journal aside and start a new one
    Reset(ResetArgs),
}

/// Flags of `journal show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

/// Flags of `journal reset`.
#[derive(Debug, Args)]
#[command(after_help = "\
For a journal that cannot be read (JournalUnreadable). Stop the agent first. The old journal is kept \
next to the new one. The next update compares the disk with the config again: objects that already match are \
adopted and are not removed when they leave the config; others are changed. The original files of managed paths \
are no longer known to machinist; they are kept below originals/.

Examples:
  machinist journal reset
  machinist journal reset --yes --force")]
pub struct ResetArgs {
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Also replace a journal that can be read, or while an update is or may be open: its partial
    /// changes remain
    #[arg(long)]
    pub force: bool,
}

pub(super) fn run(global: &Global, args: &JournalArgs) -> anyhow::Result<Exit> {
    let root = global.open_root()?;
    match &args.command {
        JournalCommand::Show(args) => show(&root, args),
        JournalCommand::Reset(args) => reset(&root, args),
    }
}

fn show(root: &Root, args: &ShowArgs) -> anyhow::Result<Exit> {
    let journal = store::peek(root)?.without_secrets();
    print_data(args.printed.output, &journal, text)?;
    Ok(Exit::Done)
}

fn text(journal: &Journal) -> String {
    let mut out = String::new();
    let base = journal.base.as_ref();
    let base = base.map_or_else(
        || "nothing yet".to_owned(),
        |base| format!("{}\n            {}", base.name, base.digest),
    );
    let machine = journal.machine_id.as_deref().unwrap_or("-");
    // Writing to a String cannot fail.
    let _ = writeln!(out, "machine-id  {machine}\non          {base}");
    for (name, count) in [
        ("owned", journal.owned.len()),
        ("originals", journal.originals.len()),
        ("adopted", journal.adopted.len()),
        ("entries", journal.entries.len()),
        ("history", journal.history.len()),
    ] {
        let _ = writeln!(out, "{name:<10}  {count}");
    }
    if let Some(failure) = &journal.failure {
        let _ = writeln!(out, "failure     {}: {}", failure.code, failure.message);
    }
    if journal.transactions.is_empty() {
        out.push_str("open        no update\n");
    }
    for tx in &journal.transactions {
        transaction(&mut out, tx);
    }
    if let Some(trial) = &journal.os_trial {
        let _ = writeln!(out, "os trial    {}", os_trial(trial));
    }
    out
}

/// The state of the staged deployment. The boot loader enters it only while it is armed, or when it is kept.
fn os_trial(trial: &OsTrial) -> String {
    let armed = match trial.state {
        OsTrialState::Armed => "armed",
        OsTrialState::Staged | OsTrialState::Booted | OsTrialState::RollingBack => "not armed",
    };
    let mut line = format!(
        "{}: {:?}, the boot loader is {armed}",
        trial.deployment, trial.state
    );
    if trial.keeps {
        line.push_str(", being made the default");
    }
    if trial.bypassed > 0 {
        // Writing to a String cannot fail.
        let _ = write!(line, ", reboots that did not try it: {}", trial.bypassed);
    }
    line
}

fn transaction(out: &mut String, tx: &Transaction) {
    let from = tx.from.as_ref().map_or("nothing", |from| &from.name);
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "open        {}: {:?}, {:?}, since {}\n            from {from}\n            to   {}",
        tx.id,
        tx.mark,
        tx.direction,
        tx.started.strftime("%Y-%m-%d %H:%M:%SZ"),
        tx.to.name
    );
    for operation in &tx.operations {
        let _ = writeln!(out, "            {}", operation.target);
    }
    for action in &tx.actions {
        let unit = action.unit.as_deref().unwrap_or_default();
        let _ = writeln!(
            out,
            "            then {:?} {unit}: {:?}",
            action.kind, action.state
        );
    }
}

fn reset(root: &Root, args: &ResetArgs) -> anyhow::Result<Exit> {
    if root.stat(&paths::journal())?.is_none() {
        print("No journal found; the next update creates one.\n")?;
        return Ok(Exit::Done);
    }
    // Hold the lock to the end, so that no update can start between the check and the new journal.
    let store = match StateStore::open(root) {
        Err(StoreError::Locked { lock }) => {
            bail!(
                "another machinist process uses this root ({} is locked): stop it first (systemctl stop machinist)",
                lock.display()
            )
        }
        store => store?,
    };
    let (state, loss) = describe(root)?;
    match loss {
        _ if args.force => {}
        JournalLoss::Nothing => {}
        JournalLoss::Update => bail!(
            "{state}: its partial changes would remain. Start the agent to finish it, or repair the machine manually and use --force"
        ),
        JournalLoss::Knowledge => bail!(
            "{state}: replacing {} loses the current config and the original files. To replace it anyway, use --force",
            root.host_path(&paths::journal()).display()
        ),
    }
    let question = format!("{state}. Move the journal aside and start a new one?");
    if confirm(&question, args.yes)? == Confirmation::No {
        super::output::warn("nothing was changed");
        return Ok(Exit::Failed);
    }
    let kept = keep_copy(root)?;
    let flags = super::root_flag(root);
    store.save(&Journal::default())?;
    print(&format!(
        "The old journal is kept as {kept}. Start the agent, or run machinist apply{flags}.\n"
    ))?;
    Ok(Exit::Done)
}

/// The information that is lost with a journal.
enum JournalLoss {
    /// Nothing that could still be read.
    Nothing,
    /// How the machine got its config.
    Knowledge,
    /// The state needed to complete an update that is or may be open.
    Update,
}

/// A short description of the journal.
fn describe(root: &Root) -> anyhow::Result<(String, JournalLoss)> {
    match store::peek(root) {
        Ok(journal) => match journal.top() {
            Some(tx) => Ok((
                format!("update {} is not finished", tx.id),
                JournalLoss::Update,
            )),
            None => Ok((
                "the journal is readable, and no update is in progress".to_owned(),
                JournalLoss::Knowledge,
            )),
        },
        Err(StoreError::Journal { source, .. }) => {
            let staged = root.list(&paths::staging()).unwrap_or_default();
            match staged.first() {
                Some(first) => {
                    let state = format!("{source}, and update {} may be unfinished", first.name);
                    Ok((state, JournalLoss::Update))
                }
                None => Ok((source.to_string(), JournalLoss::Nothing)),
            }
        }
        Err(error) => Err(error.into()),
    }
}

fn keep_copy(root: &Root) -> anyhow::Result<String> {
    let copy = store::backup_path(root, &paths::journal(), Clock::system().now())?;
    let text = root.read_nofollow(&paths::journal(), store::MAX_JOURNAL_BYTES)?;
    root.replace(&copy, &text, 0o600)?;
    Ok(root.host_path(&copy).display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_plan::OsUpdate;

    #[test]
    fn the_text_shows_the_trial_of_a_deployment() {
        let line = |trial: &OsTrial| {
            let journal = Journal {
                os_trial: Some(trial.clone()),
                ..Journal::default()
            };
            text(&journal).lines().last().map(str::to_owned)
        };
        let mut trial = OsTrial::new("ostree-2", "ostree-1", &OsUpdate::default());
        let staged = "os trial    ostree-2: Staged, the boot loader is not armed";
        assert_eq!(line(&trial).as_deref(), Some(staged));
        (trial.state, trial.bypassed) = (OsTrialState::Armed, 2);
        let armed =
            "os trial    ostree-2: Armed, the boot loader is armed, reboots that did not try it: 2";
        assert_eq!(line(&trial).as_deref(), Some(armed));
        (trial.state, trial.bypassed, trial.keeps) = (OsTrialState::Booted, 0, true);
        let kept =
            "os trial    ostree-2: Booted, the boot loader is not armed, being made the default";
        assert_eq!(line(&trial).as_deref(), Some(kept));
        assert!(!text(&Journal::default()).contains("os trial"));
    }
}
