//! Implements `machinist release`, which returns a machine to machine-config-daemon.

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;

use super::{
    Confirmation, Exit, Global, OutputFormatArg,
    config_context::ConfigContext,
    confirm,
    handover::{Handover, NodeStanding, check_no_mcd, explain_lock_error},
    output::{print_error, warn},
    print_data, short, start_logging_beside_a_page,
    uninstall::unprotect_images,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_cluster::node::Uncordon;
use machinist_status::{DriftStatus, settings::Fragment};
use machinist_update::{
    handover::{self, HandoverError, ReleasedFiles},
    store::{self, StateStore},
};

/// Flags of `release`.
#[derive(Debug, Args)]
#[command(after_help = "\
Returns a machine to OpenShift's machine-config-daemon: writes that daemon's state to the disk, sets the Node's \
current config, uncordons it, and deletes machinist's own state, a staged boot entry, downloaded OS images that are \
not booted, and the protection of pinned images. No managed file is written. Refused during an update and, without \
--force, if the disk differs from the config, because that daemon would report the node as degraded.

Run on the machine itself, after its agent was stopped or config was removed from its roles.

Example:
  machinist release --yes")]
pub struct ReleaseArgs {
    /// The cluster, and whether the user is asked for confirmation.
    #[command(flatten)]
    pub handover: Handover,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

/// The output document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReleaseOutput {
    api_version: &'static str,
    kind: &'static str,
    config: String,
    digest: String,
    drift: Vec<DriftStatus>,
    /// The Node that was updated as well.
    node: Option<String>,
    /// The places of originals that cannot be passed to that daemon and stay there.
    left: Vec<String>,
}

pub(super) fn run(global: &Global, args: &ReleaseArgs) -> anyhow::Result<Exit> {
    let context = ConfigContext::open(global, Fragment::default(), false)?;
    start_logging_beside_a_page(context.settings.log)?;
    check_no_mcd(&context)?;
    let capabilities = machinist_agent::capabilities(&context.root, context.settings.owners)?;
    let giving =
        machinist_agent::release_plan(&context.root, &store::peek(&context.root)?, capabilities)?;
    let base = &giving.base;
    let told = args.handover.query_cluster(&context)?;
    if let Some(told) = &told {
        told.check_desired_config(&base.name)?;
    }
    if !giving.drift.is_empty() {
        for drift in &giving.drift {
            warn(&drift.to_string());
        }
        if !args.handover.force {
            print_error(&format!(
                "the disk differs from {}, and machine-config-daemon would report the node as degraded: repair it, or use --force to return it anyway",
                base.name
            ));
            return Ok(Exit::Failed);
        }
    }
    let question = format!(
        "Return this machine to machine-config-daemon with config {}?",
        base.name
    );
    if confirm(&question, args.handover.yes)? == Confirmation::No {
        warn("nothing was changed");
        return Ok(Exit::Failed);
    }
    let served = told
        .as_ref()
        .and_then(|told| served_config(told, &base.name));
    let (store, handed) = hand_over(&context, served)?;
    let node = told.map(|told| tell(&told, &base.name)).transpose()?;
    let left = forget(&context, &store, handed)?;
    let answer = ReleaseOutput {
        api_version: "machinist.dev/v1",
        kind: "Released",
        config: base.name.clone(),
        digest: base.digest.to_string(),
        drift: giving.drift.iter().map(DriftStatus::from).collect(),
        node,
        left: left.iter().map(|(_, place)| place.to_string()).collect(),
    };
    for (path, place) in &left {
        warn(&format!(
            "the original of {path} stays at {place}: machine-config-daemon keeps no originals of this kind"
        ));
    }
    print_data(args.printed.output, &answer, |answer| {
        format!(
            "Returned to machine-config-daemon with config {}.\n",
            answer.config
        )
    })?;
    Ok(Exit::Done)
}

/// Removes a staged deployment, and writes the state of the other daemon.
fn hand_over(
    context: &ConfigContext,
    served: Option<Vec<u8>>,
) -> anyhow::Result<(StateStore, ReleasedFiles)> {
    let rules = machinist_agent::rules(&context.settings);
    let store = explain_lock_error(StateStore::open(&context.root).map_err(HandoverError::from))?;
    short()?
        .block_on(machinist_agent::discard_deployment(&context.root))
        .context("cannot remove a staged deployment from the boot loader")?;
    let handed = handover::hand_over(&store, &rules, served)?;
    Ok((store, handed))
}

/// Ends machinist's ownership; returns the originals that stay.
fn forget(
    context: &ConfigContext,
    store: &StateStore,
    handed: ReleasedFiles,
) -> anyhow::Result<Vec<(AbsPath, AbsPath)>> {
    // machine-config-daemon pins the images of the same sets itself.
    short()?.block_on(unprotect_images(context));
    Ok(handed.forget(store)?)
}

/// The config as the API server returns it, which is the form that the daemon uses.
fn served_config(told: &NodeStanding, config: &str) -> Option<Vec<u8>> {
    let asked = told.wait(told.node.machine_config(config));
    asked.unwrap_or_else(|error| {
        warn(&format!(
            "{}; writing machinist's own rendering of the config instead",
            chain(&error)
        ));
        None
    })
}

/// Records the handover on the Node. If that fails, machinist still manages the machine, and the
/// same command can be repeated.
fn tell(told: &NodeStanding, config: &str) -> anyhow::Result<String> {
    let name = told.node.name().to_owned();
    match told.wait(told.node.return_node(config)) {
        Ok(Uncordon::KeptByOperator) => {
            warn(&format!("Node {name} stays cordoned: annotation machinist.dev/keep-cordoned is set"));
            Ok(name)
        }
        Ok(_) => Ok(name),
        Err(error) => Err(anyhow::Error::new(error).context(format!(
            "failed to set current config {config} on Node {name}; the machine is not returned yet: run machinist release again"
        ))),
    }
}
