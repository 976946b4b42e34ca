//! Limits on what a container may be given, for declarations and vendors alike.

use super::resource_name::MAX_ID_LEN;
use machinist_base::abs_path::AbsPath;

/// The maximum number of nodes, mounts or variables, more than any device needs; the kubelet stores
/// each allocation on disk.
pub const MAX_ENTRIES: usize = 64;
/// The maximum number of capacities: the API server limits capacities and attributes to 32 together.
pub const MAX_CAPACITIES: usize = 16;
/// The maximum length in bytes of a value: enough for a long path list in a variable, and far below
/// the size limit of the kubelet's messages.
pub const MAX_VALUE_BYTES: usize = 4096;
/// Linux supports at most 1024 nodes (NODES_SHIFT is 10).
pub const MAX_NUMA_NODE_ID: u32 = 1023;
/// The maximum number of NUMA nodes of a device; one that is near to more is near to all.
pub const MAX_NUMA_NODES: usize = 16;
/// The maximum length of an annotation key: the length of a DNS name.
const MAX_ANNOTATION_KEY_LEN: usize = 253;

/// Host directories that may be mounted into containers, in addition to the vendor's own directory
/// below `/run`: software and data, but no configuration and no system sockets.
const MOUNT_PREFIXES: &[&str] = &["/opt", "/usr/lib", "/usr/local/lib", "/usr/share"];

/// The host directories that may be mounted into containers for a resource of `domain`; `further` are
/// those that the administrator added.
///
/// The vendor's directory below `/run` has the name of the resource's domain. The domain must contain
/// a dot, so that it cannot be a directory of the system, such as `/run/containerd`.
pub fn mount_prefixes(domain: &str, further: &[AbsPath]) -> Vec<AbsPath> {
    let own = domain.contains('.').then(|| format!("/run/{domain}"));
    let fixed = MOUNT_PREFIXES.iter().map(|prefix| (*prefix).to_owned());
    let named = fixed
        .chain(own)
        .filter_map(|prefix| AbsPath::new(prefix).ok());
    named.chain(further.iter().cloned()).collect()
}

/// Whether `from` is below one of [`mount_prefixes`].
pub fn may_mount(from: &AbsPath, domain: &str, further: &[AbsPath]) -> bool {
    let prefixes = mount_prefixes(domain, further);
    prefixes.iter().any(|prefix| from.is_under(prefix))
}

/// Whether a container may write below `from`: only in the vendor's own directory below `/run`, and
/// in directories that the administrator added. The other prefixes contain software that the host
/// itself runs.
pub fn may_write(from: &AbsPath, domain: &str, further: &[AbsPath]) -> bool {
    let prefixes = mount_prefixes(domain, further);
    let own = prefixes.iter().filter(|prefix| {
        let fixed = MOUNT_PREFIXES.contains(&prefix.as_str());
        !fixed || further.contains(prefix)
    });
    own.into_iter().any(|prefix| from.is_under(prefix))
}

/// The default prefixes, for messages.
pub fn mountable(domain: &str) -> String {
    format!(
        "a path below {} or /run/{domain}",
        MOUNT_PREFIXES.join(", ")
    )
}

/// Whether `given` is a valid set of permissions on a node: any of `r`, `w` and `m`, each once.
pub fn are_permissions(given: &str) -> bool {
    let known = given.chars().all(|c| matches!(c, 'r' | 'w' | 'm'));
    let twice = given.chars().any(|c| given.matches(c).count() > 1);
    !given.is_empty() && known && !twice
}

/// Whether `key` can be the name of an environment variable.
pub fn is_variable(key: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    has_length(key) && !key.starts_with(|c: char| c.is_ascii_digit()) && key.chars().all(plain)
}

/// Whether a declaration or a vendor may set `key` as an annotation of a container: only one that no
/// runtime interprets.
pub fn is_annotation(key: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/');
    has_length(key) && key.chars().all(plain) && !is_interpreted(key)
}

