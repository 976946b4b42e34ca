//! Decides about MachineConfigPools: membership, counts and conditions, and which node may be updated next.
//!
//! This crate is pure: it takes nodes, pools and the time as data and returns results. It passes over the nodes a fixed
//! number of times; the order of its input does not change the result. [`decide`] is the controller's decision as a
//! whole: it reviews the grants that pools list, counts unavailable nodes against each limit, and returns requests that
//! an adapter carries out. ARCHITECTURE.md describes how grants are fenced.

mod action;
mod canary;
mod candidates;
mod conditions;
mod decide;
mod duration_histogram;
mod estimate;
mod grant;
mod grant_end;
mod grant_placement;
mod grant_progress;
mod grant_review;
mod granting;
mod hold;
mod limit_accounting;
mod limit_group;
mod machine_counts;
mod membership;
mod node_order;
mod node_status;
mod node_summary;
mod pinned_image_sets;
mod pool_ledger;
mod pool_member;
mod reboot_kind;
mod rollout_conditions;
mod rollout_history;
mod rollout_holds;
mod rollout_inputs;
mod rollout_settings;
mod rollout_state;
mod rollout_window;
mod slots;
mod stop_rule;
mod summary;
mod unavailable_limit;
mod unused_configs;
mod update_taint;

pub use action::{
    Action, Decision, MAX_NEXT_NODES, NodeChange, NodePatchRequest, PoolDecision, PoolWrite,
    RolloutEdge,
};
pub use candidates::AGENT_SILENCE_LIMIT;
pub use conditions::{PoolCondition, conditions};
pub use decide::decide;
pub use duration_histogram::DurationHistogram;
pub use estimate::{
    NODE_UPDATE_TIME, PoolSize, cluster_update_time, node_update_time, rollout_time,
};
pub use grant::{
    Grant, GrantKind, GrantsError, MAX_GRANTS_BYTES, MAX_NODE_GRANT_BYTES, PoolGrants,
};
pub use grant_end::{
    DRAIN_PHASE, GrantEnd, GrantOutcome, MAX_GRANT_ENDS, UpdateTimes, grant_ends, with_end,
};
pub use grant_progress::{GrantProgress, open_grant};
pub use hold::{Hold, HoldReason, HoldStrength};
pub use limit_accounting::{UnavailableCause, UnavailableNodes};
pub use machine_counts::MachineCounts;
pub use membership::{Membership, NodesByPool, PoolKind, PoolMembers, split};
pub use node_order::NodeOrder;
pub use node_status::NodePoolStatus;
pub use node_summary::{NodeFacts, SharedNames, UPDATE_TAINT_EFFECT, has_update_taint};
pub use pinned_image_sets::ImageSetSelection;
pub use reboot_kind::RebootKind;
pub use rollout_conditions::{
    GRANTS_NOT_KEPT, NOT_CARRIED_OUT, PINNED, ROLLOUT_HELD, WINDOW_TOO_SHORT,
};
pub use rollout_history::{
    MAX_HISTORY_BYTES, MAX_ROLLOUTS, MAX_SKIPPED_NODES, MAX_WORST_NODES, NodeUpdate,
    RolloutHistory, RolloutRecord, WorstNode,
};
pub use rollout_inputs::{ClosedGate, NodeRead, PoolRead, RolloutInputs, RolloutStart};
pub use rollout_settings::{RolloutSettings, SettingError, format_windows};
pub use rollout_state::{
    MAX_ROLLOUT_BYTES, MAX_STEPPED_ASIDE_NODES, RolloutState, RolloutStateError, RolloutStates,
};
pub use rollout_window::{WindowPermit, WindowTimes};
pub use stop_rule::default_stop_after;
pub use summary::{COLUMNS, PoolRow, age, table};
pub use unavailable_limit::{BadLimit, UnavailableLimit, max_unavailable};
pub use unused_configs::{RenderedConfig, missing_configs, unused_configs, used_configs};
pub use update_taint::MAX_TAINT_PATCHES_PER_SECOND;

#[cfg(test)]
mod tests;
