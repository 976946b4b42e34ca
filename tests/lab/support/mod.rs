//! The harness: machines and clusters for tests, waits with deadlines, and the output of failures.
#![allow(
    dead_code,
    reason = "the harness offers more than the tests of one day use"
)]

pub mod agent;
pub mod api;
pub mod api_reader;
pub mod builder;
pub mod cgroup;
pub mod cluster;
pub mod credentials;
pub mod digest;
pub mod image;
pub mod installed;
pub mod machine;
pub mod machine_files;
pub mod node;
pub mod report;
pub mod seeded_random;
pub mod stalls;
pub mod supervisor;
pub mod wait;

use std::path::PathBuf;
use std::sync::OnceLock;

pub use cluster::Cluster;
pub use machine::Machine;
pub use node::Node;
pub use seeded_random::Dice;

/// The environment that `tests/lab/run` prepared, read once.
#[derive(Debug)]
pub struct Lab {
    /// The image every machine is a copy of.
    pub base: PathBuf,
    /// The built program and its units, as a layer above the base image.
    pub program: PathBuf,
    /// The binary that holds every Kubernetes component.
    pub kube: PathBuf,
    /// The binary that runs as `kube kubelet` on machines: the same, or the one that
    /// `MACHINIST_LAB_KUBELET` names.
    pub kubelet: PathBuf,
    /// The version of `kube`, without the `v`.
    pub version: String,
    /// Kubernetes' own sample of a device plugin.
    pub plugin: PathBuf,
    /// The control group of this test's slot, below each hierarchy.
    pub group: String,
    /// Machines and clusters outlive their test (`--keep`).
    pub keep: bool,
    /// The long versions are requested (`--long`).
    pub long: bool,
}

/// Where machines and control planes keep their files while they exist.
pub const WORK: &str = "/var/lib/machinist-lab";
/// The network namespace of the slot with the bridge `lab0`, where all of its traffic stays.
pub const NETWORK: &str = "/run/netns/machinist-lab";

/// The prepared lab; panics in a test that was not started through `tests/lab/run`.
pub fn lab() -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    let path = |name: &str| PathBuf::from(variable(name));
    LAB.get_or_init(|| Lab {
        base: path("MACHINIST_LAB_BASE"),
        program: path("MACHINIST_LAB_PROGRAM"),
        kube: path("MACHINIST_LAB_KUBE"),
        kubelet: std::env::var_os("MACHINIST_LAB_KUBELET")
            .map_or_else(|| path("MACHINIST_LAB_KUBE"), PathBuf::from),
        version: variable("MACHINIST_LAB_VERSION"),
        plugin: path("MACHINIST_LAB_PLUGIN"),
        group: variable("MACHINIST_LAB_GROUP"),
        keep: !variable("MACHINIST_LAB_KEEP").is_empty(),
        long: !variable("MACHINIST_LAB_LONG").is_empty(),
    })
}

impl Lab {
    /// An example program of the documentation, built next to this one.
    pub fn example(&self, name: &str) -> Vec<u8> {
        let here = std::env::current_exe().unwrap();
        let built = here.ancestors().nth(2).unwrap().join("examples").join(name);
        std::fs::read(&built).unwrap_or_else(|error| panic!("{}: {error}", built.display()))
    }
}

/// The number of repetitions: `short` on every run, `long` with `--long`.
pub fn rounds(short: usize, long: usize) -> usize {
    if lab().long { long } else { short }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: start through tests/lab/run"))
}
