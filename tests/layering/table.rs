//! The layering rules inside crates: which module may import which, and which modules may use an
//! outside crate. Rules between crates are their manifests.

use std::{collections::BTreeSet, fmt::Write as _};

/// One row: modules, the modules they may import, and the reason where that is not obvious.
pub(crate) struct ImportRule {
    /// Modules with the same rule. A submodule has a row of its own when its rule differs.
    pub(crate) modules: &'static str,
    /// Crates and modules that they may import.
    pub(crate) may: &'static str,
    pub(crate) why: &'static str,
}

impl ImportRule {
    pub(crate) fn modules(&self) -> impl Iterator<Item = &'static str> {
        self.modules.split(' ')
    }

    pub(crate) fn may(&self) -> impl Iterator<Item = &'static str> {
        self.may.split(' ').filter(|may| !may.is_empty())
    }
}

const fn rule(modules: &'static str, may: &'static str, why: &'static str) -> ImportRule {
    ImportRule { modules, may, why }
}

/// Modules whose rule is narrower than the manifest of their crate. Modules are named by crate and
/// path; those of the program have no crate in front.
pub(crate) const IMPORT_RULES: &[ImportRule] = &[
    rule("update::phase", "", ""),
    rule(
        "update::journal",
        "base ignition plan rootfs update::phase",
        "identity of a directory, names of phases, refusals",
    ),
    rule(
        "update::os",
        "base boot_loader ignition plan rootfs",
        "requests of a plan",
    ),
    rule(
        "device",
        "base ignition yaml",
        "refusals of configs; declarations and CDI specs",
    ),
    rule("device::registry", "base device rootfs", ""),
    rule(
        "device_plugins::authority_rewrite device_plugins::places device_plugins::protobuf_scan",
        "",
        "",
    ),
    rule(
        "device_plugins::kubelet",
        "base device rootfs device_plugins::authority_rewrite device_plugins::places",
        "the devices to advertise",
    ),
    rule(
        "device_plugins::dra",
        "base device device::registry rootfs device_plugins::kubelet",
        "devices for claims",
    ),
    rule(
        "device_plugins::vendor_api",
        "base device device::registry rootfs device_plugins::authority_rewrite device_plugins::places device_plugins::protobuf_scan",
        "offered devices and their allocation",
    ),
    rule(
        "device_plugins::plugin_proxy",
        "base device device::registry rootfs device_plugins::kubelet device_plugins::protobuf_scan",
        "the kubelet's side of the wire contract",
    ),
    rule("drain", "base::reason", ""),
    rule("drain::eviction", "base drain", ""),
    rule(
        "status",
        "base::reason base::text ignition plan status::readiness",
        "the document, with refusals; settings and metrics are beside it",
    ),
    rule(
        "status::readiness",
        "base",
        "paths and units of custom gates",
    ),
    rule(
        "status::metrics",
        "base::text status",
        "escapes what it shows",
    ),
    rule(
        "status::settings",
        "base ignition rootfs status::readiness yaml",
        "unit names; settings files",
    ),
    rule("cluster::pods", "cluster drain drain::eviction", ""),
    rule("agent::host", "base", ""),
    rule(
        "agent::config_dir",
        "base ignition rootfs status::metrics update",
        "publishes the desired config",
    ),
    rule(
        "agent::admin",
        "base rootfs status status::metrics status::readiness status::settings",
        "",
    ),
    rule("logging", "base status::settings", "log settings"),
];

/// An outside path, where it may be named, and the reason.
pub(crate) struct Outside {
    pub(crate) path: &'static str,
    /// Modules, including their submodules; `*` for all.
    pub(crate) modules: &'static [&'static str],
    pub(crate) why: &'static str,
}

const fn outside(
    path: &'static str,
    modules: &'static [&'static str],
    why: &'static str,
) -> Outside {
    Outside { path, modules, why }
}

/// Modules with concurrency, in crates whose other modules have none.
const DRIVERS: &[&str] = &[
    "agent",
    "base::rate_limit",
    "base::shutdown",
    "cli::agent_client",
    "cli::bootstrap",
    "cli::cancel",
    "cli::controller",
    "cli::drain",
    "cli::handover",
    "cli::pool::watch",
    "cli::vendor_check",
    "cluster",
    "controller",
    "cri",
    "device::registry",
    "device::uevent",
    "device_plugins",
    "drain::eviction",
    "status::metrics",
    "systemd",
    "update::node_port",
    "update::reconciler",
];

