//! Refuses masks that would replace a unit linked from elsewhere.

use super::{
    desired_tree::DesiredTree,
    unit_tree::{UnitTree, UnitTreeEntry, unit_path},
};
use crate::{
    machine_config::{Refusal, Unit, UnitName},
    reason::Reason,
};

/// Judges a mask by what exists on the machine without the base config: `systemctl mask` refuses to replace a link
/// to a unit file elsewhere.
pub(super) fn of_mask(
    layout: &mut DesiredTree,
    there: &UnitTree<'_>,
    (name, unit): (&UnitName, &Unit),
) {
    let Some(path) = unit_path(name.as_str()) else {
        return;
    };
    let Some(entry @ UnitTreeEntry::Link(text)) = there.at(&path) else {
        return;
    };
    if entry.is_mask() {
        return;
    }
    let message = format!(
        "{path} is a link to {text} on this machine: {name} cannot be masked, because systemctl \
         mask does not replace such a link either"
    );
    let refusal = Refusal::new(Reason::SameObject, message).at(&unit.origin);
    let expected = format!("enabled: false, or {name} without its link (systemctl disable {name})");
    layout.refusals.push(refusal.expected(expected));
}
