//! Writes the fixture of a whole state directory: runs updates, devices, claims, a vendor's program and an unmodified
//! plugin on one machine.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use machinist_device::{
    ResourceName,
    dra::{device_names::device_name, traits::PublishedPool},
    status::DevicesStatus,
};
use machinist_device_plugins::dra::api::v1;
use tokio::sync::watch;
use tonic::transport::Channel;

use crate::last_version::{fixture, harness::manifest_of, plugin::Plugin};
use machinist_testkit::{
    device_host::{Agent, Machine},
    fake_claims::{FakeClaims, Watcher, claim, until},
    fake_kubelet::FakeKubelet,
    vendor_program::{device, listed},
};

/// The fixture of the whole machine.
pub(crate) const STATE: &str = "state.json";
/// The device plugin's resource of the vendor whose plugin is unmodified.
pub(crate) const PLUGIN: &str = "other.dev/gpu";
/// What devices of each source are listed as.
pub(crate) const LISTED: [&str; 7] = [
    "claimed/claimA=Healthy",
    "program/acme0=Healthy",
    "tty/ttyA::0=Healthy",
    "tty/ttyA::1=Healthy",
    "tty/ttyB::0=Healthy",
    "tty/ttyB::1=Healthy",
    "gpu/g0=Healthy",
];

/// The name in the pool of the device that is claimed.
pub(crate) fn claimed() -> String {
    device_name(&ResourceName::new("acme.dev/claimed").unwrap(), "claimA")
}

/// Makes the device nodes, which are no part of the fixture.
pub(crate) fn plug(machine: &Machine) {
    for name in ["ttyA", "ttyB", "claimA", "acme0"] {
        machine.plug(name);
    }
}

/// The directory in which the plugin registers.
pub(crate) fn plugins(machine: &Machine) -> PathBuf {
    machine.path("var/lib/machinist/device-plugins/other")
}

/// A config source next to the machine, with these files and contents.
pub(crate) fn source(dir: &Path, files: &[(&str, &str)]) -> String {
    let files = files
        .iter()
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
    let text = manifest_of("10-one", &files.collect::<Vec<_>>());
    std::fs::write(dir.join("10-one.yaml"), text).unwrap();
    format!("dir:{}", dir.display())
}

/// The config that a rollback overrides.
pub(crate) const LATEST: &[(&str, &str)] = &[("/etc/one", "third"), ("/etc/two", "two")];

/// A command of the program on this machine.
pub(crate) fn command(machine: &Machine, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_machinist"));
    command.env_clear().args(arguments).arg("--root");
    command.arg(machine.root()).stdin(Stdio::null());
    command
}

