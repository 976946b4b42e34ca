//! Implements `machinist render`.

use clap::Args;

use super::{
    ConfigArgs, Exit, Format, Global,
    config_context::{ConfigContext, print_refusals},
    output::print_config,
};
use machinist_ignition::{to_machine_config, to_machine_config_yaml};

/// Flags of `render`.
#[derive(Debug, Args)]
#[command(after_help = "\
Merges configs into one, as they would be applied together.

Examples:
  machinist render 10-chrony.yaml 20-sysctl.yaml
  machinist render --source dir:examples/machine -o json")]
pub struct RenderArgs {
    /// The configs to merge.
    #[command(flatten)]
    pub wanted: ConfigArgs,
    /// Output format: yaml or json
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "yaml",
        hide_possible_values = true
    )]
    pub output: Format,
}

pub(super) fn run(global: &Global, args: &RenderArgs) -> anyhow::Result<Exit> {
    let context = ConfigContext::open(global, args.wanted.flags(), false)?;
    let rendered = match args.wanted.files.is_empty() {
        true => context.source()?.read(),
        false => context.files(&args.wanted)?,
    };
    let config = match rendered {
        Ok(config) => config,
        Err(refused) => {
            print_refusals(&refused.refusals);
            return Ok(Exit::Failed);
        }
    };
    match args.output {
        Format::Json => {
            let value = to_machine_config(&config)?;
            print_config(&(serde_json::to_string_pretty(&value)? + "\n"))?;
        }
        Format::Text | Format::Yaml => print_config(&to_machine_config_yaml(&config)?)?,
    }
    Ok(Exit::Done)
}
