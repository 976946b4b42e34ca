//! Reason codes: the stable names in metrics, conditions, status and journals.
//!
//! Free text belongs in messages; scripts match codes. A code may be added, never renamed.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident $(was $former:literal)?,)+) => {
        /// Why something was refused, failed or is not ready. See `docs/reasons.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Reason { $($(#[doc = $doc])+ $(#[serde(alias = $former)])? $name,)+ }

        impl Reason {
            /// Every code, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The code as text.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
            }

            /// Returns the reason with this code, also by the name that an earlier version wrote.
            pub fn named(code: &str) -> Option<Self> {
                match code {
                    $(stringify!($name) $(| $former)? => Some(Self::$name),)+
                    _ => None,
                }
            }

            /// One sentence for the documentation and `explain`.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc,)+),)+ }
            }
        }
    };
}

reasons! {
    // Input
    /// The text is not YAML, JSON or Ignition of a known shape.
    SyntaxInvalid,
    /// A field is unknown, and the format is strict.
    FieldUnknown,
    /// A field's value has the wrong type or is out of range.
    ValueInvalid,
    /// A path is not absolute or has forbidden components.
    PathInvalid,
    /// A unit has no name, or a name that systemd would not load.
    UnitNameInvalid,
    /// systemd would not load the unit's content.
    UnitInvalid,
    /// The Ignition version is not supported.
    VersionUnsupported,
    /// A feature of the format is not supported; the message names it.
    FeatureUnsupported,
    /// A source is remote; only content inside the config is accepted.
    SourceRemote,
    /// A verification hash does not match the content.
    HashMismatch,
    /// Two entries describe the same object.
    EntryDuplicate,
    /// MachineConfigs of several roles are in one place, and the roles of this machine are not set.
    RolesMixed,
    /// The source directory is missing, not mounted or contains no config.
    SourceEmpty,
    /// The source cannot be read.
    SourceUnreadable,
    // This host
    /// A file names an owner or group that the machine does not have.
    FileOwnerUnknown,
    /// A user for whom the config has keys does not exist; skipped.
    UserMissing,
    /// The key file of a user cannot be managed, such as one behind a link; the keys are skipped.
    KeysSkipped,
    /// Not enough free bytes or inodes on the target's file system, or for an image.
    NoSpace,
    /// The target of a hard link is not a regular file that can have another name there.
    HardLinkTarget,
    /// The SELinux label of a new file cannot be set here; the file is in place without it.
    LabelPending,
    /// The target's file system is mounted read-only.
    ReadOnly,
    /// The target is immutable or append-only.
    Immutable,
    /// A mount point is in the way.
    TargetIsMountPoint was "MountPointInTheWay",
    /// Replacing the target would remove content that machinist does not manage.
    ForeignContent,
    /// An object of another kind exists at the path, and the config may not replace it.
    KindDiffers,
    /// No provider on this host can change kernel arguments.
    NoProviderForKernelArguments,
    /// No provider on this host can change the OS image or the kernel type.
    NoProviderForOSImage,
    /// No provider on this host can change OS extensions.
    NoProviderForExtensions,
    /// An image is named without a digest, so that it may be another image tomorrow.
    ImageNotByDigest,
    /// The config requests a lower version than the installed one.
    DowngradeRefused,
    /// The config contains a kubelet, but this host's kubelet comes from packages.
    KubeletNotManaged,
    /// The process lacks a capability that a live root needs, or cannot create a private directory
    /// on the file system of a path.
    PermissionMissing,
    /// A part of the config could not be compared with the machine; a warning.
    NotChecked,
    /// This host has no service that would recover an update after a power cut.
    RecoveryMissing,
    /// Two paths of the config name the same object, also through a mount, an alias of a unit is
    /// another unit's name, or a mask would replace the link of a unit.
    DuplicateTarget was "SameObject",
    /// An unprivileged user could redirect this path; the message names the link and its owner.
    UnsafePath,
    // Update
    /// The machine changed three times between planning and staging.
    ObservedChanged,
    /// Another process changed a target during the commit, or a user moved a directory on its path
    /// while it was read.
    TargetChanged,
    /// Staging failed.
    StagingFailed,
    /// The commit failed.
    CommitFailed,
    /// An OS image could not be fetched from its registry.
    ImageUnreachable,
    /// A step of the OS provider failed.
    OSStepFailed,
    /// A step of the OS provider exceeded its time limit.
    OSStepTimeout,
    /// The boot into a new deployment failed, and the boot loader returned to the previous one.
    OSBootFailed,
    /// The machine rebooted without its boot loader, and so without the new deployment.
    LoaderBypassed,
    /// systemd has no unit of that name.
    UnitNotFound,
    /// The unit is masked.
    UnitMasked,
    /// A systemd job ended in `failed`.
    JobFailed,
    /// A systemd job ended in `timeout`.
    JobTimeout,
    /// A systemd job ended in `dependency`.
    JobDependency,
    /// A systemd job ended in `canceled`.
    JobCanceled,
    /// systemd refused a job; the message gives the reason.
    JobRefused,
    /// A restarted unit did not stay up.
    UnitDied,
    /// The service manager cannot be reached.
    ManagerUnreachable,
    /// The machine's health is worse with the new config than before.
    HealthRegressed was "MachineUnwell",
    /// After the config was applied, the disk does not match it.
    VerifyFailed,
    /// The reboot was requested and did not happen.
    RebootTimeout was "RebootDidNotHappen",
    /// No maintenance window is open.
    OutsideWindow,
    /// An inhibitor lock prevents the reboot.
    RebootInhibited,
    /// The reboot was cancelled after it had been accepted.
    RebootCancelled,
    /// A path could not be restored or removed safely, and was left unchanged.
    LeftBehind,
    /// The rollback failed; an operator has to repair the machine.
    RollbackFailed was "UndoFailed",
    /// The config was withdrawn or replaced by another while it was being applied.
    Withdrawn,
    /// The journal does not match its checksum or is not a journal.
    JournalUnreadable,
    /// The journal was written by a newer version.
    JournalTooNew,
    /// The stored copy of the machine's current config is missing or damaged.
    StoredConfigLost,
    /// A file system that the transaction needs is not mounted.
    MountMissing,
    /// Another process holds the transaction lock.
    Locked,
    /// A file system call failed; the message names the operation and the path.
    Io,
    // Cluster
    /// The kubeconfig or the pod's service account cannot be used.
    ClusterAccessInvalid,
    /// The API server cannot be reached, does not answer in time, or has an internal error.
    ApiServerUnreachable,
    /// The API server does not accept the credentials, even after they were read again.
    ApiServerUnauthorized,
    /// The API server denies permission.
    ApiServerForbidden,
    /// The API server rejects the request; the message gives the reason.
    ApiServerRefused,
    /// The MachineConfig that is desired for the Node does not exist.
    ConfigNotFound,
    /// OpenShift's machine-config-controller was asked to drain the node, and has not done so yet.
    DrainByController,
    /// The Node of this machine does not exist.
    NodeMissing,
    /// The Node's desired config changed during the update.
    DesiredConfigChanged,
    /// The node was uncordoned a second time during one update.
    NodeUncordoned,
    /// An operator has cancelled the update to the Node's desired config.
    Cancelled,
    /// OpenShift's machine-config-daemon manages this machine, and two agents must not change it.
    OtherDaemon,
    /// A controller rolls out configs in this cluster, and it has not granted this node its update.
    AwaitingGrant,
    // Images
    /// There is no container runtime on its socket, or it does not answer in time.
    RuntimeUnreachable,
    /// The container runtime could not pull an image of a PinnedImageSet.
    ImagePullFailed,
    /// An image of a PinnedImageSet is present, and not protected from the kubelet's garbage collection.
    ImageNotProtected,
    /// An update waits until the images of PinnedImageSets were pulled or could not be.
    PullingImages,
    // Drain
    /// A PodDisruptionBudget does not allow the eviction of a pod now.
    DrainBlockedByBudget,
    /// A PodDisruptionBudget requires as many healthy pods as exist, and can never allow an
    /// eviction.
    DrainBudgetNeverAllows,
    /// More than one PodDisruptionBudget selects a pod, which the API server cannot evict then.
    DrainSeveralBudgets,
    /// The API server is too busy to accept evictions.
    DrainThrottled,
    /// A pod's namespace is being deleted, and accepts no evictions.
    NamespaceTerminating was "DrainNamespaceEnds",
    /// An admission webhook or another component refuses the eviction of a pod.
    DrainEvictionRefused,
    /// The API server does not serve the eviction API.
    EvictionUnsupported was "DrainNotServed",
    /// A pod is terminating, within its grace period.
    PodTerminating was "DrainPodEnding",
    /// A pod should have terminated by now.
    PodTerminationOverdue was "DrainPodOverdue",
    /// A pod has terminated, but finalizers keep its object.
    DrainHeldByFinalizer,
    /// A pod belongs to a DaemonSet.
    DrainDaemonSetPod,
    /// A pod's DaemonSet no longer exists; an evicted pod is not recreated.
    DrainDaemonSetMissing,
    /// A pod has no controller; an evicted pod is not recreated.
    DrainPodUnmanaged,
    /// A pod has emptyDir volumes; their content is lost with it.
    DrainLocalData,
    /// A pod's namespace is excluded from drains.
    NamespaceExcluded was "DrainNamespaceLeftOut",
    /// A workload keeps creating pods on the cordoned node.
    PodRescheduledOnNode was "DrainComesBack",
    /// The drain did not end within its time limit.
    DrainTimedOut,
    /// The annotation that forces a drain has no reason, and so it has no effect.
    ForceReasonMissing was "ForceNotExplained",
    // Readiness
    /// An update has effects that are not verified yet.
    UpdateInProgress,
    /// The last update failed and was not rolled back completely.
    UpdateFailed,
    /// A managed file, link or unit differs from the config.
    Drifted,
    /// The desired config was refused; the machine keeps the last good one.
    ConfigRefused,
    /// A reboot was ordered and has not happened yet.
    RebootPending,
    /// The boot since the reboot is not verified yet.
    BootUnverified,
    /// There is no kubelet socket: the device manager is off or the kubelet is down.
    KubeletDown,
    /// A device or resource that existed before is not allocatable.
    DevicesMissing,
    /// A container still has a device that an update waits for.
    DeviceHeld,
    /// The kubelet does not report which container has which device.
    HoldersUnknown,
    /// A systemd unit failed that had not failed before.
    UnitsFailed,
    /// CPU, memory or I/O pressure is above the threshold.
    UnderPressure,
    /// Free space is below the threshold.
    DiskSpaceLow,
    /// Free inodes are below the threshold.
    InodesLow,
    /// The clock is not synchronised.
    TimeUnsynchronised,
    /// The file system at / is mounted read-only.
    RootReadOnly,
    /// The kernel's memory settings differ from those that a kubelet requires.
    KernelMemorySettings,
    /// The settings or the disruption policies on the machine have a mistake; the last valid ones are in use.
    SettingsInvalid,
    /// A custom gate of the administrator is closed; the message gives the reason.
    CustomGateClosed was "OwnGateClosed",
    /// Nothing is wrong.
    Ok,
    /// The signal that this gate watches does not exist on this machine.
    SignalMissing,
}

impl Reason {
    /// Whether a plan is refused because of an object or an account of the machine, which a user may change or
    /// remove: the same config may be accepted later.
    pub const fn is_obstacle(self) -> bool {
        matches!(
            self,
            Self::FileOwnerUnknown
                | Self::HardLinkTarget
                | Self::TargetIsMountPoint
                | Self::ForeignContent
                | Self::KindDiffers
                | Self::DuplicateTarget
                | Self::UnsafePath
        )
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests;
