//! A machine in a temporary directory, with an agent's device service.

use std::{path::Path, sync::Arc, time::Duration};

use machinist_base::shutdown::Tasks;
use machinist_device::{Allowances, registry::UnitStates, status::DevicesStatus};
use machinist_device_plugins::{
    device_service::{DevicesHandle, DevicesService, DevicesSettings},
    kubelet::RegistrationMode,
};
use machinist_rootfs::Root;

use crate::WAIT_TIMEOUT;

/// Long enough that no periodic scan happens during a test.
const RESCAN: Duration = Duration::from_secs(600);

/// A root directory in which device nodes can be created.
pub struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    pub fn new() -> Self {
        // Any user may create "whiteouts", character devices 0:0, but not on an overlay, and the
        // temporary directory of a container often is one.
        for base in [std::env::temp_dir(), "/dev/shm".into()] {
            let Ok(dir) = tempfile::tempdir_in(base) else {
                continue;
            };
            let machine = Self { dir };
            std::fs::create_dir_all(machine.path("dev")).unwrap();
            if make_node(&machine.path("dev/probe"), "probe").is_ok() {
                std::fs::remove_file(machine.path("dev/probe")).unwrap();
                for dir in ["etc/machinist/devices.d", "proc/sys/kernel/random"] {
                    std::fs::create_dir_all(machine.path(dir)).unwrap();
                }
                machine.boot("boot-1");
                return machine;
            }
        }
        panic!("no file system allows device nodes");
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, below: &str) -> std::path::PathBuf {
        self.root().join(below)
    }

    pub fn boot(&self, id: &str) {
        std::fs::write(self.path("proc/sys/kernel/random/boot_id"), id).unwrap();
    }

    pub fn plug(&self, name: &str) {
        let node = self.path("dev").join(name);
        std::fs::create_dir_all(node.parent().unwrap()).unwrap();
        make_node(&node, name).unwrap();
    }

    pub fn unplug(&self, name: &str) {
        std::fs::remove_file(self.path("dev").join(name)).unwrap();
    }

    pub fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path("etc/machinist/devices.d").join(file), text).unwrap();
    }

    pub fn declare(&self, file: &str, resource: &str, path: &str, replicas: u32) {
        self.write(
            file,
            &format!(
                "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: x}}\n\
                 spec:\n  resource: {resource}\n  match: [{{path: \"{path}\"}}]\n  \
                 share: {{replicas: {replicas}}}\n"
            ),
        );
    }

    pub fn agent(&self) -> Agent {
        self.agent_with(None, RESCAN, RegistrationMode::BySocket)
    }

    /// An agent whose resources the kubelet finds through its plugin watcher.
    pub fn agent_that_is_found(&self) -> Agent {
        self.agent_with(None, RESCAN, RegistrationMode::ByWatcher)
    }

    /// An agent that scans periodically at this interval, without an event.
    pub fn agent_that_looks_every(&self, rescan: Duration) -> Agent {
        self.agent_with(None, rescan, RegistrationMode::BySocket)
    }

    /// An agent that starts with allocation disabled by its predecessor.
    pub fn withholding_agent(&self, why: &str) -> Agent {
        let disabled = machinist_device_plugins::device_service::allocation_disabled(why, true);
        self.agent_with(Some(disabled), RESCAN, RegistrationMode::BySocket)
    }

    fn agent_with(
        &self,
        allocation_disabled: Option<machinist_device::AllocationDisabled>,
        rescan: Duration,
        registering: RegistrationMode,
    ) -> Agent {
        let tasks = Tasks::new();
        let root = Root::open(self.root()).unwrap();
        let units = tokio::sync::watch::Sender::new(UnitStates::new());
        let settings = DevicesSettings {
            allowances: Allowances::default(),
            uevents: None,
            rescan,
            // The next agent of a test may depend on it, on however slow a disk.
            save_timeout: WAIT_TIMEOUT,
            registering,
            units: units.subscribe(),
            allocation_disabled,
        };
        let handle = DevicesService::start(root, settings, &tasks);
        Agent {
            handle,
            units,
            tasks,
        }
    }
}

/// Each name has a device number of its own, of a driver that no machine has.
fn make_node(path: &Path, name: &str) -> nix::Result<()> {
    use nix::sys::stat::{Mode, SFlag, makedev, mknod};
    let mode = Mode::from_bits_truncate(0o666);
    let minor = name.bytes().fold(1_u64, |minor, byte| {
        (minor * 31 + u64::from(byte)) % 0xf_fffb
    });
    mknod(path, SFlag::S_IFCHR, mode, makedev(240, minor))
        .or_else(|_| mknod(path, SFlag::S_IFCHR, mode, makedev(0, 0)))
}

pub struct Agent {
    pub handle: DevicesHandle,
    /// The states of systemd units.
    pub units: tokio::sync::watch::Sender<UnitStates>,
    tasks: Tasks,
}

impl Agent {
    /// The number of running tasks.
    pub fn tasks(&self) -> usize {
        self.tasks.tracker().len()
    }

    pub async fn until(
        &self,
        what: &str,
        wanted: impl Fn(&DevicesStatus) -> bool,
    ) -> Arc<DevicesStatus> {
        let mut status = self.handle.status();
        let waiting = status.wait_for(|status| wanted(status));
        match tokio::time::timeout(WAIT_TIMEOUT, waiting).await {
            Ok(status) => status.unwrap().clone(),
            Err(_) => panic!(
                "not within {WAIT_TIMEOUT:?}: {what}; {:#?}",
                self.handle.status().borrow()
            ),
        }
    }

    /// Serves claims as the agent of this node; returns the slices to be published.
    pub fn claims(
        &self,
        claims: Arc<dyn machinist_device::dra::traits::ClaimReader>,
        published: tokio::sync::watch::Receiver<machinist_device::dra::traits::PublishedPool>,
    ) -> tokio::sync::watch::Receiver<machinist_device::dra::traits::DesiredPool> {
        let served = self
            .handle
            .serve_claims("node-1", claims, published, &self.tasks);
        served.unwrap()
    }

    /// Stops like SIGTERM: everything ends, and every task is joined.
    pub async fn stop(self) {
        self.tasks.finish(WAIT_TIMEOUT).await.unwrap();
    }
}
