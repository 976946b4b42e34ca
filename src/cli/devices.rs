//! Implements `machinist devices`: its commands and flags, and the list.

mod explain;

use std::{fmt::Write, path::PathBuf};

use clap::{Args, Subcommand};
use serde::{Serialize, Serializer};

use super::{
    Exit, Global, OutputFormatArg, config_context::ConfigContext, print_data, status::fetch_status,
};
use machinist_base::abs_path::AbsPath;
use machinist_device::{Resource, ServeMode, SmallMap, quantity::Quantity, registry};
use machinist_rootfs::Root;
use machinist_status::{ResourceStatus, settings::Fragment};

/// Arguments of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// The command to run.
    #[command(subcommand)]
    pub command: DevicesCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum DevicesCommand {
    /// List the resources that the running agent advertises
    List(ListArgs),
    /// Explain the state of a resource and its devices, and which containers hold them since when
    Explain(explain::DeviceExplainArgs),
    /// Show which devices of this machine a declaration matches
    Check(CheckArgs),
}

/// Flags of `devices list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

/// Flags of `devices check`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 0 if the declaration is valid, even if it matches no device now. Its owner and mode are checked as by \
an agent that runs as the current user.

Example:
  machinist devices check /etc/machinist/devices.d/serial.yaml")]
pub struct CheckArgs {
    /// The declaration file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

pub(super) fn run(global: &Global, args: &DevicesArgs) -> anyhow::Result<Exit> {
    match &args.command {
        DevicesCommand::List(args) => list(global, args),
        DevicesCommand::Explain(args) => explain::run(global, args),
        DevicesCommand::Check(args) => check(global, args),
    }
}

fn check(global: &Global, args: &CheckArgs) -> anyhow::Result<Exit> {
    let shown = args.file.display().to_string();
    let whole = std::path::absolute(&args.file)?;
    let slash = Root::open(std::path::Path::new("/"))?;
    let read = registry::text_of(&slash, &machinist_agent::plain(&whole)?, &shown);
    let file = machinist_agent::plain(&whole)?;
    let context = ConfigContext::open(global, Fragment::default(), false)?;
    let allowances = machinist_agent::allowances(&context.settings);
    let root = &context.root;
    let found = read
        .map_err(|refusal| vec![refusal])
        .and_then(|text| registry::check(root, (&file, &shown), &text, &allowances));
    let found = match found {
        Ok(found) => found,
        Err(refusals) => {
            for refusal in &refusals {
                super::output::write_error(&format!("{refusal}\n"));
            }
            return Ok(Exit::Failed);
        }
    };
    let names = found.resources.keys();
    let rivals = names.flat_map(|name| {
        registry::conflicting_sources(root, (&of_root(root, &file), &shown), name)
    });
    if !registry::is_declaration(&file) {
        super::output::write_error(&format!(
            "{shown}: ignored by the agent: names of declarations end in .yaml or .yml and do not start with a dot\n"
        ));
    }
    for problem in found.problems.iter().cloned().chain(rivals) {
        super::output::write_error(&format!("{problem}\n"));
    }
    let found = found
        .resources
        .values()
        .flat_map(|one| MatchedDevice::all(one));
    let found: Vec<_> = found.collect();
    print_data(args.printed.output, &found, |found| {
        match found.is_empty() {
            true => format!("{shown} is valid; no device on this machine matches it now\n"),
            false => found.iter().map(MatchedDevice::line).collect(),
        }
    })?;
    Ok(Exit::Done)
}

/// The path of one of the caller's files below the root; a path outside the root is unchanged.
fn of_root(root: &Root, file: &AbsPath) -> AbsPath {
    let top = root.host_path(&AbsPath::root());
    let below = std::path::Path::new(file.as_str()).strip_prefix(top);
    let below = below.ok().and_then(|below| below.to_str());
    let whole = below.and_then(|below| AbsPath::new(format!("/{below}")).ok());
    whole.unwrap_or_else(|| file.clone())
}

/// A device that the declaration currently matches.
#[derive(Debug, Serialize)]
struct MatchedDevice<'a> {
    id: &'a str,
    health: String,
    reason: Option<&'a str>,
    nodes: Vec<&'a str>,
    numa: &'a [u32],
    #[serde(serialize_with = "as_map")]
    attributes: &'a SmallMap<String>,
    #[serde(skip_serializing_if = "SmallMap::is_empty")]
    capacity: &'a SmallMap<Quantity>,
}

