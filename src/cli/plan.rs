//! Implements `machinist plan`.

use clap::Args;

use super::{
    ConfigArgs, Exit, Global, OutputFormatArg, config_context::ConfigContext, print_data, short,
};
use machinist_ignition::Refusal;
use machinist_plan::{ConfigRef, Plan, PlanDocument};
use machinist_rootfs::Root;
use machinist_update::{observe_and_plan, store};

/// Flags of `plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Changes nothing. Exits with 0 if there are no changes, 2 if there are, 1 if the config is refused.

Examples:
  machinist plan
  machinist plan --root ./sandbox --source dir:examples/machine
  machinist plan 10-chrony.yaml -o json")]
pub struct PlanArgs {
    /// The config to plan for.
    #[command(flatten)]
    pub wanted: ConfigArgs,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(global: &Global, args: &PlanArgs) -> anyhow::Result<Exit> {
    let context = ConfigContext::open(global, args.wanted.flags(), false)?;
    let capabilities =
        machinist_agent::read_only_capabilities(&context.root, context.settings.owners);
    let plan = match context.selected_config(&args.wanted)? {
        Err(wrong) => refused(context.all_refusals(wrong)),
        Ok(config) => {
            let policies = context.policies()?;
            let looked = machinist_agent::plan(&context.root, &config, capabilities, &policies);
            let looked = short()?.block_on(looked)?;
            looked.unwrap_or_else(|refusals| Plan {
                from: on(&context.root),
                to: ConfigRef::of(&config),
                ..refused(refusals)
            })
        }
    };
    let root = context.shown_root();
    let document = PlanDocument::new(&root, &plan);
    print_data(args.printed.output, &document, |_| plan.to_text(true))?;
    Ok(match (plan.refusals.is_empty(), plan.is_empty()) {
        (false, _) => Exit::Failed,
        (true, true) => Exit::Done,
        (true, false) => Exit::Pending,
    })
}

/// The current config of the machine.
fn on(root: &Root) -> ConfigRef {
    let journal = store::peek(root).unwrap_or_default();
    let current = observe_and_plan::current(&journal);
    current.map_or_else(ConfigRef::default, |current| ConfigRef {
        name: current.name.clone(),
        digest: Some(current.digest),
    })
}

fn refused(refusals: Vec<Refusal>) -> Plan {
    Plan {
        refusals,
        ..Plan::default()
    }
}
