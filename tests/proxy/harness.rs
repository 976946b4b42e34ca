//! A machine with vendors' files, an agent on it, and the kubelet.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use machinist_base::shutdown::Tasks;
use machinist_device::{
    Allowances,
    allocator::Allocators,
    registry::{Registry, RegistrySettings, UnitStates},
    vendor_declaration::{self, Vendors},
};
use machinist_device_plugins::{
    kubelet::{self, RegistrationMode},
    plugin_proxy::{self, VENDOR_DIRS_ROOT},
};
use machinist_rootfs::Root;
use prost::Message as _;
use tokio::sync::watch;

use super::api;
use machinist_testkit::{WAIT_TIMEOUT, device_host::Machine, fake_kubelet::ResourceAccounts};

/// The machine, and the content of `vendors.d`.
pub(crate) struct Stage {
    pub(crate) machine: Machine,
    pub(crate) vendors: watch::Sender<Arc<Vendors>>,
}

/// The parts of an agent that handle devices.
pub(crate) struct Agent {
    tasks: Tasks,
    pub(crate) registry: Registry,
    problems: watch::Receiver<plugin_proxy::PluginProblems>,
    /// The allocations in progress for the kubelet.
    pub(crate) allocations: watch::Receiver<kubelet::Allocations>,
    units: watch::Sender<UnitStates>,
}

impl Stage {
    /// One vendor, `acme`, with `more` appended to its spec.
    pub(crate) fn new(more: &str) -> Self {
        let stage = Self {
            machine: Machine::new(),
            vendors: watch::Sender::default(),
        };
        stage.declare(&[("acme", more)]);
        stage
    }

    pub(crate) fn declare(&self, all: &[(&str, &str)]) {
        self.vendors.send_replace(Arc::new(vendors(all)));
    }

    /// The vendors of the broken file are unknown.
    pub(crate) fn declare_with_broken_file(&self, all: &[(&str, &str)]) {
        let known = vendors(all);
        self.vendors.send_replace(Arc::new(Vendors {
            blind: true,
            ..known
        }));
    }

    /// The vendor may register only this resource from now on.
    pub(crate) fn only(&self, name: &str, resource: &str) {
        let mut vendors = Vendors::clone(&self.vendors.borrow());
        let mut vendor = vendor_declaration::Vendor::clone(&vendors.by_name[name]);
        let text = format!(
            "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {{name: {name}}}\nspec:\n  \
             connects: plugin\n  resources: [\"{resource}\"]\n"
        );
        vendor.resources = vendor_declaration::parse("vendor.yaml", &text)
            .unwrap()
            .resources;
        vendors.by_name.insert(name.to_owned(), vendor.into());
        self.vendors.send_replace(Arc::new(vendors));
    }

    pub(crate) fn directory(&self, vendor: &str) -> PathBuf {
        self.machine
            .path(&format!("{}/{vendor}", &VENDOR_DIRS_ROOT[1..]))
    }

    pub(crate) fn agent(&self) -> Agent {
        agent(self.machine.root(), self.vendors.subscribe())
    }

    /// An agent that accepts registrations of `acme`.
    pub(crate) async fn ready(&self) -> Agent {
        let agent = self.agent();
        self.until_open("acme").await;
        agent
    }

    pub(crate) async fn until_open(&self, vendor: &str) {
        let socket = self.directory(vendor).join("kubelet.sock");
        until("kubelet.sock", || {
            std::os::unix::net::UnixStream::connect(&socket).is_ok()
        })
        .await;
    }
}

/// Vendors that connect by plugin, each with its name and the rest of its file.
pub(crate) fn vendors(all: &[(&str, &str)]) -> Vendors {
    let mut vendors = Vendors::default();
    for (name, more) in all {
        let text = format!(
            "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {{name: {name}}}\nspec:\n  \
             connects: plugin\n  resources: [\"{name}.dev/*\"]\n{more}"
        );
        let vendor = vendor_declaration::parse("vendor.yaml", &text).unwrap();
        vendors.by_name.insert((*name).to_owned(), vendor.into());
    }
    vendors
}

pub(crate) fn agent(root: &Path, vendors: watch::Receiver<Arc<Vendors>>) -> Agent {
    let tasks = Tasks::new();
    let root = Root::open(root).unwrap();
    // No declaration here uses a unit for health.
    let units = watch::Sender::default();
    let settings = RegistrySettings {
        allowances: Allowances::default(),
        uevents: false,
        rescan: Duration::from_secs(600),
        save_timeout: WAIT_TIMEOUT,
        allocation_disabled: None,
        units: units.subscribe(),
    };
    let registry = Registry::start(root.clone(), settings, &tasks);
    let plugin = plugin_proxy::start(root.clone(), vendors, registry.clone(), &tasks);
    let problems = plugin.problems();
    let allocators = Allocators {
        file: None,
        vendor: None,
        plugin: Some(plugin),
    };
    let (_, allocations) = kubelet::start(
        root,
        registry.inventory(),
        allocators,
        RegistrationMode::default(),
        &tasks,
    );
    Agent {
        tasks,
        registry,
        problems,
        allocations,
        units,
    }
}

impl Agent {
    /// Stops like SIGTERM: everything ends, and every task is joined.
    pub(crate) async fn stop(self) {
        self.tasks.finish(WAIT_TIMEOUT).await.unwrap();
    }

    /// The reported problems of plugins.
    pub(crate) fn problems(&self) -> Vec<String> {
        let problems = self.problems.borrow();
        let text = |one: &plugin_proxy::PluginProblem| match one {
            plugin_proxy::PluginProblem::Refused(why)
            | plugin_proxy::PluginProblem::Unreachable(why) => why.clone(),
        };
        problems.values().map(text).collect()
    }

    /// Why a device is unhealthy; `None` when it is healthy.
    pub(crate) fn reason(&self, resource: &str, id: &str) -> Option<String> {
        let inventory = self.registry.inventory().borrow().clone();
        let mut all = inventory.resources.values();
        let resource = all.find(|one| one.name.as_str() == resource).unwrap();
        resource.devices[id].reason.clone()
    }
}

pub(crate) async fn until(what: &str, is: impl Fn() -> bool) {
    let began = tokio::time::Instant::now();
    while !is() {
        assert!(
            began.elapsed() < WAIT_TIMEOUT,
            "not within {WAIT_TIMEOUT:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether the kubelet lists exactly this, `id=health`.
pub(crate) fn has(books: &ResourceAccounts, resource: &str, list: &[&str]) -> bool {
    books
        .get(resource)
        .is_some_and(|known| known.streaming && known.list() == list)
}

/// An answer to `Allocate` with a device node and a mount.
pub(crate) fn answer(node: &str, mount: &str) -> Vec<u8> {
    let one = api::ContainerAllocateResponse {
        devices: vec![api::DeviceSpec {
            container_path: "/dev/acme".into(),
            host_path: node.into(),
            permissions: "rw".into(),
        }],
        mounts: vec![api::Mount {
            container_path: "/opt/acme".into(),
            host_path: mount.into(),
            read_only: true,
        }],
        ..Default::default()
    };
    let answer = api::AllocateResponse {
        container_responses: vec![one],
    };
    answer.encode_to_vec()
}
