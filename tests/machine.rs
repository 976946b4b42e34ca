//! How configs are read, planned, applied, rolled back and recovered, without a cluster.

mod crash;
mod faults;
mod golden;
mod machine_config;
mod misuse;
mod os;
mod plan;
mod power_cut;
mod transaction;
mod update;
