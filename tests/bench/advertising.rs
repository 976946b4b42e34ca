//! The cost of advertising devices to a kubelet, in time and memory.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use machinist_device_plugins::kubelet::api::v1beta1::{
    self as api,
    device_plugin_client::DevicePluginClient,
    device_plugin_server::{DevicePlugin, DevicePluginServer},
};
use prost::Message as _;
use tokio::{
    net::{UnixListener, UnixStream},
    runtime::Runtime,
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, Server},
};

use crate::{agent::Agent, figure, median, milliseconds, ratio, rounds};
use machinist_testkit::{
    device_host::Machine,
    fake_kubelet::{FakeKubelet, ResourceAccounts},
};

/// Set in the echo process, which is the reference; its value is the socket.
const ECHO: &str = "MACHINIST_BENCH_ECHO";
/// How long the agent collects changes before it sends a list.
const DEBOUNCE: Duration = Duration::from_millis(50);
const RESOURCE: &str = "acme.dev/bench";

/// A machine with this many devices of one resource, and an empty config directory.
fn machine(devices: usize) -> (Machine, PathBuf) {
    let machine = Machine::new();
    for number in 0..devices {
        machine.plug(&format!("bench{number}"));
    }
    machine.declare("bench.yaml", RESOURCE, "/dev/bench*", 1);
    let source = machine.path("source");
    std::fs::create_dir(&source).unwrap();
    (machine, source)
}

fn listed(books: &ResourceAccounts, count: usize) -> bool {
    books
        .get(RESOURCE)
        .is_some_and(|known| known.list().len() == count)
}

/// A process that answers immediately from the request alone: the lower bound for an answer.
struct Echo;

#[tonic::async_trait]
impl DevicePlugin for Echo {
    type ListAndWatchStream = tokio_stream::Empty<Result<api::ListAndWatchResponse, Status>>;

    async fn allocate(
        &self,
        request: Request<api::AllocateRequest>,
    ) -> Result<Response<api::AllocateResponse>, Status> {
        let asked = request.into_inner().container_requests.into_iter();
        let answer = asked.map(|container| {
            let device = |id: String| api::DeviceSpec {
                container_path: format!("/dev/{id}"),
                host_path: format!("/dev/{id}"),
                permissions: "rw".to_owned(),
            };
            api::ContainerAllocateResponse {
                devices: container.devices_ids.into_iter().map(device).collect(),
                ..api::ContainerAllocateResponse::default()
            }
        });
        Ok(Response::new(api::AllocateResponse {
            container_responses: answer.collect(),
        }))
    }

    async fn get_device_plugin_options(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<api::DevicePluginOptions>, Status> {
        Err(Status::unimplemented("it only echoes"))
    }

    async fn list_and_watch(
        &self,
        _: Request<api::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        Err(Status::unimplemented("it only echoes"))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<api::PreferredAllocationRequest>,
    ) -> Result<Response<api::PreferredAllocationResponse>, Status> {
        Err(Status::unimplemented("it only echoes"))
    }

    async fn pre_start_container(
        &self,
        _: Request<api::PreStartContainerRequest>,
    ) -> Result<Response<api::PreStartContainerResponse>, Status> {
        Err(Status::unimplemented("it only echoes"))
    }
}

/// Serves the echo forever if this process was started for that.
pub(crate) fn echo_if_asked() {
    let Some(socket) = env::var_os(ECHO) else {
        return;
    };
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let server = Server::builder().add_service(DevicePluginServer::new(Echo));
        server.serve_with_incoming(incoming).await.unwrap();
    });
}

struct Echoing(Child);

impl Drop for Echoing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn echo(socket: &Path) -> Echoing {
    let mut command = Command::new(env::current_exe().unwrap());
    let child = command.env(ECHO, socket).spawn().unwrap();
    let start = Instant::now();
    while !socket.exists() {
        assert!(start.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(1));
    }
    Echoing(child)
}

async fn connect(socket: &Path) -> Channel {
    let address = format!("unix:{}", socket.display());
    // A bound socket is not listening yet.
    while UnixStream::connect(socket).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Endpoint::from_shared(address)
        .unwrap()
        .connect()
        .await
        .unwrap()
}

async fn allocate(client: &mut DevicePluginClient<Channel>, id: String) -> Duration {
    let container = api::ContainerAllocateRequest {
        devices_ids: vec![id],
    };
    let request = api::AllocateRequest {
        container_requests: vec![container],
    };
    let start = Instant::now();
    let answer = client.allocate(request).await.unwrap().into_inner();
    let took = start.elapsed();
    assert_eq!(answer.container_responses[0].devices.len(), 1);
    took
}

