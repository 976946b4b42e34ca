//! The table of layering rules: which module may import which, and where each outside crate may be
//! used.

use std::{collections::BTreeSet, fmt::Write as _};

/// One row: modules, the modules they may import, and the reason where that is not obvious.
pub(crate) struct Wall {
    /// Modules with the same rule. A submodule has a row of its own when its rule differs.
    pub(crate) rooms: &'static str,
    /// Modules that they may import; `*` for modules that combine all others.
    pub(crate) may: &'static str,
    pub(crate) why: &'static str,
}

impl Wall {
    pub(crate) fn rooms(&self) -> impl Iterator<Item = &'static str> {
        self.rooms.split(' ')
    }

    pub(crate) fn may(&self) -> impl Iterator<Item = &'static str> {
        self.may.split(' ').filter(|may| !may.is_empty())
    }
}

const fn wall(rooms: &'static str, may: &'static str, why: &'static str) -> Wall {
    Wall { rooms, may, why }
}

pub(crate) const WALLS: &[Wall] = &[
    wall(
        "reason abs_path digest error_chain authority_rewrite places clock backoff rate_limit shutdown maintenance_window protobuf_scan text kube_api",
        "",
        "",
    ),
    wall("machine_config", "digest abs_path reason text", ""),
    wall("plan", "digest machine_config abs_path reason text", ""),
    wall("update::phase", "", ""),
    wall(
        "update::journal",
        "digest abs_path plan reason rootfs",
        "identity of a directory",
    ),
    wall(
        "device",
        "machine_config abs_path reason",
        "refusals of configs",
    ),
    wall("drain", "reason", ""),
    wall(
        "drain::eviction",
        "backoff clock drain reason error_chain",
        "",
    ),
    wall(
        "readiness",
        "abs_path reason text",
        "paths and units of custom gates",
    ),
    wall("status", "plan readiness reason", ""),
    wall("pool", "kube_api", "Node and pool objects"),
    wall("rootfs", "digest abs_path reason", ""),
    wall(
        "systemd",
        "backoff abs_path plan reason rootfs error_chain update",
        "implements the reconciler's service port",
    ),
    wall(
        "os",
        "machine_config abs_path plan reason rootfs",
        "requests of a plan",
    ),
    wall("host", "abs_path", ""),
    wall(
        "kubelet",
        "authority_rewrite backoff device abs_path places rate_limit rootfs shutdown error_chain text",
        "the devices to advertise",
    ),
    wall(
        "dra",
        "backoff device device::registry digest kubelet abs_path rootfs shutdown error_chain",
        "devices for claims",
    ),
    wall(
        "vendor_api",
        "authority_rewrite backoff device device::registry abs_path places rate_limit rootfs shutdown error_chain protobuf_scan text",
        "offered devices and their allocation",
    ),
    wall(
        "plugin_proxy",
        "backoff device device::registry kubelet abs_path rate_limit rootfs shutdown error_chain protobuf_scan text",
        "the kubelet's side of the wire contract",
    ),
    wall(
        "cluster",
        "backoff clock kube_api digest machine_config metrics abs_path plan readiness reason rootfs status error_chain update update::phase",
        "publishes the desired config",
    ),
    wall("cluster::pods", "cluster drain drain::eviction", ""),
    wall(
        "cluster::resource_slices cluster::resource_claims",
        "backoff cluster cluster::resource_claims kube_api device rate_limit reason error_chain",
        "implements the traits of claims",
    ),
    wall(
        "config_dir",
        "machine_config metrics abs_path reason rootfs error_chain update text",
        "publishes the desired config",
    ),
    wall(
        "update",
        "backoff digest machine_config abs_path plan reason rootfs error_chain update::journal update::phase maintenance_window",
        "",
    ),
    wall(
        "device::registry",
        "device digest abs_path rate_limit reason rootfs shutdown error_chain text",
        "",
    ),
    wall(
        "device_service",
        "device device::registry dra kubelet plugin_proxy rootfs shutdown error_chain vendor_api",
        "",
    ),
    wall(
        "settings",
        "machine_config abs_path readiness reason rootfs error_chain maintenance_window text",
        "unit names",
    ),
    wall("logging", "settings text", "log settings"),
    wall("metrics", "status", ""),
    wall(
        "admin",
        "settings metrics abs_path readiness reason rootfs status text",
        "",
    ),
    wall("agent cli", "*", "they combine the others"),
];

