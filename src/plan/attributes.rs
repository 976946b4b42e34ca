//! Access control lists and other attributes that a new file does not take over.

use super::{NodeKind, Observed, Operation, OperationKind};

/// One sentence for each file that loses them because its owner changes: only what root or the new owner
/// gave a file passes to the next one.
pub(super) fn dropped(operations: &[Operation], observed: &Observed) -> Vec<String> {
    let of = |operation: &Operation| {
        let OperationKind::Put(node) = &operation.kind else {
            return None;
        };
        let target = &operation.target;
        let source = match &node.kind {
            NodeKind::File(_) => target,
            NodeKind::Copy { place, .. } => place,
            _ => return None,
        };
        let facts = observed.objects.get(source)?;
        (facts.attributes && facts.uid != node.uid).then(|| {
            format!(
                "{target} is a file of user {}: its access control list and other attributes do not pass \
                 to the new file of user {}",
                facts.uid, node.uid
            )
        })
    };
    operations.iter().filter_map(of).collect()
}
