//! The controller of MachineConfigPools in clusters without OpenShift.
//!
//! Two replicas run, and the holder of a Lease acts. It watches Nodes, pools and MachineConfigs, renders a config for
//! each pool, and carries out the decisions of `machinist_pool::decide`. A Lease does not fence: a process that was
//! suspended may still send a request after another one has become the leader. Every write therefore tests the resource
//! version that it was decided on.

mod budget_recovery;
mod condition_keeper;
mod config_object;
mod controller;
mod eviction_blockers;
mod failure_log;
mod inbox;
mod leader;
mod leadership;
mod lease;
mod metrics;
mod monitor;
mod node_patch;
mod node_patch_sender;
mod node_phases;
mod notification;
mod notifier;
mod operator_condition;
mod policy_object;
mod policy_status;
mod pool_events;
mod pool_patch;
mod pool_report;
mod pool_status;
mod preview;
mod reboot_kinds;
mod render;
mod renderer;
mod requests;
mod rollout;
mod rollout_event;
mod rollout_log;
mod rollout_view;
mod status_writer;
mod taint_budget;
mod unused_config_collector;
mod upgrade_schedule;
mod upgradeable;
mod watched_budget;
mod watched_upgrade;
mod watched_view;
mod watches;
mod webhook;
mod webhook_route;
mod webhook_settings;
mod webhook_source;

pub use controller::{ControllerOptions, run};
pub use monitor::ControllerMonitor;
pub use preview::{PreviewConfigs, PreviewedConfig};
pub use reboot_kinds::reboot_of;
pub use render::RenderError;
pub use webhook_settings::{ProxyVariables, WebhookError, WebhookSettings, WebhookUrl};
pub use webhook_source::WebhookSource;
