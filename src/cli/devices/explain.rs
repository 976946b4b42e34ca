//! Implements `machinist devices explain`, which describes one resource in full sentences.

use std::fmt::Write as _;

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use super::{Exit, Global, OutputFormatArg, fetch_status, print_data};
use machinist_status::{DeviceStatus, ResourceStatus, Status, VendorStatus};

/// Arguments of `devices explain`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exits with 0 if the running agent advertises the resource, else with 1.

Example:
  machinist devices explain acme.dev/serial")]
pub struct DeviceExplainArgs {
    /// The resource name, as in pod specs
    #[arg(value_name = "RESOURCE")]
    pub resource: String,
    /// The output format.
    #[command(flatten)]
    pub printed: OutputFormatArg,
}

/// The facts about one resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceFacts<'a> {
    #[serde(flatten)]
    resource: &'a ResourceStatus,
    /// The vendor whose device driver provides it.
    vendor: Option<&'a VendorStatus>,
    /// Why it is not known which containers hold its devices.
    holders_unknown: Option<&'a str>,
    /// Problems of the files that name it or define it.
    problems: Vec<&'a str>,
}

pub(super) fn run(global: &Global, args: &DeviceExplainArgs) -> anyhow::Result<Exit> {
    let status = fetch_status(&global.open_root()?)?;
    let found = status.devices.iter();
    let mut found = found.filter(|one| one.resource == args.resource);
    let Some(resource) = found.next() else {
        super::super::output::write_error(&no_provider(&status, &args.resource));
        return Ok(Exit::Failed);
    };
    print_data(args.printed.output, &explained(&status, resource), text)?;
    Ok(Exit::Done)
}

fn explained<'a>(status: &'a Status, resource: &'a ResourceStatus) -> ResourceFacts<'a> {
    let vendor = resource.source.strip_prefix("vendor ");
    let vendor = vendor.and_then(|name| status.vendors.iter().find(|one| one.vendor == name));
    let of_vendor = ["vendor ", "plugin "]
        .iter()
        .any(|kind| resource.source.starts_with(kind));
    let concerns = |problem: &&str| {
        problem.contains(&resource.resource)
            || problem.starts_with(&resource.source)
            || of_vendor && problem.contains("/vendors.d/")
    };
    let problems = status.device_problems.iter().map(String::as_str);
    ResourceFacts {
        resource,
        vendor,
        holders_unknown: status.holders_unknown.as_deref(),
        problems: problems.filter(concerns).collect(),
    }
}

/// The message that no source provides the resource, with the problems of files, since one of them
/// may be intended to provide it.
fn no_provider(status: &Status, resource: &str) -> String {
    let mut text = format!(
        "{resource} is not provided on this machine: no valid declaration, vendor or plugin\n"
    );
    if status
        .orphaned_resources
        .iter()
        .any(|name| name == resource)
    {
        text.push_str(
            "the Node still lists it with 0: the kubelet keeps the entry of a removed resource\n",
        );
    }
    for problem in &status.device_problems {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{problem}");
    }
    text
}

fn text(explained: &ResourceFacts<'_>) -> String {
    let resource = explained.resource;
    let mut text = format!("{} is provided by {}\n", resource.resource, resource.source);
    let known = match (resource.registered, resource.reason.as_str()) {
        (true, _) => "registered with the kubelet".to_owned(),
        (false, "") => "not registered with the kubelet".to_owned(),
        (false, why) => format!("not registered with the kubelet: {why}"),
    };
    let _ = writeln!(text, "{known}{}", since(resource.since));
    if resource.devices.is_empty() {
        text.push_str("no devices\n");
    }
    for device in &resource.devices {
        text.push_str(&line(device, explained.holders_unknown.is_none()));
    }
    if let Some(why) = explained.holders_unknown {
        let _ = writeln!(text, "device holders unknown: {why}");
    }
    if let Some(vendor) = explained.vendor {
        text.push_str(&of_vendor(vendor));
    }
    for problem in &explained.problems {
        let _ = writeln!(text, "{problem}");
    }
    text
}

