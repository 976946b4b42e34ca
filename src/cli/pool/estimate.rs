//! Implements `machinist estimate`: how long the rollout of a pool takes, in which waves.

use clap::Args;

use super::{
    phase_times::PhaseTime,
    plan_policies::PlanPolicies,
    report::PoolObjects,
    rollout_estimate::{RolloutEstimate, RolloutWave, duration, estimate},
    rollout_plan::{ConfigSource, reboot_of_target},
};
use crate::cli::{
    Exit, Global, OutputFormatArg,
    fleet::or_warn,
    node_selection::{ClusterArgs, log},
    output::wrapped,
    print_data, selector, short, start_logging_beside_a_page,
};
use machinist_base::{
    clock::Clock,
    text::{counted, join_limited},
};
use machinist_cluster::Cluster;
use machinist_controller::PreviewConfigs;
use machinist_ignition::ConfigRules;
use machinist_plan::escape_line;
use machinist_pool::RebootKind;

/// How many waves and nodes of a wave the page shows.
const MAX_SHOWN_WAVES: usize = 10;

/// How many phases the page shows.
const MAX_SHOWN_PHASES: usize = 6;

/// Flags of `estimate`.
#[derive(Debug, Args)]
#[command(after_help = "\
The time of one node is that within which nine of ten of the pool's last successful updates with a reboot ended, or of \
those without one if the change needs none. Without any, it is 5 min plus the reboot that the change needs. Time \
outside of maintenance windows and of blocked drains is not part of the estimate.

Examples:
  machinist estimate --pool worker
  machinist estimate --pool worker -o json")]
pub struct EstimateArgs {
    /// The pool
    #[arg(long, value_name = "NAME", value_parser = selector::pool)]
    pub pool: String,
    /// The cluster.
    #[command(flatten)]
    pub reach: ClusterArgs,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(in crate::cli) fn run(global: &Global, args: &EstimateArgs) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let name = args.pool.as_str();
    let estimate = short()?.block_on(async {
        let cluster = args.reach.cluster().await?;
        let objects = PoolObjects::read(&cluster, Some(name)).await?;
        let mut notes = Vec::new();
        let reboot = reboot_of_pool(&cluster, &objects, name, &mut notes).await?;
        let mut estimate = estimate(&objects, name, reboot, Clock::system().now())?;
        estimate.notes.extend(notes);
        anyhow::Ok(estimate)
    })?;
    print_data(args.printed.output, &estimate, page)?;
    Ok(Exit::Done)
}

/// The reboot that the rollout needs, from the configs of the nodes; one of the machine if these must not be read.
async fn reboot_of_pool(
    cluster: &Cluster,
    objects: &PoolObjects,
    name: &str,
    notes: &mut Vec<String>,
) -> anyhow::Result<RebootKind> {
    let Some(configs) = or_warn(PreviewConfigs::read(cluster).await, notes)? else {
        notes.push("a reboot of each machine is assumed".to_owned());
        return Ok(RebootKind::Full);
    };
    let source = ConfigSource {
        configs: &configs,
        // Only differences count: who may own files was decided when the configs were rendered.
        rules: &ConfigRules::default(),
        policies: &PlanPolicies::read(cluster, notes).await?,
    };
    Ok(reboot_of_target(objects, name, &source))
}

pub(super) fn page(estimate: &RolloutEstimate) -> String {
    let target = estimate.target.as_deref().unwrap_or("no config");
    let head = format!(
        "{}: {} of {} not on {target}, at most {} at once",
        estimate.pool,
        estimate.pending,
        counted(estimate.machines, "node"),
        estimate.at_most
    );
    let mut text = wrapped("", "  ", &escape_line(&head));
    let basis = &estimate.basis.text;
    let node = format!("per node {}: {basis}", duration(estimate.node_seconds));
    text += &wrapped("  ", "    ", &node);
    if !estimate.phases.is_empty() {
        text += &wrapped("  ", "    ", &escape_line(&phases_text(&estimate.phases)));
    }
    for (at, wave) in estimate.waves.iter().take(MAX_SHOWN_WAVES).enumerate() {
        text += &wrapped("  ", "    ", &escape_line(&wave_text(at, wave)));
    }
    let more = estimate.waves.len().saturating_sub(MAX_SHOWN_WAVES);
    if more > 0 {
        text += &format!("  … {}\n", counted(more, "more wave"));
    }
    text += &format!("  total {}", duration(estimate.total_seconds));
    if let Some(typical) = estimate.typical_seconds {
        text += &format!(
            "; with the median of all recorded updates {}",
            duration(typical)
        );
    }
    text.push('\n');
    let cluster = format!(
        "OpenShift's formula for a whole cluster update with this pool: {}",
        duration(estimate.cluster_seconds)
    );
    text += &wrapped("  ", "    ", &cluster);
    let notes = estimate.notes.iter();
    let notes = notes.map(|note| wrapped("  note: ", "    ", &escape_line(note)));
    text + &notes.collect::<String>()
}

/// The median and the ninth decile of the longest phases.
fn phases_text(phases: &[PhaseTime]) -> String {
    let shown = phases.iter().map(|phase| {
        let (median, p90) = (duration(phase.median_seconds), duration(phase.p90_seconds));
        format!("{} {median}/{p90}", phase.name)
    });
    format!(
        "phases (median/p90): {}",
        join_limited(shown, MAX_SHOWN_PHASES)
    )
}

fn wave_text(at: usize, wave: &RolloutWave) -> String {
    let canary = if wave.is_canary { ", canary" } else { "" };
    let unknown = wave.nodes - wave.names.len();
    let names = join_limited(wave.names.iter(), MAX_SHOWN_WAVES);
    let names = match (names.is_empty(), unknown) {
        (true, _) => String::new(),
        (false, 0) => format!(": {names}"),
        (false, unknown) => format!(": {names} and {unknown} more"),
    };
    format!(
        "wave {}, from {} to {}, {}{canary}{names}",
        at + 1,
        duration(wave.starts_after_seconds),
        duration(wave.ends_after_seconds),
        counted(wave.nodes, "node")
    )
}
