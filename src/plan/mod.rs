//! Plans the update from a machine's current config to its desired config, as plain data.
//!
//! A plan lists the changes, the reason for each action, and the cost. `machinist plan` prints it,
//! and the update reconciler executes the same value. Planning does no I/O: the state of the
//! machine is passed in as [`Observed`].

mod accounts;
mod actions;
mod aliases;
mod asked;
mod attributes;
mod between;
mod catalogue;
mod changes;
mod compare;
mod databases;
mod desired;
mod diff;
mod difference;
mod document;
mod drift;
mod hard_links;
mod homes;
mod host;
mod keys;
mod kinds;
mod labels;
mod leaving;
mod linkset;
mod machine;
mod model;
mod normalise;
mod observed;
mod operation;
mod os;
mod partial;
mod policy;
mod preset;
mod reach;
pub mod recovery;
mod soft;
mod space;
mod text;
mod unit_check;
mod unit_tree;
mod units;
mod unreachable;
mod unsafe_paths;
mod verdict;

pub use actions::{cost, in_order};
pub use asked::{Asked, also, asked};
pub use between::{MOST_BYTES, between, only};
pub use databases::{Database, Edit, EditPlace, Entries, Standing, remember};
pub use document::PlanDocument;
pub use drift::{Drift, DriftKind, Verified, drift, verify};
pub use kinds::{LinkEnd, is_layout};
pub use linkset::{UNIT_DIR, resolve};

pub use crate::words::printable;
pub use labels::Labels;
pub use model::{
    Action, ActionKind, Capabilities, Change, ChangeKind, ConfigRef, Cost, ObjectSummary, Plan,
};
pub use observed::{
    Account, AccountFacts, Attributes, FileFacts, MountFacts, ObjectKind, Observed, UnitEntry,
    UnitFacts,
};
pub use operation::{Node, NodeKind, Operation, OperationKind};
pub use os::{Base, HostKind, Image, NotByDigest, OsCapabilities, OsFacts, is_lower};
pub use policy::{Policies, same_images};
pub use preset::DIRECTORIES as PRESET_DIRECTORIES;
pub use unit_tree::{UNIT_DIRECTORIES, is_dependency_directory, named_in};
