//! Loads and validates the agent's own settings from files, environment and flags.
//!
//! Precedence, later wins, key by key: built-in defaults, `machinist.yaml`,
//! `machinist.yaml.d/*.yaml` in name order, `pool.<name>.yaml` of the node's pool, the environment
//! (`MACHINIST_UPDATE__REBOOT`), flags. Every effective value has its origin, and all problems of
//! all sources are reported at once.

mod cluster;
mod custom_gates;
mod enums;
mod error;
mod extract;
mod fragment;
mod load;
mod merge;
mod model;
mod pinned_images;
mod pool;
mod roles;
mod unknown_key;
mod value_types;
mod window;

pub use cluster::Kubeconfig;
pub use enums::{
    AgentRole, CdiAnswer, DataLossPolicy, DrainBy, DriftPolicy, LogFormat, LogLevel, Owners,
    Reboot, Registration, SoftReboot,
};
pub use error::{SettingOrigin, SettingsError, SettingsProblem};
pub use extract::EffectiveSetting;
pub use fragment::Fragment;
pub use load::{
    FindError, LoadError, ReloadOutcome, ReloadableSettings, SettingsFile, SettingsInputs,
    SettingsLocation, load,
};
pub use model::{
    ActionSettings, AdminSettings, ClusterSettings, DeviceSettings, DrainSettings, DriftRule,
    DriftSettings, LogSettings, ReadinessSettings, Settings, UpdateSettings,
};
pub use pinned_images::PinnedImageSettings;
pub use value_types::SourceSetting;

#[cfg(test)]
mod tests;
