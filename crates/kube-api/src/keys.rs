//! Names in the API server, with their writer and meaning.

/// The group of MachineConfig, MachineConfigPool and MachineConfigNode.
pub const GROUP: &str = "machineconfiguration.openshift.io";

/// The group of MachineConfiguration, which holds the disruption policies.
pub const OPERATOR_GROUP: &str = "operator.openshift.io";

/// The only MachineConfiguration that is used.
pub const MACHINE_CONFIGURATION: &str = "cluster";

/// The ControllerConfig that only OpenShift's controllers create.
pub const CONTROLLER_CONFIG: &str = "machine-config-controller";

/// Namespace of OpenShift's machine-config-daemon, and the label of its pods.
pub const DAEMON_NAMESPACE: &str = "openshift-machine-config-operator";
/// See [`DAEMON_NAMESPACE`].
pub const DAEMON_LABEL: &str = "k8s-app=machine-config-daemon";

/// API group of UpgradeConfig, which schedules managed upgrades of OpenShift.
pub const UPGRADE_GROUP: &str = "upgrade.managed.openshift.io";

/// Namespace of the managed-upgrade operator and its UpgradeConfig.
pub const UPGRADE_NAMESPACE: &str = "openshift-managed-upgrade-operator";

/// Name of the only UpgradeConfig that the operator uses.
pub const UPGRADE_CONFIG: &str = "managed-upgrade-config";

/// Namespace of machinist's own objects.
pub const NAMESPACE: &str = "machinist-system";

/// The Lease that the leader of `machinist controller` holds, in [`NAMESPACE`].
pub const CONTROLLER_LEASE: &str = "machinist-controller";

/// Prefix of machinist's own names.
pub const MACHINIST_PREFIX: &str = "machinist.dev/";

/// Field manager of writes, and reporting controller of events.
pub const FIELD_MANAGER: &str = "machinist";

/// Annotations of the machine-config protocol on Nodes. "The node" is the component that manages
/// its config; "the controller" is OpenShift's or machinist's.
pub mod protocol {
    /// The MachineConfig that the node is on. Written by the node when an update is complete; a
    /// Node without it belongs to no pool.
    pub const CURRENT_CONFIG: &str = "machineconfiguration.openshift.io/currentConfig";
    /// The desired MachineConfig. Written by the controller; an operator may set it.
    pub const DESIRED_CONFIG: &str = "machineconfiguration.openshift.io/desiredConfig";
    /// The node's update state, a [`NodeUpdateState`](super::super::NodeUpdateState). Written by the node.
    pub const STATE: &str = "machineconfiguration.openshift.io/state";
    /// The cause of the state, as free text of at most 2000 bytes; empty when done. Written by the
    /// node.
    pub const REASON: &str = "machineconfiguration.openshift.io/reason";
    /// The node's request to the controller, a [`DrainRequest`](super::super::DrainRequest).
    pub const DESIRED_DRAIN: &str = "machineconfiguration.openshift.io/desiredDrain";
    /// The last request that the controller fulfilled, verbatim; written after success only.
    pub const LAST_APPLIED_DRAIN: &str = "machineconfiguration.openshift.io/lastAppliedDrain";
    /// The image that the node runs in a layered pool; removed if there is none.
    pub const CURRENT_IMAGE: &str = "machineconfiguration.openshift.io/currentImage";
    /// The desired image in a layered pool. Written by the controller.
    pub const DESIRED_IMAGE: &str = "machineconfiguration.openshift.io/desiredImage";
    /// `Rebooting` from the start of a reboot until the first check after it, otherwise empty. A
    /// hint for other programs; machinist itself compares boot IDs.
    pub const POST_CONFIG_ACTION: &str = "machineconfiguration.openshift.io/post-config-action";
    /// `"true"` on a rendered MachineConfig whose OS image a user has set. Written by the controller.
    pub const OS_IMAGE_URL_OVERRIDDEN: &str =
        "machineconfiguration.openshift.io/os-image-url-overridden";
    /// Why a staged OS was not finalised at shutdown, at most 2000 bytes.
    pub const FINALIZE_FAILURE: &str =
        "machineconfiguration.openshift.io/ostree-finalize-staged-failure";
    /// The MachineConfig of the first boot. Written by the machine-config-server.
    pub const FIRST_PIVOT_CONFIG: &str = "machineconfiguration.openshift.io/firstPivotConfig";
    /// Whether the controller has applied the labels of a custom pool.
    pub const CUSTOM_POOL_LABELS: &str =
        "machineconfiguration.openshift.io/customPoolLabelsApplied";
    /// `SingleReplica`, `HighlyAvailable`, …; a single replica is not drained. Written by the
    /// controller.
    pub const TOPOLOGY: &str = "machineconfiguration.openshift.io/controlPlaneTopology";
    /// Resource version of the ControllerConfig whose certificates were last written.
    pub const SYNCED_CONTROLLER_CONFIG: &str =
        "machineconfiguration.openshift.io/lastSyncedControllerConfigResourceVersion";
    /// The last observed version of the service CA rotation.
    pub const OBSERVED_SERVER_CA: &str =
        "machineconfiguration.openshift.io/lastObservedServerCAAnnotation";
    /// On a pool: the order by age in which nodes of a zone are updated, `OldestFirst` or
    /// `NewestFirst`. Written by administrators; proposed for OpenShift.
    pub const UPDATE_ORDER: &str = "machineconfiguration.openshift.io/update-order";
    /// Marks a node on which a user logged in; obsolete, no component writes it.
    pub const SSH: &str = "machineconfiguration.openshift.io/ssh";
}

