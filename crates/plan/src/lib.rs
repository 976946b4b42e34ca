//! Plans the update from a machine's current config to its desired config, as plain data.
//!
//! A plan lists the changes, the reason for each action, and the cost. `machinist plan` prints it,
//! and the update reconciler executes the same value. Planning does no I/O: the state of the
//! machine is passed in as [`MachineFacts`].

mod accounts;
mod actions;
mod assumed_machine;
pub mod byte_text;
mod change_builder;
mod desired_entry;
mod desired_tree;
mod desired_tree_builder;
mod disclosure;
mod disk_space;
mod disruption;
mod drift;
mod enablement;
mod exec_lines;
mod file_names;
mod hard_links;
mod home_dirs;
mod host_checks;
mod json;
mod kind_replacement;
mod leased_files;
mod leaving_directories;
mod machine_facts;
mod made_directories;
mod model;
mod object;
mod object_compare;
mod object_labels;
mod observed_paths;
mod operation;
mod operations_fold;
mod os;
mod partial_entries;
mod passwd;
mod planned_objects;
mod planner;
mod policy;
mod public_key;
mod reachability;
pub mod recovery_units;
mod removal;
mod render;
mod same_object;
mod selinux;
mod soft_reboot;
mod ssh_keys;
pub mod sshd_config;
mod steps;
mod text_diff;
mod unit_aliases;
mod unit_catalog;
mod unit_check;
mod unit_conflicts;
mod unit_faults;
mod unit_preset;
mod unit_state;
mod unit_tree;
mod unit_values;
mod units;
mod unreachable_mounts;
mod unsafe_paths;
mod user_control;
mod wildcards;
mod xattr_warnings;

pub use actions::{cost, in_order};
pub use assumed_machine::without_machine;
pub use disclosure::discloses;
pub use drift::{DriftEntry, DriftKind, Verified, drift, verify};
pub use enablement::{UNIT_DIR, resolve};
pub use json::PlanDocument;
pub use observed_paths::{ObservedPath, also, asked};
pub use passwd::{Database, DatabaseEntries, Edit, EditState, EditTarget, remember};
pub use planned_objects::{PlannedObjects, may_change_directories, planned_objects};
pub use planner::{between, only};

pub use machine_facts::{
    AccountFacts, Attributes, FileFacts, LinkEnd, MachineFacts, MountFacts, SpecifierFacts,
    TargetFailures, UnitEntry, UnitFacts, UserFacts, is_layout,
};
pub use machinist_base::text::escape_line;
pub use model::{
    Action, ActionKind, Capabilities, ChangeKind, ConfigRef, Cost, ObjectSummary, Plan, PlanChange,
};
pub use object::{NewObject, NodeKind, ObjectKind};
pub use operation::{MAX_TOTAL_FILE_BYTES, Operation, OperationKind};
pub use os::{
    BaseConfig, HostKind, ImageRef, ImageRefError, ImageTransport, KernelType, OsCapabilities,
    OsFacts, OsPackages, OsUpdate, ProviderObstacle, TRIAL_ARGUMENT, extension_names,
    extension_packages, is_lower, optional_extension_packages, package_names,
};
pub use policy::{Policies, cluster_policies, same_images};
pub use selinux::SelinuxLabels;
pub use ssh_keys::{MAX_KEYS_FILE_BYTES, has_managed_keys, is_keys_file};
pub use unit_preset::PRESET_DIRS as PRESET_DIRECTORIES;
pub use unit_tree::{UNIT_DIRECTORIES, is_dependency_directory, named_in, unit_texts};
pub use user_control::MAX_CONTESTED_UPDATES;
