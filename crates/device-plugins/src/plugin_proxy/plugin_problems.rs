//! Collects the current problems of vendors' plugins, for `devices list`, `devices explain` and
//! `deviceProblems`.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::watch;

use machinist_device::ResourceName;

/// A problem, as one sentence without a final dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginProblem {
    /// A registration or a part of a list is not allowed by the vendor's file.
    Refused(String),
    /// A plugin is not connected.
    Unreachable(String),
}

/// Problems by vendor and resource; those that concern no single resource come first.
pub type PluginProblems = BTreeMap<(String, Option<ResourceName>), PluginProblem>;

/// The writing side for vendors' tasks. Cheap to clone; clones share the state.
#[derive(Clone, Debug, Default)]
pub(super) struct ProblemWriter(Arc<watch::Sender<PluginProblems>>);

impl ProblemWriter {
    pub(super) fn subscribe(&self) -> watch::Receiver<PluginProblems> {
        self.0.subscribe()
    }

    /// Sets the problem of a vendor's plugin for this resource, or of its registrations; `None`
    /// clears it.
    pub(super) fn set(
        &self,
        vendor: &str,
        about: Option<&ResourceName>,
        problem: Option<PluginProblem>,
    ) {
        let key = (vendor.to_owned(), about.cloned());
        self.0.send_if_modified(|all| match problem {
            Some(problem) => all.insert(key, problem.clone()).as_ref() != Some(&problem),
            None => all.remove(&key).is_some(),
        });
    }

    /// Clears all problems of a vendor.
    pub(super) fn clear(&self, vendor: &str) {
        self.0.send_if_modified(|all| {
            let before = all.len();
            all.retain(|(name, _), _| name != vendor);
            all.len() != before
        });
    }
}
