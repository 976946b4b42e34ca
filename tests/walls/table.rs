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
        "reason path digest error_chain authority places clock backoff rate shutdown window wire words crd",
        "",
        "",
    ),
    wall("machine_config", "digest path reason words", ""),
    wall("plan", "digest machine_config path reason words", ""),
    wall("update::phase", "", ""),
    wall(
        "update::journal",
        "digest path plan reason root",
        "which directory it was",
    ),
    wall(
        "device",
        "machine_config path reason",
        "refusals are the config's",
    ),
    wall("drain", "reason", ""),
    wall("drain::evict", "backoff clock drain reason error_chain", ""),
    wall(
        "readiness",
        "path reason words",
        "what an administrator's gate asks for",
    ),
    wall("status", "plan readiness reason", ""),
    wall("pool", "crd", "nodes and pools as the cluster has them"),
    wall("root", "digest path reason", ""),
    wall(
        "systemd",
        "backoff path plan reason root error_chain update",
        "it fulfils the port of the update loop",
    ),
    wall(
        "os",
        "machine_config path plan reason root",
        "what a plan may ask of it",
    ),
    wall("hardware", "path", ""),
    wall(
        "kubelet",
        "authority backoff device path places rate root shutdown error_chain words",
        "what is lent",
    ),
    wall(
        "dra",
        "backoff device device::registry digest kubelet path root shutdown error_chain",
        "what may be claimed, and what was",
    ),
    wall(
        "vendor",
        "authority backoff device device::registry path places rate root shutdown error_chain wire words",
        "what is offered, and what is asked of whoever offers it",
    ),
    wall(
        "proxy",
        "backoff device device::registry kubelet path rate root shutdown error_chain wire words",
        "the kubelet's wire contract, from its other side",
    ),
    wall(
        "cluster",
        "backoff clock crd digest machine_config metrics path plan readiness reason root status error_chain update update::phase",
        "it publishes what is desired",
    ),
    wall("cluster::pods", "cluster drain drain::evict", ""),
    wall(
        "cluster::slices cluster::dynamic",
        "backoff cluster cluster::dynamic crd device rate reason error_chain",
        "it fulfils the ports of claims",
    ),
    wall(
        "source",
        "machine_config metrics path reason root error_chain update words",
        "it publishes what is desired",
    ),
    wall(
        "update",
        "backoff digest machine_config path plan reason root error_chain update::journal update::phase window",
        "",
    ),
    wall(
        "device::registry",
        "device digest path rate reason root shutdown error_chain words",
        "",
    ),
    wall(
        "service",
        "device device::registry dra kubelet proxy root shutdown error_chain vendor",
        "",
    ),
    wall(
        "config",
        "machine_config path readiness reason root error_chain window",
        "names of units",
    ),
    wall("telemetry", "config words", "what is logged, and how"),
    wall("metrics", "status", ""),
    wall(
        "admin",
        "config metrics path readiness reason root status words",
        "",
    ),
    wall("agent cli", "*", "they join the others"),
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
    "authority",
    "places",
    "agent",
    "cli::beside",
    "cli::cancel",
    "cli::drain",
    "cli::handover",
    "cli::runtime",
    "cli::vendor_check",
    "cluster",
    "device::registry",
    "dra",
    "drain::evict",
    "hardware::gateway",
    "device::uevent",
    "kubelet",
    "metrics",
    "proxy",
    "rate",
    "service",
    "shutdown",
    "source",
    "systemd",
    "update::node",
    "update::run",
    "vendor",
];

/// The closest row applies. Everything outside `std` must have a row.
pub(crate) const OUTSIDE: &[Outside] = &[
    // The file system.
    outside(
        "std::fs",
        &["root"],
        "only the file room makes file system calls",
    ),
    outside("tokio::fs", &[], "the file room is synchronous"),
    outside("rustix", &["root"], "file work is the file room's"),
    outside("inotify", &["root"], "others are handed a root::Watch"),
    // Other kernel interfaces.
    outside(
        "nix",
        &[
            "device::uevent",
            "hardware",
            "systemd::private",
            "device::registry",
            "cli::args",
            "telemetry",
            "vendor::check",
            "vendor::files",
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
    outside("sysinfo", &["hardware"], "facts of the host"),
    outside(
        "std::env",
        &["main", "cli", "systemd::notify"],
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
        &["admin", "cli", "config", "hardware::gateway"],
        "addresses of the port, and of gateways",
    ),
    outside(
        "std::os",
        &[
            "root",
            "systemd",
            "device::uevent",
            "hardware::gateway",
            "proxy",
            "telemetry",
            "admin",
            "agent::serve",
        ],
        "descriptors, and sockets that the root opened",
    ),
    outside("std::io::stdin", &["cli"], "who is asked"),
    outside("std::io::stdout", &["cli"], "only the command line prints"),
    outside(
        "std::io::stderr",
        &["cli", "telemetry"],
        "the log, and errors at the edge",
    ),
    outside(
        "std::thread",
        &["root::lock", "shutdown", "update::observe"],
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
            "dra::state",
            "update::run",
            "kubelet::state",
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
        &["dra", "kubelet", "proxy", "vendor"],
        "gRPC is spoken with the kubelet, with vendors and with who takes us for the kubelet",
    ),
    outside(
        "tonic_prost",
        &["vendor::codec"],
        "elsewhere only generated code names it",
    ),
    outside("prost", &["dra", "kubelet", "proxy", "vendor"], ""),
    outside("axum", &["admin"], "HTTP is the admin room's"),
    outside(
        "axum::http",
        &["admin", "cluster::answer_limit"],
        "HTTP is the admin room's; a layer of the API server's client",
    ),
    outside("http_body_util", &["cluster::answer_limit"], ""),
    outside("tower", &["cluster::answer_limit"], ""),
    outside("kube", &["cluster"], "the API server is asked in one room"),
    outside("prometheus_client", &["metrics"], ""),
    outside("tracing_subscriber", &["telemetry"], ""),
    outside("tracing_journald", &["telemetry"], ""),
    outside(
        "clap",
        &["cli", "config::words"],
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
        &["plan::text", "status::history", "status::text"],
        "colours as data",
    ),
    outside("data_url", &["machine_config"], ""),
    outside("flate2", &["machine_config"], ""),
    outside("granit_parser", &["device::cdi", "machine_config"], ""),
    outside(
        "serde_saphyr",
        &["agent::policies", "cli", "config", "device::document"],
        "YAML of our own documents",
    ),
    outside("sha2", &["digest", "machine_config", "device::name"], ""),
    // Concurrency.
    outside("tokio", DRIVERS, "the vocabulary is pure"),
    outside("tokio_util", DRIVERS, "the vocabulary is pure"),
    outside("tokio_stream", DRIVERS, "the vocabulary is pure"),
    outside(
        "futures_util",
        &["cluster", "proxy::follow", "root::watch"],
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
            "drain::evict",
            "kubelet",
            "proxy",
            "service",
            "shutdown",
            "source",
            "systemd",
            "update",
            "vendor",
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
    let mut table = String::from("| room | may import |\n|---|---|\n");
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
