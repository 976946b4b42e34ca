//! Implements `machinist uninstall`, which removes what the agent installed on a host and set on its Node; objects
//! of its configs stay.

mod render;

use std::collections::BTreeSet;

use anyhow::{Context as _, bail};
use clap::Args;
use serde::Serialize;

use self::render::page;
use super::{
    Confirmation, Exit, Global, OutputFormatArg,
    config_context::{ConfigContext, cluster_env},
    confirm,
    output::warn,
    print_data, short, start_logging_beside_a_page,
};
use machinist_agent::{host_install::InstalledFiles, pinned_images, shutdown_quiesce};
use machinist_base::{
    abs_path::AbsPath,
    error_chain::chain,
    shutdown::{ProcessSignals, SignalRequest},
};
use machinist_cluster::{
    Cluster, machine_config_node,
    node::{OwnNode, RemovedKeys},
    resource_slices,
};
use machinist_rootfs::Root;
use machinist_status::settings::Fragment;
use machinist_systemd::Systemd;
use machinist_update::{
    journal::Journal,
    store::{StateStore, StoreError, paths},
    transaction,
};

/// Flags of `uninstall`.
#[derive(Debug, Args)]
#[command(after_help = "\
Removes the units and the program that the agent of a DaemonSet installed on the host, its cordon, and its \
annotations, conditions and taints on the Node, the protection of pinned images, a staged boot entry or deployment, \
and downloaded OS images and packages that no deployment has. Cordons of other clients, files, units and kernel \
arguments of configs, deployments, other images, and installed packages are kept. May be repeated. Refused while an \
agent is running, an update is not finished, the node is drained for one, or units that the agent stopped still have \
to be started. To uninstall from all nodes of a cluster, use packaging/kubernetes/uninstall.

Examples:
  machinist uninstall --dry-run
  /usr/local/libexec/machinist/machinist uninstall --node worker-1 --kubeconfig admin.conf")]
pub struct UninstallArgs {
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Also remove /var/lib/machinist and the state directories on other mounts: the history of the machine's
    /// config, and the originals
    #[arg(long)]
    pub purge: bool,
    /// The name of this machine's Node [default: cluster.node of the settings, the host's name]
    #[arg(long, value_name = "NODE", env = "NODE_NAME")]
    pub node: Option<String>,
    /// Kubeconfig for the API server [default: cluster.kubeconfig of the settings, the pod's account]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// Wait for a signal at the end, as needed in the pods of a DaemonSet
    #[arg(long, hide = true)]
    pub stay: bool,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

/// The output document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct UninstallOutput {
    api_version: &'static str,
    kind: &'static str,
    dry_run: bool,
    /// Removed files and links of the host.
    paths: Vec<AbsPath>,
    /// None if no cluster was contacted.
    node: Option<NodeRemovals>,
    /// The state directory was removed.
    purged: bool,
    /// The state directory exists and was kept.
    state_kept: bool,
    /// The state directories on other mounts that were removed with it.
    kept_elsewhere: Vec<AbsPath>,
}

/// What machinist had set on the Node.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeRemovals {
    name: String,
    found: bool,
    uncordoned: bool,
    kept_cordoned: bool,
    annotations: Vec<String>,
    labels: Vec<String>,
    taints: Vec<String>,
    conditions: Vec<String>,
    machine_config_node: bool,
    /// The number of ResourceSlices with its devices.
    resource_slices: usize,
}

impl NodeRemovals {
    fn of(
        name: &str,
        left: Option<RemovedKeys>,
        machine_config_node: bool,
        resource_slices: usize,
    ) -> Self {
        let found = left.is_some();
        let left = left.unwrap_or_default();
        Self {
            name: name.to_owned(),
            found,
            uncordoned: left.uncordoned,
            kept_cordoned: left.kept_cordoned,
            annotations: left.annotations,
            labels: left.labels,
            taints: left.taints,
            conditions: left.conditions,
            machine_config_node,
            resource_slices,
        }
    }
}

pub(super) fn run(global: &Global, args: &UninstallArgs) -> anyhow::Result<Exit> {
    let flags = args.flags();
    let context = ConfigContext::open(global, flags, false)?;
    start_logging_beside_a_page(context.settings.log)?;
    // Hold the lock to the end, so that no agent starts an update meanwhile.
    let store = hold(&context.root)?;
    let question = "Remove machinist from this host? Files, units and kernel arguments of its configs are kept.";
    if !args.dry_run && confirm(question, args.yes)? == Confirmation::No {
        warn("nothing was changed");
        return Ok(Exit::Failed);
    }
    let runtime = short()?;
    let elsewhere = match (&store, args.purge) {
        (Some(store), true) => elsewhere(&context.root, &store.load()?)?,
        _ => Vec::new(),
    };
    let removed = runtime.block_on(remove(&context, args, elsewhere))?;
    print_data(args.printed.output, &removed, page)?;
    drop(store);
    if args.stay && !args.dry_run {
        runtime.block_on(stay())?;
    }
    Ok(Exit::Done)
}

impl UninstallArgs {
    fn flags(&self) -> Fragment {
        let mut flags = Fragment::default();
        for (flag, key, value) in [
            ("--kubeconfig", "cluster.kubeconfig", &self.kubeconfig),
            ("--node", "cluster.node", &self.node),
        ] {
            if let Some(value) = value {
                flags = flags.with_flag(flag, key, value);
            }
        }
        flags
    }
}

