//! The packages that rpm-ostree has added to a deployment, from the deployment's origin.

use std::collections::BTreeSet;

use crate::os::PackageChange;
use machinist_plan::{
    ImageRef, KernelType, OsPackages, extension_names, extension_packages,
    optional_extension_packages,
};

/// Packages by their names.
pub(super) type PackageNames = BTreeSet<String>;

/// The packages of a deployment besides those of its image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LayeredPackages {
    /// Those that were added from a repository.
    pub(super) requested: PackageNames,
    /// Those of the image that were removed.
    pub(super) removed: PackageNames,
    /// The origin has a group of rpm-ostree, even an empty one: bootc refuses such a deployment.
    has_group: bool,
    /// Files of /etc are in a second initial RAM disk, which only rpm-ostree adds to a deployment.
    pub(super) has_initramfs_files: bool,
    /// The image from whose repository machinist has added packages.
    repository: Option<String>,
}

/// The group of the origin that is machinist's, and its key. Other programs ignore it.
const OWN_GROUP: &str = "[machinist]";
const REPOSITORY_KEY: &str = "repository";

/// The groups that rpm-ostree adds to an origin: packages, also from files, replaced packages, modules, and others such as
/// an initial RAM disk of the host.
const RPM_OSTREE_GROUPS: [&str; 4] = ["[rpmostree]", "[packages]", "[overrides]", "[modules]"];

fn names(packages: &[&str]) -> PackageNames {
    packages.iter().map(|name| (*name).to_owned()).collect()
}

fn difference(one: &PackageNames, other: &PackageNames) -> PackageNames {
    one.difference(other).cloned().collect()
}

impl LayeredPackages {
    /// Reads the origin, a key file whose lists end each item with `;`.
    pub(super) fn of_origin(origin: &str) -> Self {
        let mut layered = Self::default();
        let mut group = "";
        for line in origin.lines().map(str::trim) {
            if line.starts_with('[') {
                group = line;
                layered.has_group |= RPM_OSTREE_GROUPS.contains(&group);
                continue;
            }
            let Some((key, value)) = line.split_once('=') else {
                continue;
            };
            let items = value.split(';').map(str::trim);
            let items: PackageNames = items
                .filter(|item| !item.is_empty())
                .map(str::to_owned)
                .collect();
            match (group, key.trim()) {
                ("[packages]", "requested") => layered.requested = items,
                ("[overrides]", "remove") => layered.removed = items,
                (OWN_GROUP, REPOSITORY_KEY) => layered.repository = Some(value.trim().to_owned()),
                ("[rpmostree]", "initramfs-etc") => layered.has_initramfs_files = !items.is_empty(),
                _ => {}
            }
        }
        layered
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requested.is_empty() && self.removed.is_empty() && !self.has_group
    }

    /// The kernel of the deployment.
    pub(super) fn kernel_type(&self) -> KernelType {
        let types = [KernelType::Realtime, KernelType::LargePages];
        let has = |kernel: &KernelType| self.requested.contains(kernel.packages()[0]);
        types.into_iter().find(has).unwrap_or_default()
    }

    /// Whether all packages of the kernel are in `own`.
    pub(super) fn has_own_kernel(&self, own: &PackageNames) -> bool {
        let mut needed = self.kernel_type().packages().iter();
        needed.all(|name| own.contains(*name))
    }

    /// The extensions of which all packages were added, by the host or by machinist.
    pub(super) fn extensions(&self) -> PackageNames {
        self.extensions_among(&self.requested)
    }

    /// The extensions of which all packages are in the deployment and in `own`.
    pub(super) fn own_extensions(&self, own: &PackageNames) -> PackageNames {
        let requested = self.requested.intersection(own).cloned().collect();
        self.extensions_among(&requested)
    }

    fn extensions_among(&self, packages: &PackageNames) -> PackageNames {
        let has_all = |extension: &&str| {
            let mut needed = extension_packages(extension).unwrap_or_default().iter();
            needed.all(|name| packages.contains(*name))
        };
        extension_names()
            .filter(has_all)
            .map(str::to_owned)
            .collect()
    }

