//! Evaluates the gates that the administrator defines.

use super::{CustomProbe, GateInputs, gate_result::GateResult};
use machinist_base::reason::Reason;

/// A probe without a result counts as closed, so that a blocking gate cannot be passed before its
/// first result.
pub(super) fn verdict(probe: &CustomProbe, inputs: &GateInputs) -> GateResult {
    if let CustomProbe::TaintAbsent(taint) = probe {
        return untainted(taint, inputs);
    }
    let Some(answer) = inputs.custom_probes.get(probe) else {
        return GateResult::closed(Reason::CustomGateClosed, "not checked yet");
    };
    match answer.open {
        Some(true) => GateResult::ok(&*answer.message),
        Some(false) => GateResult::closed(Reason::CustomGateClosed, &*answer.message),
        None => GateResult::no_signal(&answer.message),
    }
}

/// As for the kubelet, unknown does not close the gate: before the node is uncordoned, the API
/// server is read first.
fn untainted(taint: &str, inputs: &GateInputs) -> GateResult {
    let Some(borne) = &inputs.taints else {
        return GateResult::no_signal("the Node's taints are unknown");
    };
    let same = |one: &String| {
        let key = one.rsplit_once(':').map_or(one.as_str(), |(key, _)| key);
        one == taint || key == taint
    };
    match borne.iter().find(|one| same(one)) {
        Some(found) => {
            let message = format!("Node has taint {found}");
            GateResult::closed(Reason::CustomGateClosed, message)
        }
        None => GateResult::ok(format!("Node does not have taint {taint}")),
    }
}