fn does(machine: &Machine, arguments: &[&str]) {
    let output = command(machine, arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// The parts of an agent and of a kubelet that handle devices.
pub(crate) struct Stage {
    pub(crate) agent: Agent,
    pub(crate) claims: Arc<FakeClaims>,
    pub(crate) kubelet: FakeKubelet,
    _published: watch::Sender<PublishedPool>,
    driver: Channel,
}

impl Stage {
    /// Starts them; `at_once` sees the status before anything is scanned.
    pub(crate) async fn on(
        machine: &Machine,
        claims: Arc<FakeClaims>,
        at_once: impl FnOnce(&DevicesStatus),
    ) -> Self {
        let kubelet = FakeKubelet::start(machine.root()).await;
        let watcher = Watcher::start(machine.root());
        let agent = machine.agent();
        at_once(&agent.handle.status().borrow());
        let published = watch::Sender::new(PublishedPool::default());
        agent.claims(claims.clone(), published.subscribe());
        let driver = watcher.driver().await;
        Self {
            agent,
            claims,
            kubelet,
            _published: published,
            driver,
        }
    }

    /// The kubelet's result for one claim.
    pub(crate) async fn prepare(&self, name: &str) -> Result<Vec<v1::Device>, String> {
        let mut client = v1::dra_plugin_client::DraPluginClient::new(self.driver.clone());
        let claims = vec![claim(name)];
        let request = v1::NodePrepareResourcesRequest { claims };
        let answer = client.node_prepare_resources(request).await.unwrap();
        let one = answer.into_inner().claims.remove(&claim(name).uid).unwrap();
        match one.error.is_empty() {
            true => Ok(one.devices),
            false => Err(one.error),
        }
    }
}

impl Stage {
    /// The error of releasing one claim, empty if there is none.
    pub(crate) async fn unprepare(&self, name: &str) -> String {
        let mut client = v1::dra_plugin_client::DraPluginClient::new(self.driver.clone());
        let claims = vec![claim(name)];
        let request = v1::NodeUnprepareResourcesRequest { claims };
        let answer = client.node_unprepare_resources(request).await.unwrap();
        let claims = answer.into_inner().claims;
        claims[&claim(name).uid].error.clone()
    }
}

fn declare(machine: &Machine) {
    machine.declare("tty.yaml", "acme.dev/tty", "/dev/tty?", 2);
    let dra = "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {name: x}\nspec:\n  \
               resource: acme.dev/claimed\n  serve: dra\n  match: [{path: \"/dev/claim?\"}]\n";
    machine.write("claimed.yaml", dra);
    let vendors = machine.path("etc/machinist/vendors.d");
    std::fs::create_dir_all(&vendors).unwrap();
    for (name, rest) in [
        (
            "acme",
            "  connects: program\n  resources: [acme.dev/program]\n  devices: ['/dev/acme*']\n  grace: 60s\n",
        ),
        (
            "other",
            "  connects: plugin\n  resources: [other.dev/*]\n  grace: 60s\n",
        ),
    ] {
        let head = "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {name: ";
        let text = format!("{head}{name}}}\nspec:\n{rest}");
        std::fs::write(vendors.join(format!("{name}.yaml")), text).unwrap();
    }
}

async fn use_devices(machine: &Machine) {
    let stage = Stage::on(machine, FakeClaims::new(), |_| ()).await;
    stage.claims.allocate("c", &[("one", &claimed())]);
    until("a prepared claim", async || stage.prepare("c").await.ok()).await;
    let resources = ["acme.dev/program"];
    let (mut program, _) = machine.hello("acme", "one", &resources).await.unwrap();
    let offered = vec![device("acme0")];
    program.offer(resources[0], 1, offered).await.unwrap();
    let socket = plugins(machine).join("kubelet.sock");
    until("the plugins' directory", async || {
        std::os::unix::net::UnixStream::connect(&socket).ok()
    })
    .await;
    let plugin = Plugin::start(&plugins(machine), PLUGIN, "gpu.sock", &["g0"], None).await;
    let all = |status: &DevicesStatus| listed(status) == LISTED;
    stage.agent.until("every device", all).await;
    assert_eq!(plugin.seen().registered, 1);
    drop(program);
    stage.agent.stop().await;
}

/// Three updates, one of which replaces a file that a user changed, and a rollback of the last.
fn update(machine: &Machine) {
    let write = |path: &str, text: &str| std::fs::write(machine.path(path), text).unwrap();
    write("etc/machine-id", "0123456789abcdef0123456789abcdef\n");
    write("etc/found", "found\n");
    let dir = tempfile::tempdir().unwrap();
    let configs: [&[(&str, &str)]; 3] = [
        &[("/etc/one", "first"), ("/etc/found", "ours")],
        &[
            ("/etc/one", "second"),
            ("/etc/found", "ours"),
            ("/etc/two", "two"),
        ],
        LATEST,
    ];
    for config in configs {
        let source = source(dir.path(), config);
        does(machine, &["apply", "--yes", "--source", &source]);
        if config[0].1 == "first" {
            write("etc/one", "edited\n");
        }
    }
    does(machine, &["rollback", "--yes"]);
    // As `agent::pool` and `agent::quiesce` write them in a cluster and before a shutdown.
    let quiesced = r#"{"units":["monitor.service"]}"#;
    for (name, text) in [("pool", "worker\n"), ("quiesced.json", quiesced)] {
        let path = format!("var/lib/machinist/{name}");
        write(&path, text);
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(machine.path(&path), private).unwrap();
    }
}

pub(crate) async fn write() {
    let machine = Machine::new();
    plug(&machine);
    declare(&machine);
    use_devices(&machine).await;
    update(&machine);
    fixture::write_tree(STATE, machine.root());
}
