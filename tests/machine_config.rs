//! Machine config from text to digest: golden cases, the example machine, properties.
#![allow(clippy::disallowed_methods, reason = "tests stand outside the rooms")]

#[cfg(test)]
mod golden;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod local;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod verdicts;
