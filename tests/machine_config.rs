//! Machine config from text to digest: golden cases, the example machine, properties.
#![allow(clippy::disallowed_methods, reason = "tests stand outside the rooms")]

#[cfg(test)]
#[path = "machine_config/golden.rs"]
mod golden;
#[cfg(test)]
#[path = "machine_config/hostile.rs"]
mod hostile;
#[cfg(test)]
#[path = "machine_config/local.rs"]
mod local;
#[cfg(test)]
#[path = "machine_config/properties.rs"]
mod properties;
#[cfg(test)]
#[path = "machine_config/reference.rs"]
mod reference;