    /// The change to `wanted`. Packages that machinist has not added (`own`) are not removed. `is_offered` is asked for
    /// packages that only some releases have.
    pub(super) fn change_to(
        &self,
        wanted: &OsPackages,
        own: &PackageNames,
        is_offered: impl Fn(&str) -> bool,
    ) -> PackageChange {
        let mut needed = names(wanted.kernel_type.packages());
        let mut allowed = names(wanted.kernel_type.former_packages());
        for extension in &wanted.extensions {
            needed.extend(names(extension_packages(extension).unwrap_or_default()));
            for name in optional_extension_packages(extension) {
                allowed.insert((*name).to_owned());
                if is_offered(name) {
                    needed.insert((*name).to_owned());
                }
            }
        }
        allowed.extend(needed.iter().cloned());
        let replaced = names(wanted.kernel_type.replaced_packages());
        let own_requested = self.requested.intersection(own).cloned().collect();
        let own_removed = self
            .removed
            .iter()
            .filter(|name| own.contains(&removal_of(name)));
        PackageChange {
            image: None,
            install: difference(&needed, &self.requested),
            uninstall: difference(&own_requested, &allowed),
            remove: difference(&replaced, &self.removed),
            restore: difference(&own_removed.cloned().collect(), &replaced),
        }
    }

    /// The packages after a change.
    pub(super) fn after(&self, change: &PackageChange) -> Self {
        let with = |before: &PackageNames, add: &PackageNames, take: &PackageNames| {
            let all: PackageNames = before.union(add).cloned().collect();
            difference(&all, take)
        };
        Self {
            requested: with(&self.requested, &change.install, &change.uninstall),
            removed: with(&self.removed, &change.remove, &change.restore),
            ..self.clone()
        }
    }

    /// Whether a deployment has the same packages by name.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.requested == other.requested && self.removed == other.removed
    }

    /// Whether packages are from another repository than this one. A deployment that machinist has not made does not
    /// record it.
    pub(super) fn is_from_other(&self, repository: Option<&ImageRef>) -> bool {
        let before = self.repository.as_deref();
        let before = before.and_then(|image| ImageRef::parse(image).ok());
        let both = before.zip(repository);
        both.is_some_and(|(before, now)| before.digest() != now.digest())
    }

    /// The entries of the list of machinist's packages that are in this deployment.
    pub(super) fn recorded(&self) -> impl Iterator<Item = String> + '_ {
        let removed = self.removed.iter().map(|name| removal_of(name));
        self.requested.iter().cloned().chain(removed)
    }
}

/// The origin of a deployment with packages from this repository.
pub(super) fn with_repository(origin: &str, repository: Option<&ImageRef>) -> String {
    let mut text: String = match origin.split_once(OWN_GROUP) {
        Some((before, _)) => before.trim_end().to_owned(),
        None => origin.trim_end().to_owned(),
    };
    text.push('\n');
    if let Some(image) = repository {
        text.push_str(&format!("\n{OWN_GROUP}\n{REPOSITORY_KEY}={image}\n"));
    }
    text
}

