//! Loads and validates the agent's own settings from files, environment and flags.
//!
//! Precedence, later wins, key by key: built-in defaults, `machinist.yaml`,
//! `machinist.yaml.d/*.yaml` in name order, `pool.<name>.yaml` of the node's pool, the environment
//! (`MACHINIST_UPDATE__REBOOT`), flags. Every effective value has its origin, and all problems of
//! all sources are reported at once.

mod cluster;
mod fragment;
mod load;
mod merge;
mod own;
mod pool;
mod problem;
mod reader;
mod roles;
mod settings;
mod value;
mod window;
mod words;

pub use cluster::Kubeconfig;
pub use fragment::Fragment;
pub use load::{FindError, Inputs, Live, LoadError, Offer, Place, SettingsFile, load};
pub use problem::{Origin, Problem, SettingsError};
pub use reader::Effective;
pub use settings::{
    Actions, Admin, Cluster, Devices, Drain, Drift, DriftRule, Log, Readiness, Settings, Update,
};
pub use value::Source;
pub use words::{
    CdiAnswer, DrainBy, DriftPolicy, Job, LogFormat, LogLevel, Losing, Owners, Reboot,
    Registration, SoftReboot,
};

#[cfg(test)]
mod tests;
