//! Warns of access control lists and other attributes that a new file does not inherit.

use super::{MachineFacts, NodeKind, Operation, OperationKind};

/// One sentence for each object that loses them because its owner changes: only attributes that
/// root or the new owner set are copied to the new file.
pub(super) fn dropped(operations: &[Operation], observed: &MachineFacts) -> Vec<String> {
    let of = |operation: &Operation| {
        let target = &operation.target;
        let node = match &operation.kind {
            OperationKind::Put(node) => node,
            OperationKind::Metadata(wanted) => {
                let facts = observed.objects.get(target)?;
                let loses = facts.uid != 0 && facts.uid != wanted.uid;
                return (facts.access_list && loses).then(|| {
                    format!(
                        "the owner of {target} changes from user {} to user {}: its access control \
                         list is removed and only restored by a rollback",
                        facts.uid, wanted.uid
                    )
                });
            }
            _ => return None,
        };
        let source = match &node.kind {
            NodeKind::File(_) => target,
            NodeKind::Copy { place, .. } => place,
            _ => return None,
        };
        let facts = observed.objects.get(source)?;
        (facts.attributes && facts.uid != 0 && facts.uid != node.uid).then(|| {
            format!(
                "{target} belongs to user {}: its access control list and other extended \
                 attributes are not copied to the new file of user {}",
                facts.uid, node.uid
            )
        })
    };
    operations.iter().filter_map(of).collect()
}