/// Domains whose annotations the kubelet, runtimes and their plugins interpret: devices, mounts, user
/// namespaces, CPU sets, limits. These would bypass the allow-lists. Subdomains count as well.
const INTERPRETED_DOMAINS: [&str; 9] = [
    "kubernetes.io",
    "k8s.io",
    "openshift.io",
    "crio.io",
    // Older names of CRI-O, such as `seccomp-profile.kubernetes.cri-o.io`.
    "cri-o.io",
    "nri.io",
    "noderesource.dev",
    "containerd.io",
    "cri-resource-manager.intel.com",
];
/// The same for annotations with reversed domain names.
const INTERPRETED_PREFIXES: [&str; 15] = [
    "io.kubernetes.",
    "io.k8s.",
    "io.openshift.",
    "io.containerd.",
    // Hooks, such as `io.containers.trace-syscall`.
    "io.containers.",
    "io.cri-containerd",
    "io.cri-o.",
    "io.katacontainers.",
    "io.podman.",
    "org.systemd.",
    "org.criu.",
    // Reserved by the image and runtime specifications.
    "org.opencontainers.",
    "run.oci.",
    "module.wasm.",
    "dev.gvisor.",
];

fn is_interpreted(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let domain = key.split('/').next().unwrap_or_default();
    let is_below = |known: &str| {
        let above = domain.strip_suffix(known);
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    };
    INTERPRETED_DOMAINS.iter().any(|known| is_below(known))
        || INTERPRETED_PREFIXES
            .iter()
            .any(|known| key.starts_with(known))
}

fn has_length(key: &str) -> bool {
    !key.is_empty() && key.len() <= MAX_ANNOTATION_KEY_LEN
}

/// Whether a live source may use this device id: the kubelet must accept it, and it must not contain
/// the colon, which separates the share number.
pub fn is_device_id(id: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !id.is_empty()
        && id.len() <= MAX_ID_LEN
        && id.chars().all(plain)
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_allowed_from_software_and_vendor_directories() {
        let further = [AbsPath::new("/srv/acme").unwrap()];
        for (from, domain, expected) in [
            ("/opt/acme", "acme.dev", true),
            ("/run/acme.dev/x", "acme.dev", true),
            ("/run/acme.devil", "acme.dev", false),
            ("/run/containerd", "containerd", false),
            ("/srv/acme/lib", "acme.dev", true),
            ("/srv", "acme.dev", false),
            ("/etc", "acme.dev", false),
        ] {
            let path = AbsPath::new(from).unwrap();
            assert_eq!(may_mount(&path, domain, &further), expected, "{from}");
        }
    }

    #[test]
    fn mounts_of_host_software_are_never_writable() {
        let further = [AbsPath::new("/srv/acme").unwrap()];
        for (from, expected) in [
            ("/usr/lib/acme", false),
            ("/opt", false),
            ("/run/acme.dev/x", true),
            ("/srv/acme/lib", true),
        ] {
            let path = AbsPath::new(from).unwrap();
            assert_eq!(may_write(&path, "acme.dev", &further), expected, "{from}");
        }
    }

    #[test]
    fn annotations_interpreted_by_runtimes_cannot_be_set() {
        for good in [
            "acme.dev/made-by",
            "plain",
            "my-kubernetes.io/x",
            "io.acme.x",
        ] {
            assert!(is_annotation(good), "{good}");
        }
        for bad in [
            "cdi.k8s.io/acme",
            "CDI.k8s.io/acme",
            "io.kubernetes.cri-o.Devices",
            "io.kubernetes.cri.untrusted-workload",
            "io.kubernetes.cri-o.userns-mode",
            "io.kubernetes.cri-o.UnifiedCgroup.main",
            "seccomp-profile.kubernetes.cri-o.io",
            "seccomp-profile.kubernetes.cri-o.io/main",
            "Seccomp-Profile.Kubernetes.CRI-O.io/POD",
            "devices.crio.io",
            "userns-mode.crio.io/main",
            "platform-runtime-path.crio.io",
            "io.containers.trace-syscall",
            "io.cri-o.anything",
            "org.opencontainers.image.stopSignal",
            "resource-policy.cri-resource-manager.intel.com/pod",
            "io.containerd.runc.v2.group",
            "devices.nri.io/container.main",
            "cpu-load-balancing.crio.io",
            "cpu-quota.crio.io/main",
            "target.workload.openshift.io/management",
            "org.systemd.property.DeviceAllow",
            "run.oci.mount_context_type",
            "io.katacontainers.config.hypervisor.path",
            "container.apparmor.security.beta.kubernetes.io/main",
            "a b",
            "",
        ] {
            assert!(!is_annotation(bad), "{bad}");
        }
    }

    #[test]
    fn vendor_device_ids_are_validated() {
        for good in ["a", "GPU-0.1_x", &"x".repeat(63)] {
            assert!(is_device_id(good), "{good}");
        }
        for bad in ["", "a::1", "a b", "../x", "-a", ".", "ä", &"x".repeat(64)] {
            assert!(!is_device_id(bad), "{bad}");
        }
    }
}
