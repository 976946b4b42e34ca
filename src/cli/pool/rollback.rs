//! Implements `machinist rollback --pool`: pins a pool to a config that it ran before.

use anyhow::bail;
use jiff::Timestamp;

use super::{
    change::{PoolChangeOutput, change, patch_of},
    pause::resume_value,
    render::MAX_NAMED_NODES,
    rollback_plan::{PoolRollback, RollbackPlan, plan, target_of},
};
use crate::cli::{
    Confirmation, Exit, Format, Global, confirm,
    node_selection::{DryRunArg, log},
    output::{warn, wrapped},
    print, short, start_logging_beside_a_page,
};
use machinist_base::{
    clock::Clock,
    text::{counted, join_limited},
};
use machinist_cluster::Cluster;
use machinist_kube_api::keys::pool_annotation;
use machinist_plan::escape_line;

pub(in crate::cli) fn run(global: &Global, args: &PoolRollback<'_>) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let now = Clock::system().now();
    let runtime = short()?;
    let (cluster, plan) = runtime.block_on(async {
        let cluster = args.write.reach.cluster().await?;
        let plan = plan(&cluster, args, now).await?;
        anyhow::Ok((cluster, plan))
    })?;
    let output = |done: (bool, String), plan: RollbackPlan| {
        PoolChangeOutput::new("Rollback", args.write, args.pool, done, plan).print(args.write)
    };
    if plan.is_done {
        output((false, format!("already pinned to {}", plan.to)), plan)?;
        return Ok(Exit::Done);
    }
    let asks = args.write.mode.dry_run == DryRunArg::None;
    if args.write.printed.output == Format::Text {
        print(&page(args.pool, &plan))?;
    }
    if asks && confirm("Roll back?", args.yes)? == Confirmation::No {
        warn("nothing was changed");
        return Ok(Exit::Failed);
    }
    runtime.block_on(pin(&cluster, args, &plan, now))?;
    output((true, message(&plan)), plan)?;
    Ok(Exit::Done)
}

/// Writes the pin, unless the pool has changed in a way that the user has not seen.
async fn pin(
    cluster: &Cluster,
    args: &PoolRollback<'_>,
    plan: &RollbackPlan,
    now: Timestamp,
) -> anyhow::Result<()> {
    let resume = plan.resumes.then(|| resume_value(now));
    change(cluster, args.pool, args.write, |pool| {
        let target = target_of(std::slice::from_ref(pool), &pool.name);
        if target != plan.from || pool.spec.paused != plan.unpauses {
            let shown = |config: &Option<String>| config.clone().unwrap_or_else(|| "none".to_owned());
            bail!(
                "pool {} has changed in the meantime (target {}, paused {}; expected target {}, paused {}); \
                 nothing was changed, run the command again",
                pool.name,
                shown(&target),
                pool.spec.paused,
                shown(&plan.from),
                plan.unpauses
            );
        }
        let mut patch = patch_of(pool);
        if plan.unpauses {
            patch.set("/spec/paused", false);
        }
        let mut changes = vec![(pool_annotation::PINNED_CONFIG, Some(plan.to.as_str()))];
        let reason = pool.annotations.contains_key(pool_annotation::PAUSE_REASON);
        if plan.unpauses && reason {
            changes.push((pool_annotation::PAUSE_REASON, None));
        }
        changes.extend(resume.as_deref().map(|value| (pool_annotation::RESUME, Some(value))));
        patch.annotations(pool.has_annotations, changes);
        Ok(Some(patch))
    })
    .await?;
    Ok(())
}

/// What the user is asked to confirm.
fn page(pool: &str, plan: &RollbackPlan) -> String {
    let from = plan.from.as_deref().unwrap_or("no config");
    let mut lines = vec![
        format!("pool {pool}: {from} → {}", plan.to),
        changed_nodes(plan),
        format!(
            "Newer configs are rendered and not rolled out until machinist resume --pool {pool}."
        ),
    ];
    if plan.unpauses {
        lines.push("The pool is unpaused.".to_owned());
    }
    if plan.resumes {
        lines.push("The stopped or first rollout of the pool is started.".to_owned());
    }
    lines.extend(waits(plan));
    let lines = lines.iter();
    lines
        .map(|line| wrapped("", "  ", &escape_line(line)))
        .collect()
}

fn changed_nodes(plan: &RollbackPlan) -> String {
    match plan.nodes.len() {
        0 => format!("No node changes: all {} are on it.", plan.machines),
        count => format!(
            "{count} of {} change: {}",
            counted(plan.machines, "node"),
            join_limited(plan.nodes.iter(), MAX_NAMED_NODES)
        ),
    }
}

fn waits(plan: &RollbackPlan) -> Option<String> {
    let first = plan.waits.first().filter(|_| !plan.nodes.is_empty())?;
    Some(format!("It waits: {}: {}", first.code, first.message))
}

fn message(plan: &RollbackPlan) -> String {
    let from = plan.from.as_deref().unwrap_or("no config");
    let unpaused = if plan.unpauses { ", unpaused" } else { "" };
    let resumed = if plan.resumes {
        ", rollout started"
    } else {
        ""
    };
    let count = plan.nodes.len();
    format!(
        "pinned to {}, before: {from}{unpaused}{resumed}; {count} of {} change",
        plan.to,
        counted(plan.machines, "node")
    )
}
