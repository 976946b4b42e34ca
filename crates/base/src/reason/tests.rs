//! Tests of codes that were renamed.

use super::Reason;

#[test]
fn renamed_reason_codes_are_read_by_their_former_names() {
    let renamed = [
        ("MachineUnwell", Reason::HealthRegressed),
        ("RebootDidNotHappen", Reason::RebootTimeout),
        ("SameObject", Reason::DuplicateTarget),
        ("MountPointInTheWay", Reason::TargetIsMountPoint),
        ("UndoFailed", Reason::RollbackFailed),
        ("ForceNotExplained", Reason::ForceReasonMissing),
        ("DrainComesBack", Reason::PodRescheduledOnNode),
        ("DrainNotServed", Reason::EvictionUnsupported),
        ("DrainNamespaceEnds", Reason::NamespaceTerminating),
        ("DrainNamespaceLeftOut", Reason::NamespaceExcluded),
        ("DrainPodEnding", Reason::PodTerminating),
        ("DrainPodOverdue", Reason::PodTerminationOverdue),
        ("OwnGateClosed", Reason::CustomGateClosed),
    ];
    for (former, reason) in renamed {
        let read: Reason = serde_json::from_value(former.into()).unwrap();
        assert_eq!((read, Reason::named(former)), (reason, Some(reason)));
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        assert_ne!(reason.as_str(), former);
    }
    for reason in Reason::ALL {
        assert_eq!(Reason::named(reason.as_str()), Some(*reason));
    }
    assert_eq!(Reason::named("Nothing"), None);
}
