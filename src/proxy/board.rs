//! What is wrong with vendors' plugins now, for people: `devices list`, `devices explain` and `deviceProblems`.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::watch;

use crate::device::ResourceName;

/// What is wrong, as one sentence without a final dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// A registration or a part of a list is not what the vendor's file allows.
    Refused(String),
    /// A plugin is away.
    Away(String),
}

/// Problems by vendor and resource; those of no resource come first.
pub type Problems = BTreeMap<(String, Option<ResourceName>), Problem>;

/// Where vendors' tasks write. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub(super) struct Board(Arc<watch::Sender<Problems>>);

impl Board {
    pub(super) fn subscribe(&self) -> watch::Receiver<Problems> {
        self.0.subscribe()
    }

    /// What is wrong with a vendor's plugin of this resource, or with its registrations; nothing is an answer.
    pub(super) fn set(&self, vendor: &str, about: Option<&ResourceName>, problem: Option<Problem>) {
        let key = (vendor.to_owned(), about.cloned());
        self.0.send_if_modified(|all| match problem {
            Some(problem) => all.insert(key, problem.clone()).as_ref() != Some(&problem),
            None => all.remove(&key).is_some(),
        });
    }

    /// Forgets all that is said of a vendor.
    pub(super) fn clear(&self, vendor: &str) {
        self.0.send_if_modified(|all| {
            let before = all.len();
            all.retain(|(name, _), _| name != vendor);
            all.len() != before
        });
    }
}
