//! The daemon of rpm-ostree, which adds packages to deployments.

use std::{collections::BTreeSet, error::Error, future::Future, time::Duration};

use super::BackgroundError;

/// A change of a deployment's packages, which the daemon makes in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageChange {
    /// The new image as the origin of a deployment names it; `None` keeps the image of the booted deployment.
    pub image: Option<String>,
    /// Packages to add.
    pub install: BTreeSet<String>,
    /// Added packages to remove again.
    pub uninstall: BTreeSet<String>,
    /// Packages of the image to remove.
    pub remove: BTreeSet<String>,
    /// Removed packages of the image to restore.
    pub restore: BTreeSet<String>,
}

/// What a transaction does with a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionKind {
    /// Download the packages only.
    Download,
    /// Stage a deployment, locked.
    Stage,
}

/// Makes transactions of rpm-ostree.
pub trait RpmOstree: Send + Sync + 'static {
    /// Changes the packages relative to the booted deployment, or to a staged one. After the limit the transaction is
    /// cancelled.
    fn change_packages(
        &self,
        change: &PackageChange,
        kind: TransactionKind,
        limit: Duration,
    ) -> impl Future<Output = Result<(), BackgroundError>> + Send;

    /// Cancels a transaction that a dropped future has left running.
    fn cancel_change(
        &self,
    ) -> impl Future<Output = Result<(), Box<dyn Error + Send + Sync>>> + Send;
}
