//! A vendor's program that is controlled by the test.

use std::time::Duration;

use machinist_device::{status::DevicesStatus, vendor_declaration::KIND};
use machinist_device_plugins::vendor_api::{
    LiveVendorStatus,
    api::v1::{
        self as api, FromAgent, FromVendor, from_agent, from_vendor::Said,
        vendor_client::VendorClient,
    },
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Endpoint};

use crate::{
    WAIT_TIMEOUT,
    device_host::{Agent, Machine},
};

/// One session of a vendor's program. Dropping it ends the program without a goodbye.
pub struct Program {
    to: mpsc::Sender<FromVendor>,
    from: Streaming<FromAgent>,
}

/// How a program connects to its socket.
pub struct ConnectOptions {
    /// The HTTP/2 flow-control window in bytes: how much it accepts before it has read it.
    pub window: Option<u32>,
}

impl Machine {
    /// Declares the vendor `name` with further lines of its spec.
    pub fn vendor(&self, name: &str, spec: &str) {
        self.vendor_of(name, "[acme.dev/*]", spec);
    }

    /// A vendor that may offer these resources.
    pub fn vendor_of(&self, name: &str, resources: &str, spec: &str) {
        let dir = self.path("etc/machinist/vendors.d");
        std::fs::create_dir_all(&dir).unwrap();
        let text = format!(
            "apiVersion: machinist.dev/v1\nkind: {KIND}\nmetadata: {{name: {name}}}\nspec:\n  \
             connects: program\n  resources: {resources}\n  devices: ['/dev/acme*']\n  grace: 1s\n{spec}"
        );
        std::fs::write(dir.join(format!("{name}.yaml")), text).unwrap();
    }

    pub fn vendor_socket(&self, name: &str) -> std::path::PathBuf {
        self.path(&format!("run/machinist/vendors/{name}/agent.sock"))
    }

    /// Opens a stream and sends nothing.
    pub async fn open(&self, name: &str, manner: ConnectOptions) -> Result<Program, Status> {
        let socket = self.vendor_socket(name);
        wait("the socket", || socket.exists()).await;
        let mut endpoint = Endpoint::new(format!("unix:{}", socket.display())).unwrap();
        if let Some(window) = manner.window {
            endpoint = endpoint.initial_stream_window_size(window);
        }
        let began = tokio::time::Instant::now();
        let channel = loop {
            // Between `bind` and `listen` a socket refuses connections.
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(error) => assert!(began.elapsed() < WAIT_TIMEOUT, "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let (to, said) = mpsc::channel(2);
        let stream = ReceiverStream::new(said);
        let from = VendorClient::new(channel).session(stream).await?;
        let from = from.into_inner();
        Ok(Program { to, from })
    }

    /// Opens a session and sends Hello.
    pub async fn hello(
        &self,
        name: &str,
        instance: &str,
        resources: &[&str],
    ) -> Result<(Program, api::Welcome), Status> {
        let mut program = self.open(name, ConnectOptions { window: None }).await?;
        let welcome = program.hello(name, instance, resources).await?;
        Ok((program, welcome))
    }
}

impl Program {
    pub async fn hello(
        &mut self,
        name: &str,
        instance: &str,
        resources: &[&str],
    ) -> Result<api::Welcome, Status> {
        let resources = resources.iter().map(|one| (*one).to_owned()).collect();
        self.send_message(Said::Hello(api::Hello {
            api_versions: vec!["v1".into()],
            vendor: name.into(),
            instance: instance.into(),
            resources,
        }))
        .await;
        match self.next().await? {
            from_agent::Said::Welcome(welcome) => Ok(welcome),
            other => panic!("expected Welcome, got {other:?}"),
        }
    }

    pub async fn send_message(&self, said: Said) {
        // The end of a session is reported by the next receive.
        let _ = self.to.send(FromVendor { said: Some(said) }).await;
    }

    pub async fn next(&mut self) -> Result<from_agent::Said, Status> {
        let next = timeout(WAIT_TIMEOUT, self.from.message()).await;
        match next.expect("no message from the agent")? {
            Some(said) => Ok(said.said.unwrap()),
            None => Err(Status::ok("the agent closed the session")),
        }
    }

    /// Offers devices, and returns the verdict.
    pub async fn offer(
        &mut self,
        resource: &str,
        generation: u64,
        devices: Vec<api::Device>,
    ) -> Result<(), api::Rejected> {
        self.snapshot(api::Snapshot {
            resource: resource.into(),
            generation,
            devices,
            asks: None,
        })
        .await
    }

    pub async fn snapshot(&mut self, snapshot: api::Snapshot) -> Result<(), api::Rejected> {
        self.send_message(Said::Snapshot(snapshot)).await;
        match self.next().await.unwrap() {
            from_agent::Said::Accepted(_) => Ok(()),
            from_agent::Said::Rejected(rejected) => Err(rejected),
            other => panic!("expected Accepted or Rejected, got {other:?}"),
        }
    }

    pub async fn question(&mut self) -> api::Question {
        match self.next().await.unwrap() {
            from_agent::Said::Question(question) => question,
            other => panic!("expected a request, got {other:?}"),
        }
    }

    pub async fn answer(&self, id: u64, answer: api::answer::Answer) {
        let answer = Some(answer);
        self.send_message(Said::Answer(api::Answer { id, answer }))
            .await;
    }

    /// Ends the session properly: it returns when the agent has ended its side. A program that is dropped may instead
    /// look like one whose connection was lost.
    pub async fn close(mut self) {
        let (closed, _) = mpsc::channel(1);
        drop(std::mem::replace(&mut self.to, closed));
        self.wait_for_end().await;
    }

    /// Waits for the end of the session.
    pub async fn wait_for_end(&mut self) -> Status {
        loop {
            if let Err(status) = self.next().await {
                return status;
            }
        }
    }
}

/// A healthy device whose node has the same name.
pub fn device(id: &str) -> api::Device {
    api::Device {
        id: id.into(),
        health: api::Health::Healthy.into(),
        recipe: Some(node(&format!("/dev/{id}"))),
        ..api::Device::default()
    }
}

pub fn node(path: &str) -> api::Recipe {
    api::Recipe {
        nodes: vec![api::Node {
            path: path.into(),
            ..api::Node::default()
        }],
        ..api::Recipe::default()
    }
}

/// Every device as `resource/id=health (reason)`.
pub fn listed(status: &DevicesStatus) -> Vec<String> {
    let each = status.devices.iter().flat_map(|resource| {
        let name = resource.resource.as_str().rsplit('/').next().unwrap();
        resource.devices.iter().map(move |one| {
            let why = one.reason.as_deref();
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            format!("{name}/{}={}{why}", one.id, one.health)
        })
    });
    each.collect()
}

/// Waits for a list of devices.
pub async fn lists(agent: &Agent, expected: &[&str]) {
    agent
        .until(&format!("{expected:?}"), |status| {
            listed(status) == expected
        })
        .await;
}

pub async fn wait(what: &str, done: impl Fn() -> bool) {
    let polled = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        timeout(WAIT_TIMEOUT, polled).await.is_ok(),
        "not within {WAIT_TIMEOUT:?}: {what}"
    );
}

/// Waits until the vendor's status satisfies the condition.
pub async fn vendor_is(agent: &Agent, name: &str, wanted: impl Fn(&LiveVendorStatus) -> bool) {
    let vendors = agent.handle.vendors();
    let is = || {
        vendors
            .status()
            .iter()
            .any(|one| one.vendor == name && wanted(one))
    };
    wait(&format!("{name}: {:?}", vendors.status()), is).await;
}