fn line(device: &DeviceStatus, holders_known: bool) -> String {
    let why = match device.reason.as_str() {
        "" => String::new(),
        why => format!(": {why}"),
    };
    let held = match &device.holder {
        Some(holder) => format!("; held by {holder}{}", since(device.held_since)),
        None if holders_known => "; free".to_owned(),
        None => String::new(),
    };
    let since = since(device.since);
    format!("  {} is {}{since}{why}{held}\n", device.id, device.health)
}

fn of_vendor(vendor: &VendorStatus) -> String {
    let name = &vendor.vendor;
    let there = match &vendor.instance {
        Some(instance) => format!("is connected as {instance:?}"),
        None => "is not connected".to_owned(),
    };
    let mut text = format!(
        "vendor {name} {there}; {} session(s), {} refusal(s) since the agent started\n",
        vendor.sessions, vendor.refused
    );
    for message in vendor.problem_texts() {
        let _ = writeln!(text, "  {message}");
    }
    text
}

fn since(time: Option<Timestamp>) -> String {
    time.map_or_else(String::new, |time| {
        format!(" since {}", time.strftime("%Y-%m-%d %H:%M:%SZ"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinist_status::Mode;

    fn status() -> Status {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let mut status = Status::starting("/", Mode::Machine, now);
        let device = |id: &str, reason: &str, holder: Option<&str>| DeviceStatus {
            id: id.to_owned(),
            health: if reason.is_empty() {
                "Healthy"
            } else {
                "Unhealthy"
            }
            .into(),
            reason: reason.to_owned(),
            since: Some(now),
            holder: holder.map(str::to_owned),
            held_since: holder.map(|_| now),
        };
        status.devices = vec![ResourceStatus {
            resource: "acme.dev/x".to_owned(),
            source: "vendor acme".to_owned(),
            serve: "devicePlugin".to_owned(),
            registered: true,
            since: Some(now),
            reason: String::new(),
            devices: vec![
                device("a", "", Some("lab/reads/main")),
                device("b", "92 °C", None),
            ],
        }]
        .into();
        status.vendors = vec![VendorStatus {
            vendor: "acme".to_owned(),
            connected: true,
            instance: Some("one".to_owned()),
            sessions: 2,
            refused: 1,
            last_reason: Some("generation 1 is older than 2".to_owned()),
            ..VendorStatus::default()
        }];
        status.device_problems =
            vec!["/etc/a.yaml: acme.dev/x is offered by vendor acme already".into()];
        status
    }

    #[test]
    fn explain_names_the_holder_of_a_device_and_since_when() {
        let status = status();
        let message = text(&explained(&status, &status.devices[0]));
        assert_eq!(
            message,
            "acme.dev/x is provided by vendor acme\n\
             registered with the kubelet since 2027-01-15 08:00:00Z\n  \
             a is Healthy since 2027-01-15 08:00:00Z; held by lab/reads/main since 2027-01-15 08:00:00Z\n  \
             b is Unhealthy since 2027-01-15 08:00:00Z: 92 °C; free\n\
             vendor acme is connected as \"one\"; 2 session(s), 1 refusal(s) since the agent started\n  \
             last: generation 1 is older than 2\n\
             /etc/a.yaml: acme.dev/x is offered by vendor acme already\n"
        );
        let json = serde_json::to_value(explained(&status, &status.devices[0])).unwrap();
        assert_eq!(json["resource"], "acme.dev/x");
        assert_eq!(json["vendor"]["sessions"], 2);
        assert_eq!(json["problems"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn explain_of_an_unknown_resource_lists_file_errors() {
        let message = no_provider(&status(), "acme.dev/y");
        assert!(
            message.starts_with("acme.dev/y is not provided on this machine"),
            "{message}"
        );
        assert!(message.contains("/etc/a.yaml"), "{message}");
        assert!(!message.contains("lists it with 0"), "{message}");
        let mut left = status();
        left.orphaned_resources = vec!["acme.dev/y".to_owned()];
        let message = no_provider(&left, "acme.dev/y");
        assert!(message.contains("still lists it with 0"), "{message}");
    }
}