/// Machinist's own annotations on Nodes.
pub mod annotation {
    /// Marks a cordon set by machinist. Written in the same request as the cordon; a cordon without
    /// it belongs to another client.
    pub const CORDONED: &str = "machinist.dev/cordoned";
    /// An operator's request to keep the node cordoned after the update; the value is ignored.
    /// Never written or removed by the agent.
    pub const KEEP_CORDONED: &str = "machinist.dev/keep-cordoned";
    /// An operator's request to force one drain; the value is the reason, which is published in an
    /// event. Removed by the agent after use.
    pub const FORCE_DRAIN: &str = "machinist.dev/force-drain";
    /// Marks the label that keeps remediators away as set by machinist. Written and removed
    /// together with the label; a label without this mark belongs to another client.
    pub const OWNS_REMEDIATION_EXCLUSION: &str = "machinist.dev/owns-remediation-exclusion";
    /// The name of [`OWNS_REMEDIATION_EXCLUSION`] in an earlier version: read, replaced or removed,
    /// never written.
    pub const FORMER_OWNS_REMEDIATION_EXCLUSION: &str = "machinist.dev/stands-back";
    /// An operator's request to cancel the update to the config of this name. The agent removes it
    /// when the Node's desired config has changed, or when the request came too late.
    pub const CANCEL: &str = "machinist.dev/cancel";
    /// The agent's reply: the update to the config of this name was cancelled before anything was
    /// changed.
    pub const CANCELLED: &str = "machinist.dev/cancelled";
    /// The agent's refusal to cancel, as `config: reason`; written in the same request that removes
    /// the cancellation request.
    pub const CANCEL_REFUSED: &str = "machinist.dev/cancel-refused";
    /// Taints of device declarations that machinist owns, as `key:effect`, comma-separated. A taint
    /// that another client had set before is not listed.
    pub const TAINTS: &str = "machinist.dev/taints";
    /// The pods that block a drain, as `namespace/pod (reason)`, comma-separated.
    pub const BLOCKED_BY: &str = "machinist.dev/blocked-by";
    /// The grant of the controller: what the agent may do now. JSON. Written by the controller.
    pub const GRANT: &str = "machinist.dev/grant";
    /// The ID of the grant that the agent has accepted. Written by the agent in one request with
    /// its cordon or its first step; that request and the controller's withdrawal test the same
    /// resource version, so that only one of them succeeds.
    pub const GRANT_ACKNOWLEDGED: &str = "machinist.dev/grant-acknowledged";
    /// The last grants that ended on the node, as a JSON list: ID, outcome, reason, target and
    /// time. Appended by the agent, and by the controller when it withdraws a grant.
    pub const GRANT_ENDS: &str = "machinist.dev/grant-ends";
    /// The PodDisruptionBudgets of the pods that the drain of the node's grant evicts, as JSON with the grant's ID and
    /// its pool. Written by the controller with the grant.
    pub const GRANT_BUDGETS: &str = "machinist.dev/grant-budgets";
    /// The agent's own maintenance windows, as JSON. Written by the agent.
    pub const WINDOWS: &str = "machinist.dev/windows";
    /// An operator's request to leave the node out of the rollout of the config of this name.
    pub const SKIP_ROLLOUT: &str = "machinist.dev/skip-rollout";
}

