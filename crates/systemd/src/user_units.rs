//! Names the units of PID 1 whose failure and whose jobs others than the administrator decide: users with a login,
//! peers that connect, and the processes of a container.

/// Services and mounts with one instance for each user, login or connection, by prefix and suffix of the name.
/// systemd, logind and sshd start them; the user or the peer decides whether they fail or hang.
const INSTANCES: [(&str, &str); 9] = [
    // The user's own service manager and all that it starts: fails if the user kills it, hangs with a unit of hers.
    ("user@", ".service"),
    ("user-runtime-dir@", ".service"),
    // The run-time directory of a user, and what is mounted in it.
    ("run-user-", ".mount"),
    ("user-", ".slice"),
    // A process that crashed, with a core that takes too long to write.
    ("systemd-coredump@", ".service"),
    // One connection to a socket with `Accept=yes`: fails when the peer breaks it off.
    ("ssh@", ".service"),
    ("sshd@", ".service"),
    ("sshd-unix-local@", ".service"),
    ("sshd-vsock@", ".service"),
];

/// Returns whether a user, a peer or a container decides if `unit` fails or hangs. Its state is no evidence of the
/// machine's health, and by it a user could roll back updates or keep the machine from being ready.
///
/// Every scope counts as such a unit: it contains processes that something else has started, those of a login
/// (`session-3.scope`), a container (`crio-….scope`) or a machine. The service that manages them is judged instead.
/// A transient service (`run-….service`) does not count as one: only the administrator may start one here.
pub(super) fn is_controlled_by_user(unit: &str) -> bool {
    let instance = |(prefix, suffix): &(&str, &str)| {
        let rest = unit.strip_prefix(prefix);
        // The template itself (`user@.service`) is never loaded as a unit.
        rest.and_then(|rest| rest.strip_suffix(suffix))
            .is_some_and(|name| !name.is_empty())
    };
    unit.ends_with(".scope") || INSTANCES.iter().any(instance)
}

#[cfg(test)]
mod tests {
    use super::is_controlled_by_user;

    #[test]
    fn units_of_users_logins_and_containers_are_controlled_by_users() {
        let users = [
            "user@1000.service",
            "user@0.service",
            "user-runtime-dir@1000.service",
            "user-1000.slice",
            "run-user-1000.mount",
            "run-user-1000-doc.mount",
            "session-3.scope",
            "session-c1.scope",
            "run-r0123456789abcdef.scope",
            "run-u7.scope",
            "machine-web.scope",
            "crio-0123.scope",
            "cri-containerd-0123.scope",
            "libpod-0123.scope",
            "docker-0123.scope",
            "systemd-coredump@4-1234-0.service",
            "sshd@0-192.0.2.1:22-192.0.2.9:4711.service",
            "ssh@1-192.0.2.1:22-192.0.2.9:4711.service",
        ];
        for unit in users {
            assert!(is_controlled_by_user(unit), "{unit}");
        }
        let administrators = [
            "kubelet.service",
            "user.slice",
            "user@.service",
            "user-runtime-dir@.service",
            "users@1000.service",
            "user@1000.timer",
            "user-sync.service",
            "systemd-user-sessions.service",
            "systemd-logind.service",
            "systemd-coredump.socket",
            "sshd.service",
            "sshd.socket",
            "run-r0123456789abcdef.service",
            "run-u7.service",
            "run-user.mount",
            "run-lock.mount",
            "getty@tty1.service",
            "machine.slice",
            "multi-user.target",
        ];
        for unit in administrators {
            assert!(!is_controlled_by_user(unit), "{unit}");
        }
    }
}
