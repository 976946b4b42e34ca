//! Reason codes: the stable names that metrics, conditions, status and journals carry.
//!
//! Free text goes into messages; scripts match codes. A code may be added, never renamed.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Why something was refused, failed or is not ready. See `docs/reasons.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Reason { $($(#[doc = $doc])+ $name,)+ }

        impl Reason {
            /// Every code there is, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The code as it is written everywhere.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)+ }
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
    /// The text is no YAML, JSON or Ignition of a known shape.
    SyntaxInvalid,
    /// A field is not known where the format is strict.
    FieldUnknown,
    /// A field's value has the wrong type or is out of range.
    ValueInvalid,
    /// A path is not absolute or holds forbidden components.
    PathInvalid,
    /// A unit has no name, or a name systemd would not load.
    UnitNameInvalid,
    /// A unit's content would not load.
    UnitInvalid,
    /// The Ignition version is not among the accepted ones.
    VersionUnsupported,
    /// A feature of the format is not supported; the message names it.
    FeatureUnsupported,
    /// A source is remote; only content inside the config is accepted.
    SourceRemote,
    /// A verification hash does not match the content.
    HashMismatch,
    /// Two entries describe one object.
    EntryDuplicate,
    /// MachineConfigs of several roles are in one place, and it is not said which roles this machine has.
    RolesMixed,
    /// The source directory is missing, unmounted or holds no config.
    SourceEmpty,
    /// The source cannot be read.
    SourceUnreadable,
    // This host
    /// A file names an owner or group that the machine does not have.
    FileOwnerUnknown,
    /// A user that the config gives keys to does not exist; skipped.
    UserMissing,
    /// The key file of a user cannot be managed, such as one behind a link; the keys are skipped.
    KeysSkipped,
    /// Not enough free bytes or inodes on the target's file system.
    NoSpace,
    /// A hard link leads to no regular file that could have another name there.
    HardLinkTarget,
    /// The SELinux label of a new file cannot be set here; the file is in place without it.
    LabelPending,
    /// The target's file system is mounted read-only.
    ReadOnly,
    /// The target is immutable or append-only.
    Immutable,
    /// A mount point is in the way.
    MountPointInTheWay,
    /// Replacing the target would remove content that is not ours.
    ForeignContent,
    /// An object of another kind exists at the path, and the config may not replace it.
    KindDiffers,
    /// No provider on this host can change the kernel's arguments.
    NoProviderForKernelArguments,
    /// No provider on this host can change the OS image or the kernel's type.
    NoProviderForOSImage,
    /// No provider on this host can change OS extensions.
    NoProviderForExtensions,
    /// An OS image is named by a tag, or by nothing that would be the same image tomorrow.
    ImageNotByDigest,
    /// The config asks for a lower version than the installed one.
    DowngradeRefused,
    /// The config names the kubelet of a host that has it from packages.
    KubeletNotManaged,
    /// The process lacks a capability that a live root needs, or can make no directory of its own on the file system of
    /// a path.
    PermissionMissing,
    /// A part of the config could not be compared with the machine; a warning.
    NotChecked,
    /// Nothing on this host would settle an update that a power cut interrupts.
    RecoveryMissing,
    /// Two paths of the config lead to one object, or an alias of a unit is another unit's name.
    SameObject,
    /// An unprivileged user could lead this path elsewhere; the message names the link and its owner.
    UnsafePath,
    // Update
    /// The machine changed between planning and staging, three times.
    ObservedChanged,
    /// A target was changed by somebody else during the commit.
    TargetChanged,
    /// Staging could not be completed.
    StagingFailed,
    /// The commit could not be completed.
    CommitFailed,
    /// An OS image could not be had from its registry.
    ImageUnreachable,
    /// A step of the operating system's provider failed.
    OSStepFailed,
    /// A step of the operating system's provider took longer than it may.
    OSStepTimeout,
    /// systemd knows no unit of that name.
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
    /// systemd refused to take on a job; the message says why.
    JobRefused,
    /// A restarted unit did not stay up.
    UnitDied,
    /// The service manager cannot be reached.
    ManagerUnreachable,
    /// The machine is not as well with the new config as it was before.
    MachineUnwell,
    /// The disk does not hold what the config says after it was applied.
    VerifyFailed,
    /// The reboot was asked for and did not happen.
    RebootDidNotHappen,
    /// No maintenance window is open.
    OutsideWindow,
    /// Somebody holds a lock against the reboot.
    RebootInhibited,
    /// The reboot was cancelled after it had been accepted.
    RebootCancelled,
    /// A path could not be put back or removed safely, and was left as its user made it.
    LeftBehind,
    /// Undoing failed; a person must look.
    UndoFailed,
    /// The config was withdrawn or replaced by another while it was being applied.
    Withdrawn,
    /// The journal does not match its checksum or is no journal.
    JournalUnreadable,
    /// The journal was written by a newer version.
    JournalTooNew,
    /// The stored copy of the config that the machine is on is missing or damaged.
    StoredConfigLost,
    /// A file system that the transaction needs is not mounted.
    MountMissing,
    /// Another process holds the transaction lock.
    Locked,
    /// A file system call failed; the message names the act and the path.
    Io,
    // Cluster
    /// The kubeconfig or the pod's service account cannot be used.
    ClusterAccessInvalid,
    /// The API server cannot be reached, does not answer in time, or has trouble of its own.
    ApiServerUnreachable,
    /// The API server does not accept our credentials, though they were read anew.
    ApiServerUnauthorized,
    /// The API server says that we may not do this.
    ApiServerForbidden,
    /// The API server refuses a request as it stands; the message says why.
    ApiServerRefused,
    /// The MachineConfig that the Node is to have does not exist.
    ConfigNotFound,
    /// OpenShift's machine-config-controller was asked to take the pods away, and has not done so yet.
    DrainByController,
    /// There is no Node of this machine's name.
    NodeMissing,
    /// The Node names another config than the update is for.
    DesiredConfigChanged,
    /// Somebody has made the node schedulable a second time during one update.
    NodeUncordoned,
    /// A person has cancelled the update to the config that the Node names.
    Cancelled,
    /// OpenShift's machine-config-daemon looks after this machine, and two must not change it.
    OtherDaemon,
    // Drain
    /// A PodDisruptionBudget does not allow the eviction of a pod now.
    DrainBlockedByBudget,
    /// A PodDisruptionBudget asks for as many healthy pods as there are, and can never allow an eviction.
    DrainBudgetNeverAllows,
    /// More than one PodDisruptionBudget counts a pod, which the API server cannot evict then.
    DrainSeveralBudgets,
    /// The API server has too much to do to take evictions.
    DrainThrottled,
    /// A pod's namespace is being removed, and takes no evictions.
    DrainNamespaceEnds,
    /// The eviction of a pod is refused by somebody else, such as an admission webhook.
    DrainEvictionRefused,
    /// The API server serves no evictions.
    DrainNotServed,
    /// A pod was asked to end and may still take its grace period.
    DrainPodEnding,
    /// A pod should have ended by now.
    DrainPodOverdue,
    /// A pod has ended, but finalizers hold its object.
    DrainHeldByFinalizer,
    /// A pod belongs to a DaemonSet.
    DrainDaemonSetPod,
    /// A pod's DaemonSet is gone; nobody makes the pod anew.
    DrainDaemonSetMissing,
    /// A pod has no controller; nobody makes it anew.
    DrainPodUnmanaged,
    /// A pod has emptyDir volumes; what they hold is lost with it.
    DrainLocalData,
    /// A pod's namespace is left out of drains.
    DrainNamespaceLeftOut,
    /// A workload puts its pods on the cordoned node again and again.
    DrainComesBack,
    /// The drain did not end within its time limit.
    DrainTimedOut,
    /// The annotation that forces a drain does not say why, and forces nothing.
    ForceNotExplained,
    // Readiness
    /// An update has effects that are not verified yet.
    UpdateInProgress,
    /// The last update failed and was not wholly undone.
    UpdateFailed,
    /// A managed file, link or unit is not what the config says.
    Drifted,
    /// The desired config was refused; the machine keeps the last good one.
    ConfigRefused,
    /// A reboot was ordered and has not happened yet.
    RebootPending,
    /// The boot since the reboot is not verified yet.
    BootUnverified,
    /// There is no kubelet socket: the device manager is off or the kubelet is down.
    KubeletDown,
    /// A device or resource that was there is not allocatable.
    DevicesMissing,
    /// A container still has a device that an update waits for.
    DeviceHeld,
    /// The kubelet does not tell who has which device.
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
    /// The kernel hands out memory in another way than a kubelet works with.
    KernelMemorySettings,
    /// A gate of the administrator's own is closed; the message says why.
    OwnGateClosed,
    /// Nothing is wrong.
    Ok,
    /// The signal this gate watches does not exist on this machine.
    SignalMissing,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
