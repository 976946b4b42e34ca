//! Builds the conditions of a rollout, beside those that OpenShift defines.

use machinist_kube_api::{MAX_REASON_BYTES, keys::pool_annotation, truncate_at_char};

use super::{
    Hold, HoldReason, HoldStrength, PoolCondition, PoolDecision, pool_ledger::PoolLedger,
    rollout_holds::first_hold,
};

/// True while nodes are off the target and none of them updates, or no more will. The reason is the code of the most
/// important hold, also while the condition is false because nodes still update.
pub const ROLLOUT_HELD: &str = "RolloutHeld";
/// True while the pool is pinned to a config.
pub const PINNED: &str = "Pinned";
/// True while nodes need more time than any maintenance window has.
pub const WINDOW_TOO_SHORT: &str = "WindowTooShort";
/// True while the pool has fields that machinist does not carry out; the message names them.
pub const NOT_CARRIED_OUT: &str = "NotCarriedOut";
/// True if the API server does not keep the annotation with the grants.
pub const GRANTS_NOT_KEPT: &str = "GrantsNotKept";

impl PoolDecision {
    /// The condition `RolloutHeld`: whether nothing proceeds, and the code of the most important hold.
    pub fn rollout_held(&self) -> Option<&PoolCondition> {
        self.conditions.iter().find(|it| it.kind == ROLLOUT_HELD)
    }
}

/// Returns the conditions of a pool's rollout, in the order in which they are written.
pub(super) fn rollout_conditions(
    ledger: &PoolLedger<'_>,
    is_updating: bool,
    is_window_too_short: bool,
) -> Vec<PoolCondition> {
    let pending = ledger.pending();
    let pinned = ledger.target.filter(|_| ledger.is_pinned);
    let fields = fields_not_carried_out(ledger);
    let named = fields.join(", ");
    let one = |kind, reason: Option<&'static str>, message: &str| PoolCondition {
        kind,
        status: reason.is_some(),
        reason: reason.unwrap_or("AsExpected"),
        message: match reason {
            Some(_) => truncate_at_char(message, MAX_REASON_BYTES).to_owned(),
            None => String::new(),
        },
    };
    let when = |is: bool, reason: &'static str| is.then_some(reason);
    let pinned_text = pinned.map(|config| {
        format!(
            "nodes run {config}; newer configs are rendered, and not rolled out until annotation {} is removed",
            pool_annotation::PINNED_CONFIG
        )
    });
    vec![
        rollout_held(ledger, is_updating),
        one(
            PINNED,
            when(pinned.is_some(), "PinnedByAdministrator"),
            &pinned_text.unwrap_or_default(),
        ),
        one(
            WINDOW_TOO_SHORT,
            when(is_window_too_short && pending > 0, WINDOW_TOO_SHORT),
            "a node takes longer than any maintenance window; one starts at each opening",
        ),
        one(
            NOT_CARRIED_OUT,
            when(!fields.is_empty(), "FieldsNotSupported"),
            &format!("{named}: not supported; the rollout proceeds without"),
        ),
        one(
            GRANTS_NOT_KEPT,
            when(ledger.read.is_not_kept, GRANTS_NOT_KEPT),
            "the API server did not return the grants that were written; nothing is granted",
        ),
    ]
}

fn rollout_held(ledger: &PoolLedger<'_>, is_updating: bool) -> PoolCondition {
    let first = first_hold(&ledger.holds);
    // Settings that are not valid are reported before they hold a rollout.
    let first = first.filter(|hold| {
        let is_invalid = hold.reason == HoldReason::SettingsInvalid;
        is_invalid || ledger.pending() > 0 || ledger.target.is_none()
    });
    let proceeds = |hold: &Hold| {
        let is_step = is_updating || hold.reason == HoldReason::CanarySoaking;
        is_step && hold.reason.strength() == HoldStrength::Waits
    };
    let texts = ledger.holds.iter().filter(|_| first.is_some());
    let all: Vec<&str> = texts.map(|hold| hold.message.as_str()).collect();
    PoolCondition {
        kind: ROLLOUT_HELD,
        status: first.is_some_and(|hold| !proceeds(hold)),
        reason: first.map_or("AsExpected", |hold| hold.reason.as_str()),
        message: truncate_at_char(&all.join("; "), MAX_REASON_BYTES).to_owned(),
    }
}

/// The fields of a pool that machinist does not carry out.
fn fields_not_carried_out(ledger: &PoolLedger<'_>) -> Vec<&'static str> {
    let spec = &ledger.pool.spec;
    let fields = [(!spec.os_image_stream.name.is_empty(), "spec.osImageStream")];
    let set = fields.into_iter().filter(|(is_set, _)| *is_set);
    set.map(|(_, field)| field).collect()
}
