//! The kubelet of a host that has it from packages is theirs.

use super::origin;
use crate::{
    machine_config::{EntryKind, MachineConfig, Origin, Refusal},
    path::AbsPath,
    plan::{Observed, desired::Layout},
    reason::Reason,
};

/// Where packages put the kubelet, and the unit of theirs that starts it. `/usr/local` is nobody's package's.
const OF_PACKAGES: &[&str] = &[
    "/usr/bin/kubelet",
    "/usr/sbin/kubelet",
    "/usr/libexec/kubernetes/kubelet",
    "/usr/bin/hyperkube",
    "/usr/lib/systemd/system/kubelet.service",
];

/// Packages that hold a kubelet: upstream's, Fedora's, OpenShift's, Debian's.
const PACKAGES: &[&str] = &[
    "kubelet",
    "kubernetes-node",
    "kubernetes-kubelet",
    "openshift-hyperkube",
    "openshift-kubelet",
];

/// The refusals of a config that would change the kubelet of a package-based host below the packages that brought
/// it: the next update of those would put another one there. Where they brought none, the path is free.
pub(super) fn refusals(
    to: &MachineConfig,
    [before, after]: [&Layout; 2],
    observed: &Observed,
) -> Vec<Refusal> {
    let theirs = |path: &AbsPath| {
        OF_PACKAGES.contains(&path.as_str())
            && observed.objects.contains_key(path)
            && !before.objects.contains_key(path)
    };
    let named = after.objects.iter().filter(|(path, _)| theirs(path));
    let named = named.map(|(path, wanted)| {
        let message = format!("{path} is the kubelet of this host's packages and left to them");
        refuse(message, &wanted.entry.origin)
    });
    let mut refusals: Vec<Refusal> = named.collect();
    let packages = to.extensions.iter();
    for name in packages.filter(|name| PACKAGES.contains(&name.as_str())) {
        let message = format!("{name} brings the kubelet, which is left to this host's packages");
        refusals.push(refuse(message, &origin(to, EntryKind::Extension, name)));
    }
    refusals
}

fn refuse(message: String, origin: &Origin) -> Refusal {
    Refusal::new(Reason::KubeletNotManaged, message)
        .at(origin)
        .expected("settings and drop-ins below /etc alone")
}