/// The closest row applies. What has no row is held by the manifests alone.
pub(crate) const OUTSIDE: &[Outside] = &[
    // The file system.
    outside(
        "std::fs",
        &["rootfs"],
        "only this crate makes file system calls",
    ),
    outside("tokio::fs", &[], "file work is synchronous"),
    // Other kernel interfaces.
    outside(
        "nix",
        &[
            "agent::host",
            "cli::args",
            "device::registry",
            "device::uevent",
            "device_plugins::vendor_api::conformance",
            "device_plugins::vendor_api::vendor_files",
            "logging",
            "systemd::private_socket",
        ],
        "netlink, the user of the process, whether stderr is the journal",
    ),
    outside("sysinfo", &["agent::host"], "facts of the host"),
    outside(
        "std::env",
        &["main", "cli", "systemd::notifier"],
        "the environment is read at the edge",
    ),
    outside(
        "std::process",
        &["main", "cli"],
        "exit codes; only a vendor's own test starts a child",
    ),
    outside("tokio::process", &[], "host programs run through systemd"),
    outside(
        "std::net",
        &[
            "agent::admin",
            "agent::host::gateway_probe",
            "cli",
            "status::settings",
        ],
        "addresses of the port, and of gateways",
    ),
    outside(
        "std::os",
        &[
            "agent::admin",
            "agent::endpoints",
            "agent::host::gateway_probe",
            "device::uevent",
            "device_plugins::plugin_proxy",
            "logging",
            "rootfs",
            "systemd",
        ],
        "descriptors, and sockets that the root opened",
    ),
    outside("std::io::stdin", &["cli"], "prompts"),
    outside("std::io::stdout", &["cli"], "only the command line prints"),
    outside(
        "std::io::stderr",
        &["cli", "logging"],
        "the log, and errors at the edge",
    ),
    outside(
        "std::thread",
        &["base::shutdown", "rootfs::file_lock", "update::observe"],
        "whether a task ends by a panic; waiting for a lock that only fcntl(2) knows; reading on all cores",
    ),
    // The clock.
    outside(
        "std::time::SystemTime",
        &[],
        "ask the clock that was handed in",
    ),
    outside(
        "jiff::Timestamp::now",
        &[
            "base::clock",
            "device_plugins::dra::status",
            "device_plugins::kubelet::status",
            "update::crash_recovery",
            "update::observe",
            "update::observe_and_plan",
            "update::reconciler",
        ],
        "journal and `since`, written down for people; how old a file's `ctime` is, which has the same clock",
    ),
    outside(
        "std::time::Instant",
        &[],
        "tokio's can be stopped by a test",
    ),
    outside("jiff", &["*"], "times as data"),
    // Formats and protocols.
    outside(
        "tonic",
        &[
            "cri",
            "device_plugins::dra",
            "device_plugins::kubelet",
            "device_plugins::plugin_proxy",
            "device_plugins::vendor_api",
        ],
        "gRPC with the container runtime, the kubelet, vendors and device plugins",
    ),
    outside(
        "tonic_prost",
        &["device_plugins::vendor_api::limited_codec"],
        "elsewhere only generated code names it",
    ),
    outside("axum", &["agent::admin"], "HTTP"),
    outside(
        "http",
        &[
            "cluster::response_limit",
            "controller::webhook",
            "controller::webhook_route",
            "controller::webhook_settings",
        ],
        "a layer of the API server's client; notifications",
    ),
    outside(
        "hyper",
        &["controller::webhook", "controller::webhook_route"],
        "requests to the webhook",
    ),
    outside("hyper_rustls", &["controller::webhook_route"], "TLS"),
    outside("hyper_util", &["controller::webhook_route"], "proxies"),
    outside(
        "rustls",
        &["controller::webhook_route", "controller::webhook_settings"],
        "TLS",
    ),
    outside(
        "prometheus_client",
        &["controller::metrics", "status::metrics"],
        "",
    ),
    outside("tracing_subscriber", &["logging"], ""),
    outside("tracing_journald", &["logging"], ""),
    outside(
        "clap",
        &["cli", "status::settings::enums"],
        "flags are the command line's; settings that are a choice of words give their words to both",
    ),
    outside(
        "anstyle",
        &[
            "plan::render",
            "status::history",
            "status::report_row",
            "status::text_report",
        ],
        "colours as data",
    ),
    outside(
        "granit_parser",
        &["yaml"],
        "dialects get its events through the tree",
    ),
    outside("serde_saphyr", &["cli"], "output in YAML; `yaml` reads it"),
    // Concurrency.
    outside("tokio", DRIVERS, "the other modules are pure"),
    outside("tokio_util", DRIVERS, "the other modules are pure"),
    outside("tokio_stream", DRIVERS, "the other modules are pure"),
    outside(
        "futures_util",
        &[
            "cluster",
            "controller::node_patch_sender",
            "device_plugins::plugin_proxy::list_stream",
            "rootfs::dir_watch",
        ],
        "",
    ),
    outside(
        "tracing",
        &[
            "agent",
            "base::shutdown",
            "cli",
            "cluster",
            "controller",
            "device::registry",
            "device_plugins",
            "drain::eviction",
            "systemd",
            "update",
        ],
        "pure modules do not log",
    ),
];

/// Every allowance of both tables, under the name that the checker uses.
pub(crate) fn allowances() -> BTreeSet<String> {
    let rules = IMPORT_RULES
        .iter()
        .flat_map(|rule| rule.may().map(|may| format!("{} → {may}", rule.modules)));
    let shared = |modules: &[&str]| modules == DRIVERS || modules == ["*"];
    let outside = OUTSIDE.iter().filter(|row| !shared(row.modules));
    let outside = outside.flat_map(|row| {
        row.modules
            .iter()
            .map(|named| format!("{} in {named}", row.path))
    });
    rules.chain(outside).collect()
}

/// The table as Markdown, for ARCHITECTURE.md.
pub(crate) fn as_markdown() -> String {
    let mut table = String::from("| module | may import |\n|---|---|\n");
    for ImportRule { modules, may, why } in IMPORT_RULES {
        let may = match *may {
            "" => "nothing of the workspace".to_owned(),
            may => code(may),
        };
        let why = if why.is_empty() {
            String::new()
        } else {
            format!(" – {why}")
        };
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {} | {may}{why} |", code(modules));
    }
    table
}

/// Names in backticks, from a list with a space between them.
pub(crate) fn code(names: &str) -> String {
    let names = names.split(' ').filter(|name| !name.is_empty());
    names
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(" ")
}