/// Machinist's annotations on MachineConfigPools.
pub mod pool_annotation {
    /// The grants of the pool's limit, as JSON. Written by the controller, always together with
    /// the resource version that its decision was made on.
    pub const GRANTS: &str = "machinist.dev/grants";
    /// The state of the current rollout, as JSON. Written by the controller.
    pub const ROLLOUT: &str = "machinist.dev/rollout";
    /// The last rollouts, as JSON. Written by the controller.
    pub const HISTORY: &str = "machinist.dev/rollout-history";
    /// How many nodes are updated first, before all others; a number from 0.
    pub const CANARY: &str = "machinist.dev/canary";
    /// How long the canary nodes run the new config before other nodes follow; a duration.
    pub const CANARY_SOAK: &str = "machinist.dev/canary-soak";
    /// The number of failures that stops a rollout; a number from 1.
    pub const STOP_AFTER_FAILURES: &str = "machinist.dev/stop-after-failures";
    /// The pool's maintenance windows, as JSON.
    pub const WINDOWS: &str = "machinist.dev/windows";
    /// The order of nodes: `ZoneThenAge`, `NewestFirst`, or `Label:` and the key of a label.
    pub const ORDER: &str = "machinist.dev/order";
    /// How long a node's drain may be blocked before another node is updated instead; a duration.
    /// Blocked nodes keep their grant if it is absent.
    pub const STEP_ASIDE_AFTER: &str = "machinist.dev/step-aside-after";
    /// How long the next grant waits until the disruption budgets of drained pods have recovered; a duration, or
    /// `never`.
    pub const BUDGET_RECOVERY_TIMEOUT: &str = "machinist.dev/budget-recovery-timeout";
    /// How long after a config became due its rollout must have begun; a duration.
    pub const START_DEADLINE: &str = "machinist.dev/start-deadline";
    /// How long a reboot of these machines takes; a duration.
    pub const REBOOT_TIME: &str = "machinist.dev/reboot-time";
    /// Why an administrator paused the pool.
    pub const PAUSE_REASON: &str = "machinist.dev/pause-reason";
    /// An administrator's request to continue a stopped or first rollout; each new value counts
    /// once.
    pub const RESUME: &str = "machinist.dev/resume";
    /// The rendered config that the pool is pinned to.
    pub const PINNED_CONFIG: &str = "machinist.dev/pinned-config";
    /// IDs of grants that an administrator declares free, comma-separated.
    pub const RELEASED_GRANTS: &str = "machinist.dev/released-grants";
}

/// Labels on Nodes.
pub mod label {
    /// Prefix of role labels: `node-role.kubernetes.io/worker`.
    pub const ROLE_PREFIX: &str = "node-role.kubernetes.io/";
    /// The former role name of the control plane.
    pub const ROLE_MASTER: &str = "master";
    /// The role of the control plane.
    pub const ROLE_CONTROL_PLANE: &str = "control-plane";
    /// The role of all other nodes.
    pub const ROLE_WORKER: &str = "worker";
    /// The role of a quorum member that runs no other workloads.
    pub const ROLE_ARBITER: &str = "arbiter";
    /// The operating system: `linux`, `windows`.
    pub const OS: &str = "kubernetes.io/os";
    /// The failure domain.
    pub const ZONE: &str = "topology.kubernetes.io/zone";
    /// The role that a MachineConfig applies to.
    pub const CONFIG_ROLE: &str = "machineconfiguration.openshift.io/role";
    /// The pool that a rendered MachineConfig was merged for. Written by machinist's controller,
    /// which removes MachineConfigs with this label when they are no longer in use.
    pub const RENDERED_FOR: &str = "machinist.dev/rendered-for";
    /// Prefix of labels for resources of the machine, with the slash written as a dash:
    /// `machinist.dev/resource.acme.dev-serial`. The value is [`PRESENT`].
    pub const RESOURCE_PREFIX: &str = "machinist.dev/resource.";
    /// Value of labels that mark the presence of a resource.
    pub const PRESENT: &str = "present";
    /// Keeps remediators of the medik8s family away, because the node is down on purpose.
    pub const NO_REMEDIATION: &str = "remediation.medik8s.io/exclude-from-remediation";
}

/// Keys of taints.
pub mod taint {
    /// The node has not been ready since it joined; effect `NoSchedule`.
    pub const NOT_READY: &str = "machinist.dev/not-ready";
    /// Set by OpenShift's controller while a pool is updated; effect `PreferNoSchedule`.
    pub const UPDATE_IN_PROGRESS: &str = "UpdateInProgress";
}

/// Types of Node conditions.
pub mod condition {
    /// Written by the kubelet.
    pub const KUBELET_READY: &str = "Ready";
    /// Written by the kubelet: it evicts pods to free disk space.
    pub const DISK_PRESSURE: &str = "DiskPressure";
    /// Written by the network plugin.
    pub const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";
    /// True when no gate with the effect `hold` is closed; the message names the closed ones.
    pub const READY: &str = "machinist.dev/Ready";
    /// True while the node is cordoned for an update or is to reboot for one. It corresponds to
    /// `MaintenanceInProgress` of KEP-5683; that unprefixed name has no owner, so machinist could
    /// overwrite an administrator's condition.
    pub const MAINTENANCE: &str = "machinist.dev/MaintenanceInProgress";
    /// True while pods are evicted for an update; corresponds to the KEP's `DrainInProgress`.
    pub const DRAIN: &str = "machinist.dev/DrainInProgress";
    /// True from the end of a drain until the node is uncordoned; corresponds to the KEP's
    /// `Drained`.
    pub const DRAINED: &str = "machinist.dev/Drained";
}

/// Whether a name is a valid object name: a DNS subdomain (RFC 1123).
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
