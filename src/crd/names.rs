//! Names, with who writes them and what they mean.

/// The group of MachineConfig, MachineConfigPool and MachineConfigNode.
pub const GROUP: &str = "machineconfiguration.openshift.io";

/// The group of MachineConfiguration, which holds the disruption policies.
pub const OPERATOR_GROUP: &str = "operator.openshift.io";

/// The one MachineConfiguration that counts.
pub const MACHINE_CONFIGURATION: &str = "cluster";

/// The ControllerConfig that OpenShift's controllers make; nobody else does.
pub const CONTROLLER_CONFIG: &str = "machine-config-controller";

/// Where OpenShift's machine-config-daemon runs, and the label of its pods.
pub const DAEMON_NAMESPACE: &str = "openshift-machine-config-operator";
/// See [`DAEMON_NAMESPACE`].
pub const DAEMON_LABEL: &str = "k8s-app=machine-config-daemon";

/// The group of UpgradeConfig, by which managed upgrades of OpenShift are planned.
pub const UPGRADE_GROUP: &str = "upgrade.managed.openshift.io";

/// Where the operator of managed upgrades lives, and the one UpgradeConfig that it follows.
pub const UPGRADE_NAMESPACE: &str = "openshift-managed-upgrade-operator";

/// The name of that one.
pub const UPGRADE_CONFIG: &str = "managed-upgrade-config";

/// What names of ours begin with.
pub const OURS: &str = "machinist.dev/";

/// Who we are to the API server: field manager, reporting controller of events.
pub const MANAGER: &str = "machinist";

/// Annotations of the protocol, on Nodes. "The node" is whoever manages its config; "the controller" is
/// OpenShift's, or ours.
pub mod protocol {
    /// The MachineConfig that the node is on. Written by the node when an update is complete; a Node
    /// without it belongs to no pool.
    pub const CURRENT_CONFIG: &str = "machineconfiguration.openshift.io/currentConfig";
    /// The MachineConfig that the node is to have. Written by the controller; a person may set it.
    pub const DESIRED_CONFIG: &str = "machineconfiguration.openshift.io/desiredConfig";
    /// Where the node stands: a [`State`](super::super::State). Written by the node.
    pub const STATE: &str = "machineconfiguration.openshift.io/state";
    /// Why, as free text of at most 2000 bytes; empty when done. Written by the node.
    pub const REASON: &str = "machineconfiguration.openshift.io/reason";
    /// What the node asks the controller for: a [`DrainRequest`](super::super::DrainRequest).
    pub const DESIRED_DRAIN: &str = "machineconfiguration.openshift.io/desiredDrain";
    /// The request that the controller has fulfilled last, word for word; written after success only.
    pub const LAST_APPLIED_DRAIN: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
    /// The image that the node runs, where a pool is layered; removed when there is none.
    pub const CURRENT_IMAGE: &str = "machineconfiguration.openshift.io/currentImage";
    /// The image that the node is to run, where a pool is layered. Written by the controller.
    pub const DESIRED_IMAGE: &str = "machineconfiguration.openshift.io/desiredImage";
    /// `Rebooting` from the order of a reboot to the first look after it, else empty. To others a hint;
    /// to us the boot id decides.
    pub const POST_CONFIG_ACTION: &str = "machineconfiguration.openshift.io/post-config-action";
    /// Why a staged OS was not finalised at the shutdown, at most 2000 bytes.
    pub const FINALIZE_FAILURE: &str =
        "machineconfiguration.openshift.io/ostree-finalize-staged-failure";
    /// The MachineConfig of the first boot. Written by the machine-config-server.
    pub const FIRST_PIVOT_CONFIG: &str = "machineconfiguration.openshift.io/firstPivotConfig";
    /// The labels of a custom pool were given by the controller.
    pub const CUSTOM_POOL_LABELS: &str =
        "machineconfiguration.openshift.io/customPoolLabelsApplied";
    /// `SingleReplica`, `HighlyAvailable`, …: nothing is drained on a single replica. Written by the
    /// controller.
    pub const TOPOLOGY: &str = "machineconfiguration.openshift.io/controlPlaneTopology";
    /// The ControllerConfig whose certificates were written last.
    pub const SYNCED_CONTROLLER_CONFIG: &str =
        "machineconfiguration.openshift.io/lastSyncedControllerConfigResourceVersion";
    /// Whether the rotation of the service authority of that version was seen to.
    pub const OBSERVED_SERVER_CA: &str =
        "machineconfiguration.openshift.io/lastObservedServerCAAnnotation";
    /// That somebody logged in, years ago; nobody writes it any more.
    pub const SSH: &str = "machineconfiguration.openshift.io/ssh";
}

