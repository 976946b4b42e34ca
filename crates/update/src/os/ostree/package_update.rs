//! Decides whether a deployment needs other packages.

use super::{
    layered_packages::LayeredPackages, own_packages::own_packages, package_repository::has_package,
    repository_images,
};
use crate::os::{PackageChange, host_detection::is_there};
use machinist_plan::{ImageRef, OsPackages};
use machinist_rootfs::{Root, RootError};

/// The program of rpm-ostree, which exists where its daemon does.
pub(super) const RPM_OSTREE: &str = "/usr/bin/rpm-ostree";

/// The packages of a new deployment.
#[derive(Clone, Debug)]
pub(super) struct PackageUpdate {
    pub(super) change: PackageChange,
    /// The packages afterwards.
    pub(super) result: LayeredPackages,
    pub(super) repository: Option<ImageRef>,
}

impl PackageUpdate {
    /// The change of the packages of a deployment; `None` if rpm-ostree is not needed. A new image needs it if the
    /// deployment has packages.
    pub(super) fn of(
        root: &Root,
        booted: &LayeredPackages,
        wanted: Option<&OsPackages>,
        image: Option<&ImageRef>,
    ) -> Result<Option<Self>, RootError> {
        if !is_there(root, RPM_OSTREE) {
            return Ok(None);
        }
        let mut own = own_packages(root)?;
        own.extend(
            wanted
                .iter()
                .flat_map(|wanted| wanted.adopted.iter().cloned()),
        );
        // Without packages, the repository of an image is not used.
        let wanted_packages = wanted.filter(|wanted| !wanted.is_empty());
        let repository = wanted_packages.and_then(|wanted| wanted.repository.as_ref());
        let is_offered = |name: &str| has_package(root, repository, name);
        let change = wanted.map(|wanted| booted.change_to(wanted, &own, is_offered));
        let change = change.unwrap_or_default();
        let is_needed = change != PackageChange::default()
            || (image.is_some() && !booted.is_empty())
            || (!booted.is_empty() && booted.is_from_other(repository));
        Ok(is_needed.then(|| Self {
            result: booted.after(&change),
            change: PackageChange {
                image: image.map(|image| repository_images::pull_reference(root, image)),
                ..change
            },
            repository: repository.cloned(),
        }))
    }

    /// Identifies the change in the file of downloads.
    pub(super) fn key(&self) -> String {
        format!("{:?} from {:?}\n", self.change, self.repository)
    }

    /// The text of the file that marks rpm-ostree's deployment as machinist's.
    pub(super) fn marker(&self, image: Option<&ImageRef>) -> String {
        let image = image.map(ToString::to_string).unwrap_or_default();
        let packages: Vec<&str> = self.result.requested.iter().map(String::as_str).collect();
        format!("{image}\n{}\n", packages.join(" "))
    }
}