/// Serialises an empty map as an object as well.
fn as_map<S: Serializer>(pairs: &&SmallMap<String>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter())
}

impl<'a> MatchedDevice<'a> {
    fn all(resource: &'a Resource) -> impl Iterator<Item = Self> {
        resource.devices.iter().map(|(id, device)| Self {
            id,
            health: device.health.to_string(),
            reason: device.reason.as_deref(),
            nodes: device.nodes.iter().map(|node| node.host.as_str()).collect(),
            numa: &device.numa,
            attributes: &device.attributes,
            capacity: &device.capacity,
        })
    }

    fn line(&self) -> String {
        let said = self.reason.map(|why| format!(": {why}"));
        let at = match self.nodes.is_empty() {
            true => String::new(),
            false => format!("  {}", self.nodes.join(" ")),
        };
        let capacity = self.capacity.iter();
        let capacity = capacity.map(|(name, amount)| format!("  {name}={amount}"));
        let attributes = self.attributes.iter();
        let attributes: String = attributes
            .map(|(key, value)| format!("  {key}={value}"))
            .chain(capacity)
            .collect();
        format!(
            "{}  {}{}{at}{attributes}\n",
            self.id,
            self.health,
            said.unwrap_or_default()
        )
    }
}

fn list(global: &Global, args: &ListArgs) -> anyhow::Result<Exit> {
    let status = fetch_status(&global.open_root()?)?;
    let problems = status.device_problems.iter().cloned();
    // The error of a connected driver's earlier session is shown by `status` and `explain`.
    let vendors = status
        .vendors
        .iter()
        .filter(|one| !one.connected || one.problem.is_some());
    let vendors = vendors.flat_map(|one| {
        let told = one.problem_texts();
        told.map(|line| format!("vendor {}: {line}", one.vendor))
    });
    let told = problems.chain(vendors).chain(status.leftovers());
    let told: String = told.map(|line| format!("{line}\n")).collect();
    print_data(args.printed.output, &status.devices, |resources| {
        table(resources) + &told
    })?;
    Ok(Exit::Done)
}

/// One row per device; columns have the width of their content.
fn table(resources: &[ResourceStatus]) -> String {
    let mut rows = vec![["RESOURCE", "DEVICE", "HEALTH", "HOLDER", "REASON"]];
    let named: Vec<String> = resources.iter().map(named).collect();
    for (resource, named) in resources.iter().zip(&named) {
        for device in &resource.devices {
            rows.push([
                named,
                &device.id,
                &device.health,
                device.holder.as_deref().unwrap_or("-"),
                match device.reason.as_str() {
                    "" if !resource.registered => &resource.reason,
                    why => why,
                },
            ]);
        }
        if resource.devices.is_empty() {
            rows.push([named, "-", "-", "-", &resource.reason]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (a, b, c, d) = (width(0), width(1), width(2), width(3));
    let mut text = String::new();
    for [resource, device, health, holder, reason] in &rows {
        let row = format!("{resource:<a$}  {device:<b$}  {health:<c$}  {holder:<d$}  {reason}");
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text
}

/// The name, with the way pods request it if that is not by a number.
fn named(resource: &ResourceStatus) -> String {
    match resource.serve.as_str() {
        // An agent of an older version does not report it.
        "" => resource.resource.clone(),
        serve if serve == ServeMode::DevicePlugin.as_str() => resource.resource.clone(),
        serve => format!("{} ({serve})", resource.resource),
    }
}

#[cfg(test)]
mod tests;