/// An outside path, where it may be named, and the reason.
pub(crate) struct Outside {
    pub(crate) path: &'static str,
    /// Modules, including their submodules; `*` for all.
    pub(crate) rooms: &'static [&'static str],
    pub(crate) why: &'static str,
}

const fn outside(path: &'static str, rooms: &'static [&'static str], why: &'static str) -> Outside {
    Outside { path, rooms, why }
}

/// Modules with concurrency; the vocabulary has none.
const DRIVERS: &[&str] = &[
    "admin",
    "authority_rewrite",
    "places",
    "agent",
    "cli::agent_client",
    "cli::cancel",
    "cli::drain",
    "cli::handover",
    "cli::bootstrap",
    "cli::vendor_check",
    "cluster",
    "device::registry",
    "dra",
    "drain::eviction",
    "host::gateway_probe",
    "device::uevent",
    "kubelet",
    "metrics",
    "plugin_proxy",
    "rate_limit",
    "device_service",
    "shutdown",
    "config_dir",
    "systemd",
    "update::node_port",
    "update::reconciler",
    "vendor_api",
];

/// The closest row applies. Everything outside `std` must have a row.
pub(crate) const OUTSIDE: &[Outside] = &[
    // The file system.
    outside(
        "std::fs",
        &["rootfs"],
        "only the file room makes file system calls",
    ),
    outside("tokio::fs", &[], "the file room is synchronous"),
    outside("rustix", &["rootfs"], "file work is the file room's"),
    outside("inotify", &["rootfs"], "others are handed a root::Watch"),
    // Other kernel interfaces.
    outside(
        "nix",
        &[
            "device::uevent",
            "host",
            "systemd::private_socket",
            "device::registry",
            "cli::args",
            "logging",
            "vendor_api::conformance",
            "vendor_api::vendor_files",
        ],
        "netlink, who I am, whether stderr is the journal",
    ),
    outside("toml_edit", &["plan"], "registries.conf"),
    outside(
        "k8s_openapi",
        &["cluster", "drain"],
        "pods and budgets are read from the API's own types",
    ),
    outside("regex", &["plan"], "the patterns of a labelling policy"),
    outside("sysinfo", &["host"], "facts of the host"),
    outside(
        "std::env",
        &["main", "cli", "systemd::notifier"],
        "surroundings are read at the edge",
    ),
    outside(
        "std::process",
        &["main", "cli"],
        "exit codes; only a vendor's own test starts a child",
    ),
    outside("tokio::process", &[], "host programs run through systemd"),
    outside(
        "std::net",
        &["admin", "cli", "settings", "host::gateway_probe"],
        "addresses of the port, and of gateways",
    ),
    outside(
        "std::os",
        &[
            "rootfs",
            "systemd",
            "device::uevent",
            "host::gateway_probe",
            "plugin_proxy",
            "logging",
            "admin",
            "agent::endpoints",
        ],
        "descriptors, and sockets that the root opened",
    ),
    outside("std::io::stdin", &["cli"], "who is asked"),
    outside("std::io::stdout", &["cli"], "only the command line prints"),
    outside(
        "std::io::stderr",
        &["cli", "logging"],
        "the log, and errors at the edge",
    ),
    outside(
        "std::thread",
        &["rootfs::file_lock", "shutdown", "update::observe"],
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
            "clock",
            "dra::status",
            "update::reconciler",
            "kubelet::status",
            "update::observe",
        ],
        "journal and `since`, written down for people; how old a file's `ctime` is, which has the same clock",
    ),
    outside(
        "std::time::Instant",
        &[],
        "tokio's can be stopped by a test",
    ),
    outside("jiff", &["*"], "times as data"),
    // One module each.
    outside("zbus", &["systemd"], "D-Bus is systemd's"),
    outside("sd_notify", &["systemd"], ""),
    outside(
        "tonic",
        &["dra", "kubelet", "plugin_proxy", "vendor_api"],
        "gRPC is spoken with the kubelet, with vendors and with who takes us for the kubelet",
    ),
    outside(
        "tonic_prost",
        &["vendor_api::limited_codec"],
        "elsewhere only generated code names it",
    ),
    outside(
        "prost",
        &["dra", "kubelet", "plugin_proxy", "vendor_api"],
        "",
    ),
    outside("axum", &["admin"], "HTTP is the admin room's"),
    outside(
        "axum::http",
        &["admin", "cluster::response_limit"],
        "HTTP is the admin room's; a layer of the API server's client",
    ),
    outside("http_body_util", &["cluster::response_limit"], ""),
    outside("tower", &["cluster::response_limit"], ""),
    outside("kube", &["cluster"], "the API server is asked in one room"),
    outside("prometheus_client", &["metrics"], ""),
    outside("tracing_subscriber", &["logging"], ""),
    outside("tracing_journald", &["logging"], ""),
    outside(
        "clap",
        &["cli", "settings::enums"],
        "flags are the command line's; settings that are a choice of words give their words to both",
    ),
    outside("clap_complete", &["cli"], ""),
    outside("clap_mangen", &["cli"], ""),
    outside(
        "anyhow",
        &["cli"],
        "errors have types everywhere but at the edge",
    ),
    outside("anstream", &["cli"], "only the command line prints"),
    outside(
        "anstyle",
        &["plan::render", "status::history", "status::text_report"],
        "colours as data",
    ),
    outside("data_url", &["machine_config"], ""),
    outside("flate2", &["machine_config"], ""),
    outside("granit_parser", &["device::cdi", "machine_config"], ""),
    outside(
        "serde_saphyr",
        &[
            "agent::disruption_policies",
            "cli",
            "settings",
            "device::yaml",
        ],
        "YAML of our own documents",
    ),
    outside(
        "sha2",
        &["digest", "machine_config", "device::resource_name"],
        "",
    ),
    // Concurrency.
    outside("tokio", DRIVERS, "the vocabulary is pure"),
    outside("tokio_util", DRIVERS, "the vocabulary is pure"),
    outside("tokio_stream", DRIVERS, "the vocabulary is pure"),
    outside(
        "futures_util",
        &["cluster", "plugin_proxy::list_stream", "rootfs::dir_watch"],
        "",
    ),
    outside(
        "tracing",
        &[
            "agent",
            "cli",
            "cluster",
            "device::registry",
            "dra",
            "drain::eviction",
            "kubelet",
            "plugin_proxy",
            "device_service",
            "shutdown",
            "config_dir",
            "systemd",
            "update",
            "vendor_api",
        ],
        "the vocabulary says nothing by itself",
    ),
    outside(
        "litemap",
        &["device"],
        "names with values, of which a device has few",
    ),
    // Everywhere.
    outside("serde", &["*"], ""),
    outside("serde_json", &["*"], ""),
    outside("thiserror", &["*"], ""),
];

