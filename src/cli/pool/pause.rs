//! Implements `machinist pause` and `machinist resume`.

use clap::Args;

use super::{
    change::{NoDetails, PoolChangeOutput, PoolWriteArgs, change, patch_of},
    render::MAX_NAMED_NODES,
};
use crate::cli::{Exit, Global, node_selection::log, selector, short, start_logging_beside_a_page};
use jiff::Timestamp;
use machinist_base::{clock::Clock, text::join_limited};
use machinist_cluster::json_patch::JsonPatch;
use machinist_kube_api::{MAX_REASON_BYTES, PoolView, keys::pool_annotation};
use machinist_pool::PoolGrants;

/// Flags of `pause`.
#[derive(Debug, Args)]
#[command(after_help = "\
No node of the pool begins an update until machinist resume. A node whose agent has acknowledged its grant \
completes its update.

Examples:
  machinist pause --pool worker --reason 'certificate rotation'
  machinist pause --pool worker --dry-run")]
pub struct PauseArgs {
    /// The pool
    #[arg(long, value_name = "NAME", value_parser = selector::pool)]
    pub pool: String,
    /// Why the pool is paused, for its condition
    #[arg(long, value_name = "TEXT", value_parser = pause_reason)]
    pub reason: Option<String>,
    /// The write.
    #[command(flatten)]
    pub write: PoolWriteArgs,
}

/// Flags of `resume`.
#[derive(Debug, Args)]
#[command(after_help = "\
Unpauses the pool, removes the pin of machinist rollback --pool, and starts a first or stopped rollout: failures \
of its config no longer count. The nodes then update to the newest config, one after the other as the pool allows.

Examples:
  machinist resume --pool worker
  machinist resume --pool worker --dry-run=server")]
pub struct ResumeArgs {
    /// The pool
    #[arg(long, value_name = "NAME", value_parser = selector::pool)]
    pub pool: String,
    /// The write.
    #[command(flatten)]
    pub write: PoolWriteArgs,
}

fn pause_reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("expected a reason; without one, leave out --reason".to_owned()),
        text if text.len() > MAX_REASON_BYTES => {
            Err(format!("expected at most {MAX_REASON_BYTES} bytes"))
        }
        text => Ok(text.to_owned()),
    }
}

pub(in crate::cli) fn pause(global: &Global, args: &PauseArgs) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let reason = args.reason.as_deref();
    let pool = short()?.block_on(async {
        let cluster = args.write.reach.cluster().await?;
        let decide = |pool: &PoolView| Ok(pause_patch(pool, reason));
        change(&cluster, &args.pool, &args.write, decide).await
    })?;
    let changed = pause_patch(&pool, reason).is_some();
    let done = (changed, pause_message(&pool, reason, changed));
    PoolChangeOutput::new("Pause", &args.write, &pool.name, done, NoDetails {})
        .print(&args.write)?;
    Ok(Exit::Done)
}

pub(in crate::cli) fn resume(global: &Global, args: &ResumeArgs) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let value = resume_value(Clock::system().now());
    let pool = short()?.block_on(async {
        let cluster = args.write.reach.cluster().await?;
        let decide = |pool: &PoolView| Ok(Some(resume_patch(pool, &value)));
        change(&cluster, &args.pool, &args.write, decide).await
    })?;
    let done = (true, resume_message(&pool));
    PoolChangeOutput::new("Resume", &args.write, &pool.name, done, NoDetails {})
        .print(&args.write)?;
    Ok(Exit::Done)
}

/// A value of the annotation that no earlier one equals.
pub(super) fn resume_value(now: Timestamp) -> String {
    now.to_string()
}

/// The reason after the command: a pool that is already paused keeps its own, unless another one is given.
fn reason_after<'p>(pool: &'p PoolView, given: Option<&'p str>) -> Option<&'p str> {
    let known = pool.annotation(pool_annotation::PAUSE_REASON);
    given.or(known.filter(|_| pool.spec.paused))
}

/// The patch that pauses the pool; `None` if it is paused for this reason already.
fn pause_patch(pool: &PoolView, reason: Option<&str>) -> Option<JsonPatch> {
    let known = pool.annotations.get(pool_annotation::PAUSE_REASON);
    let reason = reason_after(pool, reason);
    if pool.spec.paused && known.map(String::as_str).filter(|it| !it.is_empty()) == reason {
        return None;
    }
    let mut patch = patch_of(pool);
    patch.set("/spec/paused", true);
    if reason.is_some() || known.is_some() {
        let change = (pool_annotation::PAUSE_REASON, reason);
        patch.annotations(pool.has_annotations, [change]);
    }
    Some(patch)
}

