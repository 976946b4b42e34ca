//! Implements `machinist adopt`, which takes a machine over from machine-config-daemon.

use clap::Args;

use super::{
    Confirmation, Exit, Format, Global, OutputFormatArg,
    config_context::{ConfigContext, print_refusals},
    confirm,
    handover::{Handover, check_no_mcd, explain_lock_error},
    output::{print_error, warn},
    print, print_data, short, start_logging_beside_a_page,
};
use machinist_plan::PlanDocument;
use machinist_status::settings::Fragment;
use machinist_update::{
    handover::{self, Adoption, HandoverError},
    store::StateStore,
};

/// Flags of `adopt`.
#[derive(Debug, Args)]
#[command(after_help = "\
Takes over a machine that OpenShift's machine-config-daemon has managed: its current config on the disk becomes \
machinist's, with the original files that it kept. No managed file is written, no service is restarted and the \
machine is not rebooted. Refused while that daemon runs on the node, while one of its updates is pending, and, \
without --force, if the disk differs from its config; the plan shows the differences. With --force they are \
reported as drift from then on.

Run on the machine itself, before its agent starts. The daemon's own state stays in place; machinist release \
returns the machine to it.

Examples:
  machinist adopt
  machinist adopt --yes -o json")]
pub struct AdoptArgs {
    /// The cluster, and whether the user is asked for confirmation.
    #[command(flatten)]
    pub handover: Handover,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(global: &Global, args: &AdoptArgs) -> anyhow::Result<Exit> {
    let context = ConfigContext::open(global, Fragment::default(), false)?;
    start_logging_beside_a_page(context.settings.log)?;
    check_no_mcd(&context)?;
    let rules = machinist_agent::rules(&context.settings);
    let found = match handover::find(&context.root, &rules) {
        Ok(found) => found,
        Err(error) => return refused(error),
    };
    for warning in &found.warnings {
        warn(warning);
    }
    if let Some(told) = args.handover.query_cluster(&context)? {
        told.has_no_other_daemon()?;
        told.check_desired_config(&found.config.name)?;
        told.check_current_config(&found.config.name)?;
    }
    // As for an update, a live machine needs the capabilities for writing its state.
    let capabilities = machinist_agent::capabilities(&context.root, context.settings.owners)?;
    let policies = context.policies()?;
    let looked = machinist_agent::adoption(&context.root, found, capabilities, &policies);
    let adoption = match short()?.block_on(looked) {
        Ok(adoption) => adoption,
        Err(error) => return refused(error),
    };
    let differs = !adoption.plan.is_empty() && !args.handover.force;
    show(&context, &adoption, args.printed.output, !differs)?;
    let name = &adoption.found.config.name;
    if differs {
        print_error(&format!(
            "the disk differs from {name}: repair it, or use --force to take it over with drift"
        ));
        return Ok(Exit::Failed);
    }
    if confirm("Take over this machine?", args.handover.yes)? == Confirmation::No {
        warn("nothing was changed");
        return Ok(Exit::Failed);
    }
    let failed = short()?.block_on(machinist_agent::failed_units(&context.root));
    let adopted = StateStore::open(&context.root).map_err(HandoverError::from);
    let adopted = adopted.and_then(|store| handover::adopt(&store, &adoption, failed));
    let base = explain_lock_error(adopted)?;
    if args.printed.output == Format::Text {
        print(&format!("Taken over, current config: {}.\n", base.name))?;
    }
    Ok(Exit::Done)
}

/// Prints the plan in the format of `plan`; if `taken`, also the state that is taken over with the
/// config.
fn show(
    context: &ConfigContext,
    adoption: &Adoption,
    format: Format,
    taken: bool,
) -> anyhow::Result<()> {
    let root = context.shown_root();
    let document = PlanDocument::new(&root, &adoption.plan);
    print_data(format, &document, |_| {
        let mut page = adoption.plan.to_text(true);
        if !taken {
            return page;
        }
        let originals = adoption.originals.len();
        page.push_str(&format!(
            "{} is taken over without changes, with the original files of {originals} of its paths.\n",
            adoption.found.config.name
        ));
        page
    })?;
    for left in &adoption.left {
        warn(&format!(
            "{left} belongs to a path that is not in the config: it is left in place and will not be restored"
        ));
    }
    Ok(())
}

/// Prints each refusal on its own, like other commands.
fn refused(error: HandoverError) -> anyhow::Result<Exit> {
    match error {
        HandoverError::Refused(refusals) => {
            print_refusals(&refusals);
            Ok(Exit::Failed)
        }
        error => Err(error.into()),
    }
}
