//! Implements `machinist plan`.

use clap::Args;

use super::{
    ConfigArgs, Exit, Global, OutputFormatArg, config_context::ConfigContext,
    node_selection::ClusterArgs, output::print_error, pool, print_data, selector, short,
};
use machinist_ignition::{ConfigRules, Refusal};
use machinist_plan::{ConfigRef, Plan, PlanDocument};
use machinist_rootfs::Root;
use machinist_update::{observe_and_plan, store};

/// Flags of `plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Changes nothing. Exits with 0 if there are no changes, 2 if there are, 1 if the config is refused. Files given here \
are the whole config, except with --pool, which shows what a rollout of a MachineConfigPool would do with the files \
applied: the changes of its rendered config, what they need on each node, the order of the nodes, and what blocks it.

Examples:
  machinist plan
  machinist plan --root ./sandbox --source dir:examples/machine
  machinist plan 10-chrony.yaml -o json
  machinist plan --pool worker 50-chrony.yaml")]
pub struct PlanArgs {
    /// The config to plan for.
    #[command(flatten)]
    pub wanted: ConfigArgs,
    /// Preview the rollout of a MachineConfigPool, with the files as MachineConfigs that are applied
    #[arg(long, value_name = "NAME", value_parser = selector::pool, conflicts_with_all = ["source", "role"])]
    pub pool: Option<String>,
    /// With --pool, a user that configs may manage, as for the controller; may be repeated [default: core]
    #[arg(long = "user", value_name = "NAME", requires = "pool")]
    pub users: Vec<String>,
    /// With --pool, a group that configs may create, change or remove; may be repeated [default: none]
    #[arg(long = "group", value_name = "NAME", requires = "pool")]
    pub groups: Vec<String>,
    /// The cluster.
    #[command(flatten)]
    pub reach: ClusterArgs,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(global: &Global, args: &PlanArgs) -> anyhow::Result<Exit> {
    if let Some(pool) = &args.pool {
        let plan = pool::PoolPlanRequest {
            pool,
            files: &args.wanted.files,
            rules: rules(&args.users, &args.groups),
            reach: &args.reach,
            printed: args.printed,
        };
        return pool::plan(global, &plan);
    }
    if !args.reach.is_silent() {
        print_error("cluster flags require --pool NAME");
        return Ok(Exit::Usage);
    }
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

/// The rules of a controller with these flags.
pub(super) fn rules(users: &[String], groups: &[String]) -> ConfigRules {
    let mut rules = ConfigRules::default();
    if !users.is_empty() {
        rules.users = users.iter().cloned().collect();
    }
    rules.groups = groups.iter().cloned().collect();
    rules
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