fn of_a_hundred(times: &[Duration], part: usize) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[(times.len() - 1) * part / 100]
}

/// `Allocate` of one of 1,000 devices over the socket, alternating with an echo in a process of its
/// own.
pub(crate) fn allocation() {
    const DEVICES: usize = 1_000;
    let runtime = Runtime::new().unwrap();
    let (machine, source) = machine(DEVICES);
    let socket = machine.path("echo.sock");
    let _echo = echo(&socket);
    let (ours, theirs) = runtime.block_on(async {
        let kubelet = FakeKubelet::start(machine.root()).await;
        let _agent = Agent::start(machine.root(), &source, None);
        kubelet.until("all", |books| listed(books, DEVICES)).await;
        let mut agent = kubelet.plugin(RESOURCE);
        let mut echo = DevicePluginClient::new(connect(&socket).await);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for number in 0..rounds(5_000) + 500 {
            let id = format!("bench{}", number % DEVICES);
            let (one, other) = (
                allocate(&mut agent, id.clone()).await,
                allocate(&mut echo, id).await,
            );
            if number >= 500 {
                ours.push(one);
                theirs.push(other);
            }
        }
        (ours, theirs)
    });
    println!(
        "\nAllocate, {DEVICES} devices, {} calls each by turns",
        ours.len()
    );
    for part in [50, 99] {
        let (one, other) = (of_a_hundred(&ours, part), of_a_hundred(&theirs, part));
        let ratio = one.as_secs_f64() / other.as_secs_f64();
        let what = format!("Allocate p{part} / echo");
        figure(&what, ratio, "×", "≤ 1.5", ratio <= 1.5);
        println!("  {:.0} µs / {:.0} µs", micros(one), micros(other));
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// One of 10,000 devices disappears and appears: the time from that to the list at the kubelet.
pub(crate) fn list() {
    const DEVICES: usize = 10_000;
    let runtime = Runtime::new().unwrap();
    let (machine, source) = machine(DEVICES);
    let (times, additions) = runtime.block_on(async {
        let kubelet = FakeKubelet::start(machine.root()).await;
        let _agent = Agent::start(machine.root(), &source, None);
        kubelet.until("all", |books| listed(books, DEVICES)).await;
        let (mut removals, mut additions) = (Vec::new(), Vec::new());
        for round in 0..rounds(10) {
            for gone in [true, false] {
                let before = kubelet.books()[RESOURCE].lists.len();
                let start = Instant::now();
                match gone {
                    true => machine.unplug(&format!("bench{round}")),
                    false => machine.plug(&format!("bench{round}")),
                }
                kubelet
                    .until("the next list", |books| {
                        books[RESOURCE].lists.len() > before
                    })
                    .await;
                // A device that appears again is observed for a while first.
                let times = match gone {
                    true => &mut removals,
                    false => &mut additions,
                };
                times.push(start.elapsed());
                tokio::time::sleep(4 * DEBOUNCE).await;
            }
        }
        (removals, additions)
    });
    let coding: Vec<_> = (0..rounds(10)).map(|_| coding(DEVICES)).collect();
    let change = median(&times).saturating_sub(DEBOUNCE);
    println!("\none of {DEVICES} devices goes, median of {}", times.len());
    let took = milliseconds(change);
    figure(
        "change → list at the kubelet, less the debounce",
        took,
        "ms",
        "≤ 2",
        took <= 2.0,
    );
    let sooner = ratio(&times, &additions);
    let what = "list after a removal / after an addition";
    figure(what, sooner, "×", "< 1", sooner < 1.0);
    println!(
        "  {:.1} ms with it; of it the kubelet's side: reading such a list {:.1} ms; writing one alone takes {:.1} ms",
        milliseconds(median(&times)),
        milliseconds(median(&coding.iter().map(|it| it.1).collect::<Vec<_>>())),
        milliseconds(median(&coding.iter().map(|it| it.0).collect::<Vec<_>>()))
    );
}

/// Encoding such a list, and decoding it like the double.
fn coding(devices: usize) -> (Duration, Duration) {
    let device = |number| api::Device {
        id: format!("bench{number}"),
        health: "Healthy".to_owned(),
        topology: None,
    };
    let list = api::ListAndWatchResponse {
        devices: (0..devices).map(device).collect(),
    };
    let start = Instant::now();
    let bytes = list.encode_to_vec();
    let written = start.elapsed();
    let start = Instant::now();
    let read = api::ListAndWatchResponse::decode(&bytes[..]).unwrap();
    let lines = read
        .devices
        .iter()
        .map(|it| format!("{}={}", it.id, it.health));
    assert_eq!(lines.collect::<Vec<_>>().len(), devices);
    (written, start.elapsed())
}

/// 50 resources of 20 devices each, compared with none.
pub(crate) fn memory() {
    const CALM: Duration = Duration::from_secs(12);
    let runtime = Runtime::new().unwrap();
    let resident = |resources: usize| {
        let machine = Machine::new();
        let source = machine.path("source");
        std::fs::create_dir(&source).unwrap();
        for resource in 0..resources {
            for device in 0..20 {
                machine.plug(&format!("r{resource}-{device}"));
            }
            let (name, path) = (
                format!("acme.dev/r{resource}"),
                format!("/dev/r{resource}-*"),
            );
            machine.declare(&format!("{resource}.yaml"), &name, &path, 1);
        }
        runtime.block_on(async {
            let kubelet = FakeKubelet::start(machine.root()).await;
            let agent = Agent::start(machine.root(), &source, None);
            kubelet
                .until("all", |books| {
                    books.len() == resources && books.values().all(|it| it.list().len() == 20)
                })
                .await;
            tokio::time::sleep(CALM).await;
            (agent.mebibytes("VmRSS:"), agent.mebibytes("RssAnon:"))
        })
    };
    let (idle, with) = (resident(0), resident(50));
    println!("\n50 resources × 20 devices against none");
    let more = with.0 - idle.0;
    figure("resident memory more", more, "MiB", "≤ 2", more <= 2.0);
    println!(
        "  anonymous {:.1} MiB of {:.1} MiB",
        with.1 - idle.1,
        with.1
    );
}

/// From the start of a kubelet until 50 resources are registered again.
pub(crate) fn restart() {
    const RESOURCES: usize = 50;
    let runtime = Runtime::new().unwrap();
    let machine = Machine::new();
    let source = machine.path("source");
    std::fs::create_dir(&source).unwrap();
    for resource in 0..RESOURCES {
        machine.plug(&format!("r{resource}"));
        let (name, path) = (format!("acme.dev/r{resource}"), format!("/dev/r{resource}"));
        machine.declare(&format!("{resource}.yaml"), &name, &path, 2);
    }
    let all = |books: &ResourceAccounts| {
        let listed = books.values().filter(|one| one.list().len() == 2);
        listed.count() == RESOURCES
    };
    let times: Vec<_> = runtime.block_on(async {
        let mut kubelet = FakeKubelet::start(machine.root()).await;
        let _agent = Agent::start(machine.root(), &source, None);
        kubelet.until("all", all).await;
        let mut times = Vec::new();
        for _ in 0..rounds(10) {
            drop(kubelet);
            kubelet = FakeKubelet::start(machine.root()).await;
            let start = Instant::now();
            kubelet.until("all again", all).await;
            times.push(start.elapsed());
        }
        times
    });
    let took = milliseconds(median(&times));
    println!("\na kubelet starts, median of {}", times.len());
    let what = "50 resources registered again";
    figure(what, took, "ms", "≤ 50", took <= 50.0);
}

/// From the start of the process to the first registration, with a saved list.
pub(crate) fn start() {
    let runtime = Runtime::new().unwrap();
    let (machine, source) = machine(20);
    let mut times = Vec::new();
    for _ in 0..=rounds(20) {
        let took = runtime.block_on(async {
            let kubelet = FakeKubelet::start(machine.root()).await;
            let start = Instant::now();
            let agent = Agent::start(machine.root(), &source, None);
            kubelet
                .until("a registration", |books| books.contains_key(RESOURCE))
                .await;
            let took = start.elapsed();
            kubelet.until("the list", |books| listed(books, 20)).await;
            // It is killed, so the next one finds the saved list.
            drop(agent);
            took
        });
        times.push(took);
    }
    // The first one had no saved list.
    let took = milliseconds(median(&times[1..]));
    println!("\nstart with a saved list, median of {}", times.len() - 1);
    figure(
        "start of the process → first registration",
        took,
        "ms",
        "≤ 50",
        took <= 50.0,
    );
}
