//! Contains the built-in policy tables.

use std::collections::BTreeMap;

use super::{DisruptionPolicy, Policies, RequiredAction};
use crate::ActionKind;
use machinist_base::abs_path::AbsPath;

const RELOAD: ActionKind = ActionKind::Reload;
const RESTART: ActionKind = ActionKind::Restart;

/// A row of OpenShift's tables: a path or unit, and the actions with their units; an empty list means that no action is
/// needed.
pub(super) type OpenShiftRow = (&'static str, &'static [(ActionKind, &'static str)]);

/// OpenShift's built-in policies for files, in the order in which its operator writes them.
pub(super) const OPENSHIFT_POLICIES: &[OpenShiftRow] = &[
    ("/var/lib/kubelet/config.json", &[]),
    (
        "/etc/machine-config-daemon/no-reboot/containers-gpg.pub",
        &[(RELOAD, "crio.service")],
    ),
    ("/etc/containers/policy.json", &[(RELOAD, "crio.service")]),
    // Changes that cannot alter which image a name resolves to are reloaded without a drain
    // ([`registries_conf`](super::registries_conf)).
    (
        "/etc/containers/registries.conf",
        &[(ActionKind::Special, "crio.service")],
    ),
    ("/etc/containers/registries.d", &[(RELOAD, "crio.service")]),
    ("/etc/crio/policies", &[(RELOAD, "crio.service")]),
    ("/etc/nmstate/openshift", &[]),
    (
        "/etc/pki/ca-trust/source/anchors/openshift-config-user-ca-bundle.crt",
        &[
            (RESTART, "coreos-update-ca-trust.service"),
            (RESTART, "crio.service"),
        ],
    ),
    (
        "/etc/kubernetes/credential-providers",
        &[(RESTART, "kubelet.service")],
    ),
    (
        "/etc/systemd/system/kubelet.service.d/40-kubelet-crio-image-credential-provider.conf",
        &[(ActionKind::DaemonReload, ""), (RESTART, "kubelet.service")],
    ),
    ("/etc/iri-registry", &[(RESTART, "iri-registry.service")]),
    (
        "/usr/local/bin/load-registry-image.sh",
        &[(RESTART, "iri-registry.service")],
    ),
    (
        "/etc/pki/ca-trust/source/anchors/iri-root-ca.crt",
        &[(RESTART, "coreos-update-ca-trust.service")],
    ),
];

/// OpenShift's built-in policies for units.
pub(super) const OPENSHIFT_UNITS: &[OpenShiftRow] = &[(
    "iri-registry.service",
    &[
        (ActionKind::DaemonReload, ""),
        (RESTART, "iri-registry.service"),
    ],
)];

/// The service that rebuilds the CA bundle is a oneshot, whose run makes a change effective.
pub(super) const UPDATE_CA_TRUST: &str = "coreos-update-ca-trust.service";

/// One row of the table for ordinary distributions.
struct BuiltinRow {
    path: &'static str,
    /// None if the file is read on use and no action is needed.
    act: Option<ActionKind>,
    /// The first of these units that exists on the machine is used.
    units: &'static [&'static str],
    /// The unit is a oneshot whose run makes the change effective.
    once: bool,
    on_removal: Option<&'static str>,
    except: Option<&'static str>,
}

const fn nothing(path: &'static str) -> BuiltinRow {
    BuiltinRow {
        path,
        act: None,
        units: &[],
        once: false,
        on_removal: None,
        except: None,
    }
}

const fn restart(path: &'static str, units: &'static [&'static str]) -> BuiltinRow {
    BuiltinRow {
        act: Some(RESTART),
        units,
        ..nothing(path)
    }
}

const fn reload(path: &'static str, units: &'static [&'static str]) -> BuiltinRow {
    BuiltinRow {
        act: Some(RELOAD),
        ..restart(path, units)
    }
}

const fn run_again(path: &'static str, units: &'static [&'static str]) -> BuiltinRow {
    BuiltinRow {
        once: true,
        ..restart(path, units)
    }
}

const CHRONY_UNITS: &[&str] = &["chronyd.service", "chrony.service"];
/// machinist's own unit first: systemd's unit may refuse to be started manually.
const TMPFILES_UNITS: &[&str] = &[
    "machinist-tmpfiles.service",
    "systemd-tmpfiles-setup.service",
];
const SYSCTL_UNITS: &[&str] = &["systemd-sysctl.service"];
const CA_TRUST_UNITS: &[&str] = &["coreos-update-ca-trust.service", "update-ca-trust.service"];
const CA_CERTIFICATES_UNITS: &[&str] =
    &["update-ca-certificates.service", "ca-certificates.service"];

/// The value stays in the running kernel after the file is removed; so does a module.
const KERNEL_VALUE_REMAINS: &str =
    "its values remain set in the running kernel until the next boot";

/// The smallest action that makes each kind of file effective on ordinary distributions.
///
/// Taken from the programs' manual pages: systemd's oneshots are run again to reread their
/// directory; containers survive a restart of containerd and CRI-O; containerd reads `certs.d` at
/// each pull; NetworkManager reads connection profiles only on request or at start, and applies a
/// changed profile to a device in use only when the connection is activated again, so it has no row
/// and the default applies.
const GENERIC_POLICIES: &[BuiltinRow] = &[
    BuiltinRow {
        on_removal: Some(KERNEL_VALUE_REMAINS),
        ..run_again("/etc/sysctl.d", SYSCTL_UNITS)
    },
    BuiltinRow {
        on_removal: Some(KERNEL_VALUE_REMAINS),
        ..run_again("/etc/sysctl.conf", SYSCTL_UNITS)
    },
    BuiltinRow {
        on_removal: Some(KERNEL_VALUE_REMAINS),
        ..run_again("/etc/modules-load.d", &["systemd-modules-load.service"])
    },
    run_again("/etc/tmpfiles.d", TMPFILES_UNITS),
    restart("/etc/systemd/journald.conf", &["systemd-journald.service"]),
    restart(
        "/etc/systemd/journald.conf.d",
        &["systemd-journald.service"],
    ),
    restart(
        "/etc/systemd/timesyncd.conf",
        &["systemd-timesyncd.service"],
    ),
    restart(
        "/etc/systemd/timesyncd.conf.d",
        &["systemd-timesyncd.service"],
    ),
    restart("/etc/chrony.conf", CHRONY_UNITS),
    restart("/etc/chrony.d", CHRONY_UNITS),
    restart("/etc/chrony", CHRONY_UNITS),
    restart("/etc/containerd/config.toml", &["containerd.service"]),
    restart("/etc/containerd/conf.d", &["containerd.service"]),
    nothing("/etc/containerd/certs.d"),
    restart("/etc/crio/crio.conf", &["crio.service"]),
    restart("/etc/crio/crio.conf.d", &["crio.service"]),
    run_again("/etc/pki/ca-trust/source/anchors", CA_TRUST_UNITS),
    run_again("/etc/pki/trust/anchors", CA_CERTIFICATES_UNITS),
    run_again("/usr/local/share/ca-certificates", CA_CERTIFICATES_UNITS),
    reload("/etc/udev/rules.d", &["systemd-udevd.service"]),
    reload("/etc/NetworkManager/conf.d", &["NetworkManager.service"]),
    reload(
        "/etc/NetworkManager/NetworkManager.conf",
        &["NetworkManager.service"],
    ),
    nothing("/etc/NetworkManager/dispatcher.d"),
    // `.link` files are read by udev when a device appears.
    BuiltinRow {
        except: Some(".link"),
        ..reload("/etc/systemd/network", &["systemd-networkd.service"])
    },
    restart("/etc/systemd/networkd.conf", &["systemd-networkd.service"]),
    restart(
        "/etc/systemd/networkd.conf.d",
        &["systemd-networkd.service"],
    ),
    nothing("/etc/machinist"),
];

/// The combination of the two tables.
pub(super) fn policies() -> Policies {
    let mut files = BTreeMap::new();
    let mut add = |path: &str, policy: DisruptionPolicy| {
        if let Ok(path) = AbsPath::new(path) {
            files.insert(path, policy);
        }
    };
    for row in GENERIC_POLICIES {
        add(row.path, row.policy());
    }
    for (path, acts) in OPENSHIFT_POLICIES {
        add(path, policy(path, acts));
    }
    let units = OPENSHIFT_UNITS.iter();
    let units = units.map(|(unit, acts)| ((*unit).to_owned(), policy(unit, acts)));
    Policies {
        files,
        units: units.collect(),
        ssh_key: policy("sshkey", &[]),
        soft_reboots: false,
    }
}

impl BuiltinRow {
    fn policy(&self) -> DisruptionPolicy {
        let demand = self.act.map(|kind| RequiredAction::Unit {
            kind,
            names: self.units.iter().map(|unit| (*unit).to_owned()).collect(),
            once: self.once,
            flexible: true,
        });
        DisruptionPolicy {
            name: format!("builtin:{}", self.path),
            demands: demand.into_iter().collect(),
            on_removal: self.on_removal,
            except: self.except,
        }
    }
}

fn policy(name: &str, acts: &[(ActionKind, &str)]) -> DisruptionPolicy {
    let demands = acts
        .iter()
        .map(|(kind, unit)| match *unit {
            "" => RequiredAction::Machine(*kind),
            unit => RequiredAction::Unit {
                kind: *kind,
                names: vec![unit.to_owned()],
                once: unit == UPDATE_CA_TRUST,
                flexible: false,
            },
        })
        .collect();
    DisruptionPolicy {
        name: format!("builtin:{name}"),
        demands,
        on_removal: None,
        except: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_policies_have_distinct_paths_and_are_found() {
        let all = policies();
        assert_eq!(
            all.files.len(),
            GENERIC_POLICIES.len() + OPENSHIFT_POLICIES.len()
        );
        for row in GENERIC_POLICIES {
            let below = AbsPath::new(format!("{}/x.conf", row.path)).unwrap();
            assert_eq!(
                all.for_path(&below).unwrap().name,
                format!("builtin:{}", row.path)
            );
        }
    }

    #[test]
    fn the_policy_of_the_longest_matching_directory_wins() {
        let all = policies();
        let name = |path: &str| {
            all.for_path(&path.parse().unwrap())
                .map(|policy| policy.name.clone())
        };
        assert_eq!(
            name("/etc/chrony.conf").as_deref(),
            Some("builtin:/etc/chrony.conf")
        );
        assert_eq!(name("/etc/chrony.conf.bak"), None);
        assert_eq!(
            name("/etc/pki/ca-trust/source/anchors/iri-root-ca.crt").as_deref(),
            Some("builtin:/etc/pki/ca-trust/source/anchors/iri-root-ca.crt")
        );
        assert_eq!(name("/etc/systemd/network/10-x.link"), None);
        assert_eq!(name("/etc/containerd/other"), None);
    }
}