/// Locks the state of this root, if it exists. Refuses if another process holds it, if an update is open or the
/// node is cordoned for one, and if stopped units wait to be started, because only the agent would finish those.
fn hold(root: &Root) -> anyhow::Result<Option<StateStore>> {
    if root.stat(&paths::state_dir())?.is_none() {
        return Ok(None);
    }
    let store = match StateStore::open(root) {
        Err(StoreError::Locked { .. }) => bail!(
            "an agent is running, or machinist-guard is verifying this boot: stop the agent first (systemctl stop machinist; in a cluster replace its DaemonSet, as packaging/kubernetes/uninstall does)"
        ),
        store => store?,
    };
    let journal = store.load().context(
        "cannot determine whether an update is in progress; to start a new journal: `machinist journal reset`",
    )?;
    if let Some(open) = journal.top() {
        bail!(
            "update {} to {} is not finished: start the agent and wait for it, or run `machinist rollback`",
            open.id,
            open.to.name
        );
    }
    if let Some(cordon) = &journal.cordon {
        let stopped = match cordon.stopped.is_empty() {
            true => String::new(),
            false => format!("; {} stopped", cordon.stopped.join(", ")),
        };
        bail!(
            "the node is drained for the update to {}{stopped}: start the agent and wait for it, or run `machinist cancel NODE` while the agent is running",
            cordon.to.name,
        );
    }
    let waiting = shutdown_quiesce::units_to_restart(root)
        .context("cannot determine which stopped units have to be started")?;
    if !waiting.is_empty() {
        let waiting: Vec<_> = waiting.into_iter().collect();
        bail!(
            "{} was stopped for a reboot and not started again: start the agent, or start it manually and remove {}",
            waiting.join(", "),
            paths::quiesced()
        );
    }
    Ok(Some(store))
}

/// machinist's directories on other mounts than the state directory's: the original of a path is kept on the mount
/// of that path.
fn elsewhere(root: &Root, journal: &Journal) -> anyhow::Result<Vec<AbsPath>> {
    let mut dirs = BTreeSet::from([AbsPath::root().join("etc/.machinist")?]);
    let kept = transaction::originals(journal).into_values();
    let is_holder = |at: &AbsPath| transaction::is_holder_name(at.file_name());
    dirs.extend(kept.filter_map(|kept| kept.ancestors().find(is_holder)));
    let mut there = Vec::new();
    for dir in dirs {
        if root.stat(&dir)?.is_some() {
            there.push(dir);
        }
    }
    Ok(there)
}

/// Cleans up the Node first: a Node that stays cordoned is worse than leftover files. Every step may be repeated.
async fn remove(
    context: &ConfigContext,
    args: &UninstallArgs,
    elsewhere: Vec<AbsPath>,
) -> anyhow::Result<UninstallOutput> {
    let root = &context.root;
    let node = leave(context, args).await?;
    let installed = InstalledFiles::on(root)?;
    let mut paths = installed.units.clone();
    paths.extend(installed.program.iter().cloned());
    paths.extend(pinned_images::protection_file(root)?);
    let has_state = root.stat(&paths::state_dir())?.is_some();
    let purged = args.purge && has_state;
    if !args.dry_run {
        machinist_agent::discard_deployment(root)
            .await
            .context("cannot remove a staged deployment from the boot loader")?;
        unprotect_images(context).await;
        installed.remove_units(root)?;
        if !installed.is_empty() && root.is_live() {
            forget_units(root).await;
        }
        installed.remove_program(root)?;
        if purged {
            // Remove these first, because only the journal in the state directory lists them.
            for dir in &elsewhere {
                root.remove_tree(dir)?;
            }
            root.remove_tree(&paths::state_dir())?;
        }
    }
    Ok(UninstallOutput {
        api_version: "machinist.dev/v1",
        kind: "Uninstall",
        dry_run: args.dry_run,
        paths,
        node,
        purged,
        state_kept: has_state && !purged,
        kept_elsewhere: elsewhere,
    })
}

/// Removes the protection of images from garbage collection. A runtime that does not run keeps its labels: an image
/// that stays costs space, and does not prevent an uninstallation.
pub(super) async fn unprotect_images(context: &ConfigContext) {
    let settings = &context.settings.pinned_images;
    if let Err(error) = pinned_images::remove_protection(&context.root, settings).await {
        warn(&format!(
            "images stay protected from garbage collection: {}",
            chain(&error)
        ));
    }
}

async fn leave(
    context: &ConfigContext,
    args: &UninstallArgs,
) -> anyhow::Result<Option<NodeRemovals>> {
    let settings = &context.settings;
    let Some(access) = machinist_agent::access(&context.root, settings, &cluster_env(true)) else {
        if args.node.is_some() {
            bail!("--node requires a kubeconfig: set --kubeconfig");
        }
        return Ok(None);
    };
    let name = machinist_agent::node_name(settings)?;
    let cluster = Cluster::connect(access).await?;
    let left = OwnNode::new(cluster.clone(), &name)
        .clean_up_node(args.dry_run)
        .await?;
    let removed = machine_config_node::remove(&cluster, &name, args.dry_run).await?;
    let slices = resource_slices::remove(&cluster, &name, args.dry_run).await?;
    Ok(Some(NodeRemovals::of(&name, left, removed, slices)))
}

/// Makes PID 1 unload the units; a failure does not matter, because the next boot does not load them.
async fn forget_units(root: &Root) {
    if let Err(error) = Systemd::of(root).daemon_reload().await {
        warn(&format!(
            "the units were removed, but reloading the service manager failed: {}",
            chain(&error)
        ));
    }
}

async fn stay() -> anyhow::Result<()> {
    let mut signals = ProcessSignals::listen()?;
    while signals.next().await == SignalRequest::Reload {}
    Ok(())
}