/// Every allowance of both tables, under the name that the checker uses.
pub(crate) fn allowances() -> BTreeSet<String> {
    let walls = WALLS.iter().filter(|wall| wall.may != "*");
    let walls = walls.flat_map(|wall| wall.may().map(|may| format!("{} → {may}", wall.rooms)));
    let shared = |rooms: &[&str]| rooms == DRIVERS || rooms == ["*"];
    let outside = OUTSIDE.iter().filter(|row| !shared(row.rooms));
    let outside = outside.flat_map(|row| {
        row.rooms
            .iter()
            .map(|room| format!("{} in {room}", row.path))
    });
    walls.chain(outside).collect()
}

/// The table as Markdown, for ARCHITECTURE.md.
pub(crate) fn as_markdown() -> String {
    let code = |names: &str| {
        let names = names.split(' ').filter(|name| !name.is_empty());
        names
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let mut table = String::from("| module | may import |\n|---|---|\n");
    for Wall { rooms, may, why } in WALLS {
        let may = match *may {
            "" => "nothing of the crate".to_owned(),
            "*" => "whatever they need".to_owned(),
            may => code(may),
        };
        let why = if why.is_empty() {
            String::new()
        } else {
            format!(" – {why}")
        };
        // Writing to a String cannot fail.
        let _ = writeln!(table, "| {} | {may}{why} |", code(rooms));
    }
    table
}