fn pause_message(pool: &PoolView, reason: Option<&str>, changed: bool) -> String {
    let done = match (changed, pool.spec.paused) {
        (true, false) => "paused",
        (true, true) => "already paused, for another reason now",
        (false, _) => "already paused",
    };
    let reason = reason_after(pool, reason);
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    let text = pool.annotation(pool_annotation::GRANTS);
    let grants = PoolGrants::parse(&pool.name, text).ok().flatten();
    let grants = grants.unwrap_or_default().grants;
    let running = grants.iter().filter(|grant| grant.acknowledged);
    let running: Vec<&str> = running.map(|grant| grant.node.as_str()).collect();
    match running.is_empty() {
        true => format!("{done}{reason}"),
        false => format!(
            "{done}{reason}; updates that have begun continue on {}",
            join_limited(running.iter(), MAX_NAMED_NODES)
        ),
    }
}

/// The patch that unpauses the pool, removes its pin, and starts its rollout.
fn resume_patch(pool: &PoolView, value: &str) -> JsonPatch {
    let mut patch = patch_of(pool);
    if pool.spec.paused {
        patch.set("/spec/paused", false);
    }
    let removed = [
        pool_annotation::PAUSE_REASON,
        pool_annotation::PINNED_CONFIG,
    ];
    let removed = removed.into_iter();
    let removed = removed.filter(|name| pool.annotations.contains_key(*name));
    let removed = removed.map(|name| (name, None));
    let changes = std::iter::once((pool_annotation::RESUME, Some(value))).chain(removed);
    patch.annotations(pool.has_annotations, changes);
    patch
}

fn resume_message(pool: &PoolView) -> String {
    let mut parts = Vec::new();
    if pool.spec.paused {
        parts.push("unpaused".to_owned());
    }
    if let Some(config) = pool.annotation(pool_annotation::PINNED_CONFIG) {
        parts.push(format!("no longer pinned to {config}"));
    }
    parts.push(match pool.spec.configuration.name.as_str() {
        "" => "no config has been rendered for it yet".to_owned(),
        target => format!("its nodes update to {target}"),
    });
    format!("resumed: {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pool(paused: bool, annotations: &[(&str, &str)]) -> PoolView {
        let mut pool = PoolView {
            name: "worker".to_owned(),
            has_annotations: !annotations.is_empty(),
            ..PoolView::default()
        };
        pool.spec.paused = paused;
        let pairs = annotations.iter();
        let owned = pairs.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        pool.annotations = owned.collect();
        pool
    }

    fn operations(patch: Option<JsonPatch>) -> Option<Vec<Value>> {
        let Value::Array(mut operations) = patch?.into_value() else {
            return None;
        };
        Some(operations.split_off(2))
    }

    const REASON: &str = pool_annotation::PAUSE_REASON;

    #[test]
    fn a_pool_that_is_paused_for_the_same_reason_is_not_written() {
        let paused = pool(true, &[(REASON, "disk")]);
        assert_eq!(operations(pause_patch(&paused, Some("disk"))), None);
        assert_eq!(operations(pause_patch(&paused, None)), None);
        assert!(pause_patch(&paused, Some("network")).is_some());
        assert_eq!(operations(pause_patch(&pool(true, &[]), None)), None);
    }

    #[test]
    fn a_reason_of_an_earlier_pause_does_not_become_that_of_a_new_one() {
        let at = "/metadata/annotations/machinist.dev~1pause-reason";
        let found = operations(pause_patch(&pool(false, &[(REASON, "old")]), None)).unwrap();
        assert_eq!(found[1], json!({"op": "remove", "path": at}));
        let found = operations(pause_patch(&pool(false, &[]), Some("new"))).unwrap();
        assert_eq!(
            found[1],
            json!({"op": "add", "path": "/metadata/annotations", "value": {}})
        );
        assert_eq!(found[2], json!({"op": "add", "path": at, "value": "new"}));
    }

    #[test]
    fn a_reason_must_be_a_text_that_fits_an_annotation() {
        assert_eq!(pause_reason(" disk ").unwrap(), "disk");
        assert!(pause_reason(" ").is_err());
        assert!(pause_reason(&"a".repeat(MAX_REASON_BYTES + 1)).is_err());
    }
}
