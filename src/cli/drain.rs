//! Implements `machinist drain`.

mod progress;
mod report;

use std::{sync::Arc, time::Duration};

use clap::{ArgAction, Args};
use tokio_util::sync::CancellationToken;

use self::{progress::DrainProgressPrinter, report::NodeDrainReport};
use super::{
    Exit, Format, Global, OutputFormatArg,
    args::duration,
    node_selection::{DryRunArg, SelectedNodes, log},
    print_data, selector, short, start_logging_beside_a_page,
};
use machinist_base::clock::Clock;
use machinist_cluster::{
    Cluster,
    node_commands::{self, CordonRequest},
    pods::NodePods,
};
use machinist_drain::{
    DrainRules, Grace, LossPolicy,
    eviction::{
        BudgetMode, DEFAULT_MAX_CONCURRENT_EVICTIONS, Drain, DrainError, ForceState, Options,
    },
};

/// How long the API server may be unreachable during a drain before the drain fails: a restart of a
/// single one takes less.
const API_OUTAGE_TIMEOUT: Duration = Duration::from_secs(120);

/// Flags of `drain`: the names are those of kubectl and oc 3.11.
#[derive(Debug, Args)]
#[command(after_help = "\
Cordons the node and evicts its pods. Waits for PodDisruptionBudgets and reports those that block it. Pods that \
would lose data or not be recreated stop it before any change, unless a flag allows it. The node stays cordoned \
in any case.

Examples:
  machinist drain --ignore-daemonsets worker-1
  machinist drain --ignore-daemonsets --delete-emptydir-data --timeout 15m worker-1
  machinist drain --dry-run=server --ignore-daemonsets worker-1")]
pub struct DrainArgs {
    /// The nodes.
    #[command(flatten)]
    pub nodes: SelectedNodes,
    /// Also evict pods that no controller recreates
    #[arg(long, value_name = "YES", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true)]
    pub force: bool,
    /// Leave pods of DaemonSets running
    #[arg(long, value_name = "YES", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true)]
    pub ignore_daemonsets: bool,
    /// Also evict pods with emptyDir volumes; their data is lost
    #[arg(long, alias = "delete-local-data", value_name = "YES", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", hide_default_value = true, hide_possible_values = true)]
    pub delete_emptydir_data: bool,
    /// Seconds that pods get to terminate; negative means each pod's own value, 0 is refused
    #[arg(long, value_name = "SECONDS", default_value = "-1", allow_negative_numbers = true,
        value_parser = grace)]
    pub grace_period: Grace,
    /// Timeout of the drain; 0 waits forever
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    pub timeout: Duration,
    /// Label selector of the pods to evict
    #[arg(long, value_name = "SELECTOR", value_parser = selector::labels)]
    pub pod_selector: Option<String>,
    /// Delete pods instead of evicting them, which bypasses PodDisruptionBudgets
    #[arg(long, value_name = "YES", action = ArgAction::Set, num_args = 0..=1, require_equals = true,
        default_value = "false", default_missing_value = "true", hide_default_value = true,
        hide_possible_values = true)]
    pub disable_eviction: bool,
    /// Do not wait for pods whose deletion is overdue by more than this number of seconds; 0 waits
    /// for all
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    pub skip_wait_for_delete_timeout: u64,
    /// Maximum number of parallel evictions
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_CONCURRENT_EVICTIONS, value_parser = at_once)]
    pub at_once: usize,
    /// Accepted for compatibility with kubectl and ignored
    #[arg(long, value_name = "N")]
    pub chunk_size: Option<u64>,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
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
                LossPolicy::Evict
            } else {
                LossPolicy::Refuse
            }
        };
        let skip = self.skip_wait_for_delete_timeout;
        Options {
            rules: DrainRules {
                own: None,
                left_out: Vec::new(),
                leave_daemon_sets: self.ignore_daemonsets,
                unmanaged: permit(self.force),
                local_data: permit(self.delete_emptydir_data),
                skip_deleted: (skip > 0).then(|| Duration::from_secs(skip)),
            },
            grace: self.grace_period,
            time_limit: Some(self.timeout).filter(|limit| !limit.is_zero()),
            patience: Some(API_OUTAGE_TIMEOUT),
            at_once: self.at_once,
            way: match self.disable_eviction {
                true => BudgetMode::Delete,
                false => BudgetMode::Evict,
            },
            ..Options::default()
        }
    }
}

pub(super) fn run(global: &Global, args: &DrainArgs) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let nodes = short()?.block_on(all(args))?;
    let failed = nodes.iter().any(|node| node.reason.is_some());
    let drain = report::DrainOutput::new(args.nodes.mode.dry_run.as_str(), nodes);
    print_data(args.printed.output, &drain, |drain| {
        drain.nodes.iter().map(NodeDrainReport::to_text).collect()
    })?;
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// Processes the nodes one after the other; a failure does not stop the others.
async fn all(args: &DrainArgs) -> anyhow::Result<Vec<NodeDrainReport>> {
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
            true => NodeDrainReport::failed(&name, &DrainError::Stopped),
            false => one(args, &cluster, &name, &stop).await,
        };
        if let Some(message) = report.message.as_ref() {
            super::output::print_error(&format!("node/{name}: {message}"));
        }
        reports.push(report);
    }
    Ok(reports)
}

async fn one(
    args: &DrainArgs,
    cluster: &Cluster,
    name: &str,
    stop: &CancellationToken,
) -> NodeDrainReport {
    let pods = NodePods::new(cluster.clone(), args.pod_selector.clone());
    let drain = Drain::new(Arc::new(pods), name, args.options(), Clock::system());
    let dry_run = args.nodes.mode.dry_run;
    // Also without --dry-run: obstacles are reported before the node is changed.
    let rehearsal = match drain.rehearse(dry_run == DryRunArg::Server).await {
        Ok(rehearsal) => rehearsal,
        Err(error) => return NodeDrainReport::failed(name, &error),
    };
    if !rehearsal.refuse.is_empty() {
        return NodeDrainReport::failed(name, &DrainError::Refused(rehearsal.refuse));
    }
    let wish = CordonRequest::Cordon { keep: false };
    if let Err(error) = node_commands::apply_cordon(cluster, name, wish, dry_run.into()).await {
        return NodeDrainReport::cordon_failed(name, &error);
    }
    if dry_run != DryRunArg::None {
        return NodeDrainReport::preview(name, dry_run, &rehearsal);
    }
    let mut teller = DrainProgressPrinter::new(name, args.printed.output == Format::Text);
    let mut progress = drain.progress();
    let mut running = std::pin::pin!(drain.run(ForceState::never(), stop.clone()));
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            // Cancel safe: a change missed here is still marked as unseen.
            _ = progress.changed() => teller.print_progress(&progress.borrow_and_update()),
        }
    };
    let last = progress.borrow();
    teller.print_progress(&last);
    drop(teller);
    match ended {
        Ok(_) => NodeDrainReport::drained(name, &last),
        Err(error) => NodeDrainReport::failed(name, &error).with_progress(&last),
    }
}