/// How the list of machinist's packages names a package of the image that was removed.
pub(super) fn removal_of(package: &str) -> String {
    format!("-{package}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: &str = "[origin]\ncontainer-image-reference=ostree-unverified-registry:q.io/os@sha256:ab\n\n\
                          [packages]\nrequested=htop;usbguard;\n\n[overrides]\nremove=nano;\n";

    fn wanted(kernel_type: KernelType, extensions: &[&str]) -> OsPackages {
        OsPackages {
            kernel_type,
            extensions: names(extensions),
            repository: None,
            adopted: BTreeSet::new(),
        }
    }

    #[test]
    fn packages_of_an_administrator_stay() {
        let host = LayeredPackages::of_origin(ORIGIN);
        assert_eq!(host.requested, names(&["htop", "usbguard"]));
        assert_eq!(host.removed, names(&["nano"]));
        assert_eq!(host.extensions(), names(&["usbguard"]));
        let none = wanted(KernelType::Default, &[]);
        let nothing = host.change_to(&none, &PackageNames::new(), |_| false);
        assert_eq!(nothing, PackageChange::default());
        assert_eq!(host.own_extensions(&PackageNames::new()), names(&[]));
        let realtime = LayeredPackages {
            requested: names(KernelType::Realtime.packages()),
            ..LayeredPackages::default()
        };
        assert!(!realtime.has_own_kernel(&names(&["usbguard"])));
        assert!(realtime.has_own_kernel(&realtime.requested));
        let own = names(&["usbguard"]);
        let change = host.change_to(&none, &own, |_| false);
        assert_eq!(change.uninstall, own);
    }

    #[test]
    fn each_group_of_rpm_ostree_needs_rpm_ostree() {
        for (text, is_empty) in [
            ("", true),
            ("[machinist]\nrepository=x\n", true),
            ("[rpmostree]\nex-cliwrap=true\n", false),
            ("[rpmostree]\nregenerate-initramfs=false\n", false),
            ("[packages]\nrequested=\n", false),
            ("[overrides]\n", false),
            ("[modules]\nenable=nodejs:15;\n", false),
        ] {
            let origin = format!("[origin]\nrefspec=x\n\n{text}");
            let found = LayeredPackages::of_origin(&origin).is_empty();
            assert_eq!(found, is_empty, "{text}");
        }
    }

    #[test]
    fn a_kernel_replaces_that_of_the_image_and_is_taken_back() {
        for (kernel, other) in [
            (KernelType::Realtime, KernelType::LargePages),
            (KernelType::LargePages, KernelType::Realtime),
        ] {
            let image = LayeredPackages::default();
            let with_kernel = wanted(kernel, &["kerberos"]);
            let change = image.change_to(&with_kernel, &PackageNames::new(), |_| false);
            assert!(change.install.is_superset(&names(kernel.packages())));
            assert!(change.install.contains("libkadm5"));
            assert!(change.remove.contains("kernel-modules-core"));
            let layered = image.after(&change);
            assert_eq!(layered.kernel_type(), kernel);
            let own: PackageNames = layered.recorded().collect();
            assert!(layered.has_own_kernel(&own));
            let same = layered.change_to(&with_kernel, &own, |_| false);
            assert_eq!(same, PackageChange::default());
            let none = wanted(KernelType::Default, &[]);
            let back = layered.change_to(&none, &own, |_| false);
            assert_eq!(back.restore, change.remove);
            assert_eq!(layered.after(&back), image);
            // The other kernel replaces the same packages of the image.
            let switch = layered.change_to(&wanted(other, &["kerberos"]), &own, |_| false);
            let expected = PackageChange {
                install: names(other.packages()),
                uninstall: names(kernel.packages()),
                ..PackageChange::default()
            };
            assert_eq!(switch, expected);
            assert_eq!(layered.after(&switch).kernel_type(), other);
        }
    }

    #[test]
    fn a_package_of_a_former_kernel_stays_with_the_kernel_and_goes_with_it() {
        let mut requested = names(KernelType::Realtime.packages());
        requested.insert("kernel-rt-kvm".to_owned());
        let layered = LayeredPackages {
            removed: names(KernelType::Realtime.replaced_packages()),
            requested,
            ..LayeredPackages::default()
        };
        let own: PackageNames = layered.recorded().collect();
        let same = layered.change_to(&wanted(KernelType::Realtime, &[]), &own, |_| false);
        assert_eq!(same, PackageChange::default());
        let back = layered.change_to(&wanted(KernelType::Default, &[]), &own, |_| false);
        assert_eq!(layered.after(&back), LayeredPackages::default());
    }

    #[test]
    fn a_package_of_some_releases_is_added_where_it_is_offered_and_stays() {
        let ipsec = wanted(KernelType::Default, &["ipsec"]);
        let image = LayeredPackages::default();
        let newer = image.change_to(&ipsec, &PackageNames::new(), |_| true);
        assert!(newer.install.contains("openvswitch3.5-ipsec"));
        let older = image.change_to(&ipsec, &PackageNames::new(), |_| false);
        assert_eq!(
            older.install,
            names(&["NetworkManager-libreswan", "libreswan"])
        );
        assert_eq!(image.after(&older).extensions(), names(&["ipsec"]));
        let layered = image.after(&newer);
        let own = layered.recorded().collect();
        let again = layered.change_to(&ipsec, &own, |_| false);
        assert_eq!(again, PackageChange::default());
    }
}
