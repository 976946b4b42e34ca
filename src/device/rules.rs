//! What a container may be given, whoever asks for it: a file or a vendor's program.

use super::name::LONGEST_ID;
use crate::path::AbsPath;

/// More nodes, mounts or variables than any device needs; the kubelet keeps each answer on disk.
pub const MOST_ENTRIES: usize = 64;
/// Beside the attributes that the API server takes with them, 32 together.
pub const MOST_CAPACITIES: usize = 16;
/// Room for a long path list in a variable, far below what the kubelet's answer may hold.
pub const LONGEST_VALUE: usize = 4096;
/// Linux supports at most 1024 nodes (NODES_SHIFT is 10).
pub const HIGHEST_NUMA: u32 = 1023;
/// No machine has a device near to more nodes than this without being near to all.
pub const MOST_NUMA: usize = 16;
/// As long as a name in a DNS zone, which keys of annotations are made of.
const LONGEST_KEY: usize = 253;

/// Host directories that may be mounted into containers, the vendor's own directory below `/run`
/// aside: software and data, no configuration, no sockets of the system.
const MOUNT_PREFIXES: &[&str] = &["/opt", "/usr/lib", "/usr/local/lib", "/usr/share"];

/// The host directories that may be mounted into containers for a resource of `domain`; `further` are
/// those that the machine's owner added.
///
/// A vendor's directory below `/run` is called as the domain of its resources. The dot that is
/// asked for keeps it apart from the system's own, such as `/run/containerd`.
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

/// Whether a container may write below `from`: in the vendor's own directory below `/run`, and in what the
/// machine's owner named. What all may read is software that the host itself runs.
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

/// Whether `given` is what a container may do with a node: any of `r`, `w` and `m`, each once.
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

/// Whether `key` can be set as an annotation of a container by a declaration. Runtimes read CDI devices from
/// annotations: that would be a way around the allow-list.
pub fn is_annotation(key: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/');
    has_length(key) && key.chars().all(plain) && !key.starts_with("cdi.k8s.io/")
}

/// Domains whose annotations the kubelet, runtimes and their plugins obey: devices, mounts, user namespaces,
/// CPU sets, limits. That would be a way around the allow-lists. Names below these domains count, too.
const OBEYED_DOMAINS: [&str; 7] = [
    "kubernetes.io",
    "k8s.io",
    "openshift.io",
    "crio.io",
    "nri.io",
    "noderesource.dev",
    "containerd.io",
];
/// The same, as others write domains.
const OBEYED_PREFIXES: [&str; 10] = [
    "io.kubernetes.",
    "io.containerd.",
    "io.cri-containerd",
    "io.katacontainers.",
    "io.podman.",
    "org.systemd.",
    "org.criu.",
    "run.oci.",
    "module.wasm.",
    "dev.gvisor.",
];

/// Whether a vendor can set `key` as an annotation of a container: one that no runtime obeys.
pub fn is_vendor_annotation(key: &str) -> bool {
    is_annotation(key) && !is_obeyed(key)
}

fn is_obeyed(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    let domain = key.split('/').next().unwrap_or_default();
    let is_below = |obeyed: &str| {
        let above = domain.strip_suffix(obeyed);
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    };
    OBEYED_DOMAINS.iter().any(|obeyed| is_below(obeyed))
        || OBEYED_PREFIXES.iter().any(|obeyed| key.starts_with(obeyed))
}

fn has_length(key: &str) -> bool {
    !key.is_empty() && key.len() <= LONGEST_KEY
}

/// Whether a source of its own may call a device so: what the kubelet takes, without the colon that
/// stands before the number of a share.
pub fn is_device_id(id: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !id.is_empty()
        && id.len() <= LONGEST_ID
        && id.chars().all(plain)
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_come_from_software_directories_and_the_vendors_own() {
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
    fn software_of_the_host_is_never_writable() {
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
    fn annotations_that_runtimes_obey_cannot_be_set_by_vendors() {
        for good in [
            "acme.dev/made-by",
            "plain",
            "my-kubernetes.io/x",
            "io.acme.x",
        ] {
            assert!(is_vendor_annotation(good), "{good}");
        }
        for bad in [
            "cdi.k8s.io/acme",
            "CDI.k8s.io/acme",
            "io.kubernetes.cri-o.Devices",
            "io.kubernetes.cri.untrusted-workload",
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
            assert!(!is_vendor_annotation(bad), "{bad}");
        }
    }

    #[test]
    fn ids_of_vendors_are_plain_and_fit() {
        for good in ["a", "GPU-0.1_x", &"x".repeat(63)] {
            assert!(is_device_id(good), "{good}");
        }
        for bad in ["", "a::1", "a b", "../x", "-a", ".", "ä", &"x".repeat(64)] {
            assert!(!is_device_id(bad), "{bad}");
        }
    }
}