/// Annotations of ours, on Nodes.
pub mod annotation {
    /// The cordon is ours. Written in the same request as the cordon; whoever cordoned a node that
    /// does not carry it keeps their cordon.
    pub const CORDONED: &str = "machinist.dev/cordoned";
    /// A person wants the node to stay cordoned after the update, whatever the value. Never written or
    /// removed by the agent.
    pub const KEEP_CORDONED: &str = "machinist.dev/keep-cordoned";
    /// A person forces this one drain; the value says why and goes into an event. Taken away by the
    /// agent when it was used.
    pub const FORCE_DRAIN: &str = "machinist.dev/force-drain";
    /// The label that makes remediators stand back is ours. Written with it and taken away with it; one
    /// without this mark is somebody else's.
    pub const STANDS_BACK: &str = "machinist.dev/stands-back";
    /// A person cancels the update to the config of this name. It stays while the Node names that config,
    /// and is taken away by the agent when it does not any more, or when it came too late.
    pub const CANCEL: &str = "machinist.dev/cancel";
    /// The agent's answer: the update to the config of this name is given up, and nothing of the machine was changed.
    pub const CANCELLED: &str = "machinist.dev/cancelled";
    /// The agent's other answer, as `config: why`; it takes the question away in the same request.
    pub const CANCEL_REFUSED: &str = "machinist.dev/cancel-refused";
    /// Taints that declarations of devices asked for and that are ours, as `key:effect`, several with commas. One
    /// that somebody else put on the Node before is not among them.
    pub const TAINTS: &str = "machinist.dev/taints";
    /// What a drain waits for, as `namespace/pod (reason)`, several with commas.
    pub const BLOCKED_BY: &str = "machinist.dev/blocked-by";
}

/// Labels on Nodes.
pub mod label {
    /// Before the name of a role: `node-role.kubernetes.io/worker`.
    pub const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
    /// The old name of the control plane's role.
    pub const ROLE_MASTER: &str = "master";
    /// The control plane's role.
    pub const ROLE_CONTROL_PLANE: &str = "control-plane";
    /// What every other node is.
    pub const ROLE_WORKER: &str = "worker";
    /// A member of the quorum that takes no other work.
    pub const ROLE_ARBITER: &str = "arbiter";
    /// The operating system: `linux`, `windows`.
    pub const OS: &str = "kubernetes.io/os";
    /// The failure domain.
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    /// Which pool a MachineConfig is for.
    pub const CONFIG_ROLE: &str = "machineconfiguration.openshift.io/role";
    /// Before a resource that the machine has, its slash written as a dash:
    /// `machinist.dev/resource.acme.dev-serial`. Its value is [`PRESENT`].
    pub const RESOURCE_PREFIX: &str = "machinist.dev/resource.";
    /// The value of labels that say that something is there.
    pub const PRESENT: &str = "present";
    /// Remediators of the medik8s family leave a node with it alone: it is down on purpose.
    pub const NO_REMEDIATION: &str = "remediation.medik8s.io/exclude-from-remediation";
}

/// Keys of taints.
pub mod taint {
    /// The node was not ready once since it joined; effect `NoSchedule`.
    pub const NOT_READY: &str = "machinist.dev/not-ready";
    /// OpenShift's, while a pool rolls; effect `PreferNoSchedule`. Written by the controller.
    pub const UPDATE_IN_PROGRESS: &str = "UpdateInProgress";
}

/// Types of Node conditions.
pub mod condition {
    /// The kubelet's own.
    pub const KUBELET_READY: &str = "Ready";
    /// The kubelet's: it removes pods to free its disk.
    pub const DISK_PRESSURE: &str = "DiskPressure";
    /// The network plugin's.
    pub const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
    /// True when no gate with the effect `hold` is closed; the message names those that are.
    pub const READY: &str = "machinist.dev/Ready";
    /// True while the node is cordoned for an update or is to reboot for one. What KEP-5683 means by
    /// `MaintenanceInProgress`; that bare name has no owner, and an administrator's own would be ours.
    pub const MAINTENANCE: &str = "machinist.dev/MaintenanceInProgress";
    /// True while pods are asked to leave for an update: the KEP's `DrainInProgress`.
    pub const DRAIN: &str = "machinist.dev/DrainInProgress";
    /// True from the moment every pod has left that must, until they may come again: the KEP's `Drained`.
    pub const DRAINED: &str = "machinist.dev/Drained";
}

/// Whether the API server takes it as the name of an object: a DNS subdomain (RFC 1123).
pub fn is_object_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
            && bytes.first().is_some_and(|byte| plain(*byte))
            && bytes.last().is_some_and(|byte| plain(*byte))
    };
    name.len() <= 253 && name.split('.').all(label)
}
