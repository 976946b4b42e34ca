//! `machinist drain`.

mod report;
mod tell;

use std::{sync::Arc, time::Duration};

use clap::{ArgAction, Args};
use tokio_util::sync::CancellationToken;

use self::{report::Report, tell::Teller};
use super::{
    Exit, Format, Global, Printed,
    args::duration,
    nodes::{Nodes, Rehearse, log},
    print_data, selector, short, start_logging_beside_a_page,
};
use crate::{
    clock::Clock,
    cluster::{
        Cluster,
        by_hand::{self, Wish},
        pods::NodePods,
    },
    drain::{
        Grace, Permit, Rules,
        evict::{AT_ONCE, Drain, DrainError, Force, Options, Way},
    },
};

/// How long the API server may be away in the middle of a drain before a person is told: a restart of
/// a single one takes less.
const PATIENCE: Duration = Duration::from_secs(120);

/// Flags of `drain`: the names are kubectl's, and those of oc 3.11.
#[derive(Debug, Args)]
#[command(after_help = "\
Cordons the node and evicts its pods; budgets are waited for, and named. Pods that would lose something \
stop it before anything is changed, until a flag allows it. The node stays cordoned however it ends.

Examples:
  machinist drain --ignore-daemonsets worker-1
  machinist drain --ignore-daemonsets --delete-emptydir-data --timeout 15m worker-1
  machinist drain --dry-run=server --ignore-daemonsets worker-1")]
pub struct DrainArgs {
    /// Which nodes.
    #[command(flatten)]
    pub nodes: Nodes,
    /// Evict pods that no controller makes anew, too
    #[arg(long, value_name = "YES", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true)]
    pub force: bool,
    /// Leave pods of DaemonSets where they are
    #[arg(long, value_name = "YES", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true)]
    pub ignore_daemonsets: bool,
    /// Evict pods with emptyDir volumes, too; what those hold is lost
    #[arg(long, alias = "delete-local-data", value_name = "YES", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    pub delete_emptydir_data: bool,
    /// Seconds that pods get to end; negative is each pod's own, 0 is refused
    #[arg(long, value_name = "SECONDS", default_value = "-1", allow_negative_numbers = true,
        value_parser = grace)]
    pub grace_period: Grace,
    /// Give up after this time; 0 waits for ever
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub timeout: Duration,
    /// Only pods with these labels
    #[arg(long, value_name = "SELECTOR", value_parser = selector::labels)]
    pub pod_selector: Option<String>,
    /// Delete pods instead of evicting them: no budget is asked
    #[arg(long, value_name = "YES", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true)]
    pub disable_eviction: bool,
    /// Do not wait for pods that should have ended so many seconds ago; 0 waits for all
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    pub skip_wait_for_delete_timeout: u64,
    /// Evictions under way at a time
    #[arg(long, value_name = "N", default_value_t = AT_ONCE, value_parser = at_once)]
    pub at_once: usize,
    /// Taken for kubectl's sake; pages have their own size
    #[arg(long, value_name = "N")]
    pub chunk_size: Option<u64>,
    /// How it is printed.
    #[command(flatten)]
    pub printed: Printed,
}

fn grace(text: &str) -> Result<Grace, String> {
    let seconds: i64 = text
        .parse()
        .map_err(|_| "not a whole number of seconds".to_owned())?;
    Grace::try_from(seconds).map_err(|error| error.to_string())
}

fn at_once(text: &str) -> Result<usize, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (1..=250).contains(number));
    number.ok_or_else(|| "not a number from 1 to 250".to_owned())
}

impl DrainArgs {
    fn options(&self) -> Options {
        let permit = |allowed| {
            if allowed {
                Permit::Evict
            } else {
                Permit::Refuse
            }
        };
        let skip = self.skip_wait_for_delete_timeout;
        Options {
            rules: Rules {
                own: None,
                left_out: Vec::new(),
                leave_daemon_sets: self.ignore_daemonsets,
                unmanaged: permit(self.force),
                local_data: permit(self.delete_emptydir_data),
                skip_deleted: (skip > 0).then(|| Duration::from_secs(skip)),
            },
            grace: self.grace_period,
            time_limit: Some(self.timeout).filter(|limit| !limit.is_zero()),
            patience: Some(PATIENCE),
            at_once: self.at_once,
            way: match self.disable_eviction {
                true => Way::Delete,
                false => Way::Evict,
            },
            ..Options::default()
        }
    }
}

pub(super) fn run(global: &Global, args: &DrainArgs) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let nodes = short()?.block_on(all(args))?;
    let failed = nodes.iter().any(|node| node.reason.is_some());
    let drain = report::Drain::new(args.nodes.dry_run.as_str(), nodes);
    print_data(args.printed.output, &drain, |drain| {
        drain.nodes.iter().map(Report::to_text).collect()
    })?;
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// One node after the other; one that fails does not keep the next.
async fn all(args: &DrainArgs) -> anyhow::Result<Vec<Report>> {
    let cluster = args.nodes.cluster().await?;
    let names = args.nodes.names(&cluster).await?;
    let stop = CancellationToken::new();
    let called_off = stop.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            called_off.cancel();
        }
    });
    let mut reports = Vec::new();
    for name in names {
        let report = match stop.is_cancelled() {
            true => Report::failed(&name, &DrainError::Stopped),
            false => one(args, &cluster, &name, &stop).await,
        };
        if let Some(message) = report.message.as_ref() {
            super::output::complain(&format!("node/{name}: {message}"));
        }
        reports.push(report);
    }
    Ok(reports)
}

async fn one(args: &DrainArgs, cluster: &Cluster, name: &str, stop: &CancellationToken) -> Report {
    let pods = NodePods::new(cluster.clone(), args.pod_selector.clone());
    let drain = Drain::new(Arc::new(pods), name, args.options(), Clock::system());
    let dry_run = args.nodes.dry_run;
    // Also for real: what speaks against it is told before the node is touched.
    let rehearsal = match drain.rehearse(dry_run == Rehearse::Server).await {
        Ok(rehearsal) => rehearsal,
        Err(error) => return Report::failed(name, &error),
    };
    if !rehearsal.refuse.is_empty() {
        return Report::failed(name, &DrainError::Refused(rehearsal.refuse));
    }
    let wish = Wish::Cordon { keep: false };
    if let Err(error) = by_hand::set(cluster, name, wish, dry_run.into()).await {
        return Report::not_cordoned(name, &error);
    }
    if dry_run != Rehearse::None {
        return Report::rehearsed(name, dry_run, &rehearsal);
    }
    let mut teller = Teller::new(name, args.printed.output == Format::Text);
    let mut progress = drain.progress();
    let mut running = std::pin::pin!(drain.run(Force::never(), stop.clone()));
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            // Safe to drop: what is missed here is still marked unseen.
            _ = progress.changed() => teller.tell(&progress.borrow_and_update()),
        }
    };
    let last = progress.borrow();
    teller.tell(&last);
    drop(teller);
    match ended {
        Ok(_) => Report::drained(name, &last),
        Err(error) => Report::failed(name, &error).at(&last),
    }
}
