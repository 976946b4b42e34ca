//! The examples of the documentation, run as described there.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use machinist_testkit::{
    device_host::{Agent, Machine},
    vendor_program::lists,
};

#[path = "../../docs/vendors/example.rs"]
pub(crate) mod example;

/// A machine for the vendor of the examples, with the file that the page shows.
fn machine() -> Machine {
    let machine = Machine::new();
    machine.plug("acme0");
    machine.plug("acme1");
    let page = std::fs::read_to_string(home().join("docs/vendors/README.md")).unwrap();
    let (_, rest) = page.split_once("```yaml\n").unwrap();
    let (file, _) = rest.split_once("```").unwrap();
    std::fs::create_dir_all(machine.path("etc/machinist/vendors.d")).unwrap();
    std::fs::write(machine.path("etc/machinist/vendors.d/acme.yaml"), file).unwrap();
    machine
}

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Both devices are advertised, and again after an agent restart.
async fn serves(machine: &Machine, mut agent: Agent) {
    for again in [true, false] {
        let expected = ["accelerator/acme0=Healthy", "accelerator/acme1=Healthy"];
        lists(&agent, &expected).await;
        machinist_testkit::vendor_program::vendor_is(&agent, "acme", |one| {
            one.instance.is_some() && one.resources.values().all(|one| one.generation.is_some())
        })
        .await;
        agent.stop().await;
        if !again {
            return;
        }
        agent = machine.agent();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_example_vendor_serves_and_survives_an_agent_restart() {
    let machine = machine();
    let agent = machine.agent();
    let socket = machine.vendor_socket("acme");
    let vendor = tokio::spawn(example::serve(socket.display().to_string()));
    serves(&machine, agent).await;
    vendor.abort();
}

/// Ends the program with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn python(arguments: &[&str]) -> Option<Command> {
    let mut command = Command::new("python3");
    command.args(arguments).current_dir(home());
    let known = Command::new("python3").arg("--version").output();
    known
        .is_ok_and(|known| known.status.success())
        .then_some(command)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_example_vendor_serves_and_survives_an_agent_restart() {
    const FILE: &str = "docs/vendors/example.py";
    let Some(mut compile) = python(&[
        "-c",
        "import ast, sys; ast.parse(open(sys.argv[1]).read())",
        FILE,
    ]) else {
        eprintln!("skipped: there is no python3 here");
        return;
    };
    assert!(compile.status().unwrap().success(), "{FILE} is no Python");
    let grpc = python(&["-c", "import grpc, grpc_tools"])
        .unwrap()
        .stderr(Stdio::null())
        .status();
    if !grpc.unwrap().success() {
        eprintln!("skipped: python3 has no grpcio and grpcio-tools here; {FILE} was only parsed");
        return;
    }
    let machine = machine();
    let agent = machine.agent();
    let mut vendor = python(&[FILE]).unwrap();
    vendor.env("MACHINIST_VENDOR_SOCKET", machine.vendor_socket("acme"));
    let _vendor = Running(vendor.spawn().unwrap());
    serves(&machine, agent).await;
}

#[test]
fn both_example_vendors_are_shorter_than_120_lines() {
    for file in ["docs/vendors/example.py", "docs/vendors/example.rs"] {
        let text = std::fs::read_to_string(home().join(file)).unwrap();
        assert!(
            text.lines().count() < 120,
            "{file}: {}",
            text.lines().count()
        );
    }
}
