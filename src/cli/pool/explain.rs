//! Implements `machinist explain --pool`: why no further node is updated, most urgent first.

use serde::Serialize;

use super::{
    controller_report::ControllerReport,
    findings::{PoolFinding, findings},
    report::{NodeRollout, PoolObjects, PoolProgress},
};
use crate::cli::{
    Exit, Global, OutputFormatArg, fleet,
    node_selection::{ClusterArgs, log},
    output::wrapped,
    print_data, short, start_logging_beside_a_page,
};
use machinist_base::clock::Clock;
use machinist_plan::escape_line;

/// The document of `explain --pool`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PoolExplanation {
    api_version: &'static str,
    kind: &'static str,
    pool: String,
    target: Option<String>,
    controller: ControllerReport,
    findings: Vec<PoolFinding>,
    /// The nodes that are not on the target.
    nodes: Vec<NodeRollout>,
    warnings: Vec<String>,
}

pub(in crate::cli) fn run(
    global: &Global,
    reach: &ClusterArgs,
    name: &str,
    printed: OutputFormatArg,
) -> anyhow::Result<Exit> {
    start_logging_beside_a_page(log(global))?;
    let objects = short()?.block_on(async {
        let cluster = reach.cluster().await?;
        PoolObjects::read(&cluster, Some(name)).await
    })?;
    let now = Clock::system().now();
    let report = PoolProgress::of(&objects, Some(name), now);
    let Some(pool) = report.pools.first() else {
        return Ok(Exit::Failed);
    };
    let off_target = pool.nodes.iter().filter(|node| !node.node.updated);
    let explanation = PoolExplanation {
        api_version: "machinist.dev/v1",
        kind: "PoolExplanation",
        pool: pool.name.clone(),
        target: pool.target.clone(),
        controller: report.controller.clone(),
        findings: findings(pool, &report.controller, now),
        nodes: off_target.cloned().collect(),
        warnings: report.warnings.clone(),
    };
    print_data(printed.output, &explanation, |it| {
        let text: String = it.findings.iter().map(sentence).collect();
        text + &fleet::warnings(&it.warnings)
    })?;
    Ok(Exit::Done)
}

fn sentence(finding: &PoolFinding) -> String {
    let code = finding.code.as_ref();
    let code = code.map_or_else(String::new, |code| format!(" [{code}]"));
    let text = escape_line(&format!("{}{code}", finding.message));
    let mut page = wrapped("- ", "  ", &text);
    if !finding.advice.is_empty() {
        page += &wrapped("    → ", "      ", &escape_line(&finding.advice));
    }
    page
}
