//! Implements `machinist plan --pool`: what a rollout of a pool would do, before it begins. Nothing is written.

use std::path::PathBuf;

use anyhow::anyhow;

use super::{
    drain_blockers::drain_blockers,
    manifests::manifests,
    plan_policies::PlanPolicies,
    report::PoolObjects,
    rollout_plan::{ConfigSource, PoolPlan, RefusedRender, pool_plan},
    rollout_plan_page::page,
};
use crate::cli::{
    Exit, Global, OutputFormatArg,
    fleet::or_warn,
    node_selection::{ClusterArgs, log},
    print_data, short, start_logging_beside_a_page,
};
use jiff::Timestamp;
use machinist_base::clock::Clock;
use machinist_cluster::{Cluster, pod_queries};
use machinist_controller::{PreviewConfigs, RenderError};
use machinist_ignition::{ConfigDocument, ConfigRules};

/// The flags of `plan` that concern pools.
#[derive(Debug)]
pub(in crate::cli) struct PoolPlanRequest<'a> {
    pub(in crate::cli) pool: &'a str,
    /// The manifests that are applied.
    pub(in crate::cli) files: &'a [PathBuf],
    /// The rules of the controller.
    pub(in crate::cli) rules: ConfigRules,
    pub(in crate::cli) reach: &'a ClusterArgs,
    pub(in crate::cli) printed: OutputFormatArg,
}

pub(in crate::cli) fn run(global: &Global, request: &PoolPlanRequest<'_>) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let now = Clock::system().now();
    let manifests = manifests(request.files, &request.rules)?;
    let manifests = manifests.map_err(RenderError::Refused);
    let plan = short()?.block_on(async {
        let cluster = request.reach.cluster().await?;
        plan(&cluster, request, manifests, now).await
    })?;
    print_data(request.printed.output, &plan, page)?;
    Ok(match (plan.refused.is_some(), plan.has_changes()) {
        (true, _) => Exit::Failed,
        (false, true) => Exit::Pending,
        (false, false) => Exit::Done,
    })
}

async fn plan(
    cluster: &Cluster,
    request: &PoolPlanRequest<'_>,
    manifests: Result<Vec<ConfigDocument>, RenderError>,
    now: Timestamp,
) -> anyhow::Result<PoolPlan> {
    let objects = PoolObjects::read(cluster, Some(request.pool)).await?;
    let mut pools = objects.pools.iter();
    let pool = pools.find(|pool| pool.name == request.pool);
    let pool = pool.ok_or_else(|| anyhow!("MachineConfigPool {} not found", request.pool))?;
    let manifests = match manifests {
        Ok(manifests) => manifests,
        Err(error) => return Ok(PoolPlan::refused(pool, RefusedRender::of(error))),
    };
    let names: Vec<String> = manifests.iter().map(|it| it.name.clone()).collect();
    let mut configs = PreviewConfigs::read(cluster).await?;
    manifests.into_iter().for_each(|it| configs.apply(it));
    let preview = match configs.render(pool, &request.rules) {
        Ok(preview) => preview,
        Err(error) => return Ok(PoolPlan::refused(pool, RefusedRender::of(error))),
    };
    let left_out = names
        .into_iter()
        .filter(|it| !preview.manifests.contains(it));
    let left_out: Vec<String> = left_out.collect();
    let mut warnings = Vec::new();
    let policies = PlanPolicies::read(cluster, &mut warnings).await?;
    let source = ConfigSource {
        configs: &configs,
        rules: &request.rules,
        policies: &policies,
    };
    let mut plan = pool_plan(&objects, pool, preview, &source, now)?;
    plan.warnings.extend(warnings);
    for name in left_out {
        plan.notes.push(format!(
            "MachineConfig {name} of the files is not part of the config: pool {} does not select it \
             (spec.machineConfigSelector)",
            plan.pool
        ));
    }
    add_blockers(cluster, &mut plan, now).await?;
    Ok(plan)
}

/// Adds the budgets that block the drains of the rollout.
async fn add_blockers(
    cluster: &Cluster,
    plan: &mut PoolPlan,
    now: Timestamp,
) -> anyhow::Result<()> {
    if plan.drained().is_empty() {
        plan.blockers = Some(Vec::new());
        return Ok(());
    }
    let pods = or_warn(pod_queries::pods_by_node(cluster).await, &mut plan.warnings)?;
    let budgets = or_warn(pod_queries::budgets(cluster).await, &mut plan.warnings)?;
    plan.blockers = pods
        .zip(budgets)
        .map(|(pods, budgets)| drain_blockers(&plan.drained(), &pods, &budgets, now));
    if plan.blockers.is_none() {
        let note =
            "it is not known whether budgets block the drains: pods or budgets could not be read";
        plan.notes.push(note.to_owned());
    }
    Ok(())
}
