//! Implements `machinist settings`.

use std::fmt::Write;

use clap::Args;
use serde::Serialize;

use super::{Exit, Global, OutputFormatArg, print_data};
use machinist_status::settings::{EffectiveSetting, Fragment};

/// Flags of `settings`.
#[derive(Debug, Args)]
#[command(after_help = "\
Later wins, key by key: built-in defaults, machinist.yaml, machinist.yaml.d/*.yaml in name order, \
pool.NAME.yaml of the pool that this node is in, environment (MACHINIST_UPDATE__REBOOT=ask for \
update.reboot), flags. \
Exits with 64 if the settings are invalid, after listing every problem.

Examples:
  machinist settings
  machinist settings --config ./etc -o json
  machinist settings --config ./etc --pool gpu")]
pub struct SettingsArgs {
    /// Show the settings for nodes of this pool [default: the last known pool of this node]
    #[arg(long, value_name = "NAME", value_parser = pool_name)]
    pub pool: Option<String>,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

/// The effective settings as data.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SettingsOutput {
    api_version: &'static str,
    kind: &'static str,
    settings: Vec<EffectiveSetting>,
}

pub(super) fn run(global: &Global, args: SettingsArgs) -> anyhow::Result<Exit> {
    let root = global.open_root()?;
    let mut place = global.settings_place(&root, Fragment::default())?;
    if let Some(pool) = args.pool {
        place.pool = Some(pool);
    }
    let document = SettingsOutput {
        api_version: "machinist.dev/v1",
        kind: "Settings",
        settings: place.read()?.effective,
    };
    print_data(args.printed.output, &document, |document| {
        table(&document.settings)
    })?;
    Ok(Exit::Done)
}

/// Checks a pool name with the rules of the API server, because it becomes part of a file name.
fn pool_name(text: &str) -> Result<String, &'static str> {
    match machinist_agent::pool_settings::is_name(text) {
        true => Ok(text.to_owned()),
        false => Err("invalid pool name; expected only a-z, 0-9, '-' and '.'"),
    }
}

fn table(settings: &[EffectiveSetting]) -> String {
    let shown: Vec<_> = settings.iter().map(|one| plain(&one.value)).collect();
    let keys = settings.iter().map(|one| one.key.len()).max().unwrap_or(0);
    let values = shown.iter().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for (one, value) in settings.iter().zip(&shown) {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:<keys$}  {value:<values$}  {}", one.key, one.from);
    }
    text
}

fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
