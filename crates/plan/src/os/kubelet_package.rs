//! Refuses configs that replace the kubelet of a package-based host, which its packages own.

use super::origin;
use crate::{MachineFacts, desired_tree::DesiredTree};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{EntryKind, EntryOrigin, MachineConfig, Refusal};

/// The paths where packages install the kubelet, and their unit that starts it. Packages do not use
/// `/usr/local`.
const PACKAGE_KUBELET_PATHS: &[&str] = &[
    "/usr/bin/kubelet",
    "/usr/sbin/kubelet",
    "/usr/libexec/kubernetes/kubelet",
    "/usr/bin/hyperkube",
    "/usr/lib/systemd/system/kubelet.service",
];

/// Packages that contain a kubelet: upstream's, Fedora's, OpenShift's, Debian's.
const KUBELET_PACKAGES: &[&str] = &[
    "kubelet",
    "kubernetes-node",
    "kubernetes-kubelet",
    "openshift-hyperkube",
    "openshift-kubelet",
];

/// Refuses a config that would change a kubelet that packages installed on a package-based host:
/// the next package update would replace it again. If no package installed one, the path is free.
pub(super) fn refusals(
    to: &MachineConfig,
    [before, after]: [&DesiredTree; 2],
    observed: &MachineFacts,
) -> Vec<Refusal> {
    let theirs = |path: &AbsPath| {
        PACKAGE_KUBELET_PATHS.contains(&path.as_str())
            && observed.objects.contains_key(path)
            && !before.objects.contains_key(path)
    };
    let named = after.objects.iter().filter(|(path, _)| theirs(path));
    let named = named.map(|(path, wanted)| {
        let message = format!("{path} is managed by the kubelet package of this host");
        refuse(message, &wanted.entry.origin)
    });
    let mut refusals: Vec<Refusal> = named.collect();
    let packages = to.extensions.iter();
    for name in packages.filter(|name| KUBELET_PACKAGES.contains(&name.as_str())) {
        let message = format!(
            "{name} contains the kubelet, which is managed by the packages of \
             this host"
        );
        refusals.push(refuse(message, &origin(to, EntryKind::Extension, name)));
    }
    refusals
}

fn refuse(message: String, origin: &EntryOrigin) -> Refusal {
    Refusal::new(Reason::KubeletNotManaged, message)
        .at(origin)
        .expected("only settings and drop-ins below /etc")
}
