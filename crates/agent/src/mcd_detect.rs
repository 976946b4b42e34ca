//! Detects whether OpenShift's machine-config-daemon manages this machine.
//!
//! Two facts show it. First its process: it re-executes itself in the host's process namespace, so
//! it is visible in `/proc` below the root, which is the host's even if this process runs in a pod.
//! The instance that podman runs at first boot, before there is a kubelet, is visible there, too.
//! Second its pod, which is bound to the node some time before the process starts. Its files on the
//! disk are not evidence: they remain after it is removed from the node, and `adopt` reads them.
//!
//! Checked when the agent starts, before an update begins, and once a minute while the daemon is
//! present; never on an idle machine.

use machinist_base::{abs_path::AbsPath, error_chain::chain, reason::Reason};
use machinist_cluster::{Cluster, ClusterError};
use machinist_rootfs::{Root, RootError};

/// The program's name. The kernel truncates process names to fifteen bytes.
const MCD_PROGRAM: &str = "machine-config-daemon";
const MCD_PROCESS_NAME: &str = "machine-config-";

/// How many bytes of a command line are read to find the program.
const MAX_CMDLINE_BYTES: u64 = 4096;

/// A description of its process on the host; none if there is no such process, or no `/proc` below
/// the root.
///
/// Only the short name is read of every process, and the command line only if the name matches:
/// reading the command line of a process that hangs in the kernel may hang as well.
pub fn on_host(root: &Root) -> Result<Option<String>, RootError> {
    let proc = match AbsPath::new("/proc") {
        Ok(proc) => proc,
        Err(_) => return Ok(None),
    };
    let processes = match root.listing(&proc) {
        Ok(listing) => listing.entries,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let numbers = processes.iter().map(|entry| entry.name.as_str());
    for number in numbers.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
        // A process that has ended in the meantime does not count.
        let read = |what: &str| {
            let path = proc.join(&format!("{number}/{what}")).ok()?;
            root.read(&path, MAX_CMDLINE_BYTES).ok()
        };
        let named = |name: Vec<u8>| name.starts_with(MCD_PROCESS_NAME.as_bytes());
        if read("comm").is_some_and(named) && read("cmdline").is_some_and(|line| is_program(&line))
        {
            return Ok(Some(format!(
                "{MCD_PROGRAM} is running on this machine (PID {number})"
            )));
        }
    }
    Ok(None)
}

/// Whether a NUL-separated command line runs the daemon. The operator, the controller and the
/// server have the same truncated name.
fn is_program(line: &[u8]) -> bool {
    let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = first.rsplit(|byte| *byte == b'/').next();
    name == Some(MCD_PROGRAM.as_bytes())
}

/// Where to look for the daemon.
#[derive(Clone, Debug)]
pub(super) struct McdDetector {
    pub(super) root: Root,
    /// The cluster and our Node's name.
    pub(super) cluster: Option<(Cluster, String)>,
}

/// The result of a check.
#[derive(Debug)]
pub(super) enum McdStatus {
    /// The daemon is present; the text describes where it was detected.
    Seen(String),
    Absent,
    /// It does not run on the host, and the API request for its pod failed.
    Unknown(ClusterError),
}

impl McdDetector {
    /// Checks the host first. If the API server forbids reading pods, the host's answer is
    /// sufficient.
    pub(super) async fn detect(&self) -> McdStatus {
        let root = self.root.clone();
        match tokio::task::spawn_blocking(move || on_host(&root)).await {
            Ok(Ok(Some(seen))) => return McdStatus::Seen(seen),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => tracing::debug!("{}", chain(&error)),
            Err(lost) => tracing::debug!("{lost}"),
        }
        let Some((cluster, node)) = &self.cluster else {
            return McdStatus::Absent;
        };
        match cluster.machine_config_daemon_on(node).await {
            Ok(Some(pod)) => {
                McdStatus::Seen(format!("{MCD_PROGRAM} is running on this node (pod {pod})"))
            }
            Ok(None) => McdStatus::Absent,
            Err(error) if error.reason() == Reason::ApiServerForbidden => {
                tracing::debug!("{}", chain(&error));
                McdStatus::Absent
            }
            Err(error) => McdStatus::Unknown(error),
        }
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "test code that creates a fake /proc"
)]
mod tests {
    use super::*;

    fn process(dir: &std::path::Path, number: u32, comm: &str, line: &[u8]) {
        let at = dir.join(format!("proc/{number}"));
        std::fs::create_dir_all(&at).unwrap();
        std::fs::write(at.join("comm"), format!("{comm}\n")).unwrap();
        std::fs::write(at.join("cmdline"), line).unwrap();
    }

    #[test]
    fn machine_config_daemon_is_detected_only_by_its_own_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        assert_eq!(on_host(&root).unwrap(), None);
        process(
            dir.path(),
            7,
            "machine-config-",
            b"/usr/bin/machine-config-operator\0start\0",
        );
        process(dir.path(), 8, "bash", b"machine-config-daemon\0start\0");
        std::fs::create_dir_all(dir.path().join("proc/sys")).unwrap();
        std::fs::create_dir_all(dir.path().join("proc/9")).unwrap();
        assert_eq!(on_host(&root).unwrap(), None);
        let line = b"/run/bin/machine-config-daemon\0start\0--root-mount=/\0";
        process(dir.path(), 10, "machine-config-", line);
        let seen = on_host(&root).unwrap().unwrap();
        assert_eq!(
            seen,
            "machine-config-daemon is running on this machine (PID 10)"
        );
    }
}
