//! A fake machine at the other end of a socket pair: PID 1, logind, timedated and as much of a bus
//! as a connection needs. The code under test speaks to it through real connections.

#![allow(
    dead_code,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "shared by tests that each use a part of it; a broken pretence should panic"
)]

mod interfaces;
mod model;

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Read as _},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use interfaces::{Bus, Login, Manager, TimeDate};
use machinist_systemd::BusAddresses;
pub use model::{Job, Reboot, Unit};
use zbus::{
    Connection, DBusError, Guid, Message, ObjectServer, OwnedFd, OwnedObjectPath, OwnedVariant,
    Variant, connection::Builder, message::Header, names::ErrorName,
};

type Row = (
    String,
    String,
    String,
    String,
    String,
    String,
    OwnedObjectPath,
    u32,
    String,
    OwnedObjectPath,
);
type JobRow = (
    u32,
    String,
    String,
    String,
    OwnedObjectPath,
    OwnedObjectPath,
);
type InhibitorRow = (String, String, String, String, u32, u32);
type Properties = Vec<(String, OwnedVariant)>;

const MANAGER: &str = "/org/freedesktop/systemd1";
const LOGIN: &str = "/org/freedesktop/login1";

#[derive(Default)]
struct World {
    units: BTreeMap<String, Unit>,
    jobs: BTreeMap<String, VecDeque<Job>>,
    refusals: BTreeMap<String, &'static str>,
    queued: Vec<u32>,
    last_job: u32,
    heard: Vec<String>,
    inhibitors: Vec<InhibitorRow>,
    locks: Vec<UnixStream>,
    reboot: Reboot,
    knows_flags: bool,
    preparing: bool,
    ntp: Option<bool>,
    system_state: &'static str,
    boot_jobs: Vec<String>,
    userspace: u64,
    soft_reboots: Option<u32>,
    reload_takes: Duration,
    bus_up: bool,
    manager_on_bus: bool,
    private_up: bool,
    live: Vec<Connection>,
}

/// The machine. Cheap to clone.
#[derive(Clone)]
pub struct FakeSystemd(Arc<Mutex<World>>);

impl FakeSystemd {
    /// A machine with a bus, logind and PID 1's own socket, and no units.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(World {
            knows_flags: true,
            bus_up: true,
            manager_on_bus: true,
            private_up: true,
            system_state: "running",
            ..World::default()
        })))
    }

    /// Connections to this machine.
    pub fn lines(&self) -> BusAddresses {
        let (bus, private) = (self.clone(), self.clone());
        BusAddresses::none()
            .bus(move || bus.dial(bus.world().bus_up))
            .private(move || private.dial(private.world().private_up))
    }

    pub fn set_unit(&self, name: &str, unit: Unit) {
        self.world().units.insert(name.to_owned(), unit);
    }

    /// Sets how the next job of `unit` runs. Without a script it succeeds immediately.
    pub fn script(&self, unit: &str, job: Job) {
        let mut world = self.world();
        world
            .jobs
            .entry(unit.to_owned())
            .or_default()
            .push_back(job);
    }

    /// Every job of `unit` is refused with `org.freedesktop.systemd1.<error>`.
    pub fn refuse(&self, unit: &str, error: &'static str) {
        self.world().refusals.insert(unit.to_owned(), error);
    }

    pub fn on_reboot(&self, reboot: Reboot) {
        self.world().reboot = reboot;
    }

    /// A logind from before `RebootWithFlags`.
    pub fn without_reboot_flags(&self) {
        self.world().knows_flags = false;
    }

    pub fn add_inhibitor(&self, what: &str, who: &str, why: &str, mode: &str) {
        let own = |text: &str| text.to_owned();
        let row = (own(what), own(who), own(why), own(mode), 0, 99);
        self.world().inhibitors.push(row);
    }

    pub fn set_ntp(&self, synchronized: Option<bool>) {
        self.world().ntp = synchronized;
    }

    pub fn set_system_state(&self, state: &'static str) {
        self.world().system_state = state;
    }

    /// The units whose start is queued.
    pub fn set_boot_jobs(&self, units: &[&str]) {
        self.world().boot_jobs = units.iter().map(|unit| (*unit).to_owned()).collect();
    }

    /// When userspace was started, and the count of soft reboots; `None` for a systemd before 256.
    pub fn set_userspace(&self, started: u64, soft_reboots: Option<u32>) {
        let mut world = self.world();
        (world.userspace, world.soft_reboots) = (started, soft_reboots);
    }

    pub fn set_reload_takes(&self, takes: Duration) {
        self.world().reload_takes = takes;
    }

    /// Whether the bus's socket and PID 1's own socket answer from now on.
    pub fn set_up(&self, bus: bool, private: bool) {
        let mut world = self.world();
        (world.bus_up, world.private_up) = (bus, private);
    }

    /// Whether PID 1 has connected to the bus.
    pub fn set_manager_on_bus(&self, there: bool) {
        self.world().manager_on_bus = there;
    }

    /// Closes all connections, as a restart of the bus does.
    pub async fn hang_up(&self) {
        let live = std::mem::take(&mut self.world().live);
        for connection in live {
            connection.close().await.unwrap();
        }
    }

    /// The requests received, in order, such as `RestartUnit a.service replace`.
    pub fn requests(&self) -> Vec<String> {
        self.world().heard.clone()
    }

    /// How many inhibitor locks taken here are still held.
    pub fn locks_held(&self) -> usize {
        let mut world = self.world();
        world.locks.retain_mut(|end| {
            end.set_nonblocking(true).unwrap();
            let read = end.read(&mut [0]);
            read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        });
        world.locks.len()
    }

    /// Changes a unit and sends a signal to all connections.
    pub async fn change(&self, name: &str, change: impl FnOnce(&mut Unit)) {
        change(self.world().units.entry(name.to_owned()).or_default());
        let changed: BTreeMap<&str, Variant<'_>> = BTreeMap::new();
        let body = (
            "org.freedesktop.systemd1.Unit",
            changed,
            vec!["ActiveState"],
        );
        let interface = "org.freedesktop.DBus.Properties";
        self.signal(&path_of(name), interface, "PropertiesChanged", &body)
            .await;
    }

    /// Cancels a shutdown without sending a signal.
    pub fn cancel_without_signal(&self) {
        self.world().preparing = false;
    }

    /// logind announces a shutdown, or its cancellation.
    pub async fn announce(&self, start: bool) {
        self.world().preparing = start;
        let interface = "org.freedesktop.login1.Manager";
        self.signal(LOGIN, interface, "PrepareForShutdown", &start)
            .await;
    }

    /// Restarts logind: its locks are lost, and the bus announces the new owner of its name.
    pub async fn restart_logind(&self) {
        {
            let mut world = self.world();
            world.locks.clear();
            world.inhibitors.clear();
        }
        let body = ("org.freedesktop.login1", "", ":1.7");
        let bus = "org.freedesktop.DBus";
        let told = Message::signal("/org/freedesktop/DBus", bus, "NameOwnerChanged")
            .sender(bus)
            .build(&body)
            .unwrap();
        let live = self.world().live.clone();
        for connection in live {
            // A closed connection is not an error.
            let _ = connection.send(&told).await;
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    fn record_request(&self, what: String) {
        self.world().heard.push(what);
    }

    fn dial(&self, up: bool) -> io::Result<UnixStream> {
        if !up {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (near, far) = UnixStream::pair()?;
        let machine = self.clone();
        tokio::spawn(async move { machine.serve(far).await });
        Ok(near)
    }

    async fn serve(self, far: UnixStream) {
        let connection = Builder::unix_stream(far)
            .server(Guid::generate())
            .p2p()
            .serve_at("/org/freedesktop/DBus", Bus(self.clone()))
            .serve_at(MANAGER, Manager(self.clone()))
            .serve_at(LOGIN, Login(self.clone()))
            .serve_at("/org/freedesktop/timedate1", TimeDate(self.clone()))
            .build()
            .await;
        self.world().live.extend(connection.ok());
    }

    async fn signal<B>(&self, path: &str, interface: &str, name: &str, body: &B)
    where
        B: serde::Serialize + zbus::DynamicType,
    {
        let live = self.world().live.clone();
        for connection in live {
            // A closed connection is not an error.
            let to = None::<&str>;
            let _ = connection
                .emit_signal(to, path, interface, name, body)
                .await;
        }
    }

    async fn job(&self, method: &str, unit: &str, mode: &str) -> Result<OwnedObjectPath, Refusal> {
        self.record_request(format!("{method} {unit} {mode}"));
        if let Some(error) = self.world().refusals.get(unit) {
            return Err(Refusal(
                format!("org.freedesktop.systemd1.{error}"),
                "no".into(),
            ));
        }
        let (id, job) = {
            let mut world = self.world();
            world.last_job += 1;
            let id = world.last_job;
            world.queued.push(id);
            let script = world.jobs.get_mut(unit).and_then(VecDeque::pop_front);
            (id, script.unwrap_or_else(Job::done))
        };
        if job.before_reply {
            self.finish(id, unit, job).await;
        } else {
            let (machine, unit) = (self.clone(), unit.to_owned());
            tokio::spawn(async move {
                tokio::time::sleep(job.takes).await;
                machine.finish(id, &unit, job).await;
            });
        }
        Ok(job_path(id))
    }

    async fn finish(&self, id: u32, unit: &str, job: Job) {
        self.world().queued.retain(|queued| *queued != id);
        self.change(unit, job.becomes).await;
        let body = (id, job_path(id), unit, job.result);
        let interface = "org.freedesktop.systemd1.Manager";
        self.signal(MANAGER, interface, "JobRemoved", &body).await;
        if let Some((pause, change)) = job.then {
            let (machine, unit) = (self.clone(), unit.to_owned());
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                machine.change(&unit, change).await;
            });
        }
    }

    fn row(&self, name: &str) -> Row {
        let found = self.world().units.get(name).cloned();
        let unit = found.unwrap_or_else(Unit::missing);
        let own = |text: &str| text.to_owned();
        let path = OwnedObjectPath::try_from(path_of(name)).unwrap();
        (
            own(name),
            own("pretended"),
            own(unit.load),
            own(unit.active),
            own(unit.sub),
            own(""),
            path,
            unit.job,
            own(""),
            job_path(unit.job),
        )
    }

    async fn answer_reboot(&self) -> Result<(), Refusal> {
        let script = self.world().reboot;
        match script {
            Reboot::Announced => self.announce(true).await,
            Reboot::Cancelled => self.announce(false).await,
            Reboot::Silent => {}
            Reboot::ReplyLost => {
                self.announce(true).await;
                let name = "org.freedesktop.DBus.Error.NoReply";
                return Err(Refusal(name.into(), "the sender has gone".into()));
            }
            Reboot::BusRestarts => {
                self.world().preparing = true;
                let machine = self.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    machine.hang_up().await;
                });
            }
            Reboot::Refused(name, text) => return Err(Refusal(name.into(), text.into())),
        }
        Ok(())
    }
}

fn job_path(id: u32) -> OwnedObjectPath {
    let path = if id == 0 {
        "/".to_owned()
    } else {
        format!("{MANAGER}/job/{id}")
    };
    OwnedObjectPath::try_from(path).unwrap()
}

/// systemd's escaping of a unit name in an object path: letters and digits stay, others become `_`
/// and hex.
fn path_of(unit: &str) -> String {
    let escaped: String = unit
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            other => format!("_{other:02x}"),
        })
        .collect();
    format!("{MANAGER}/unit/{escaped}")
}

/// A D-Bus error with any name.
#[derive(Debug)]
pub struct Refusal(String, String);

impl DBusError for Refusal {
    fn create_reply(&self, call: &Header<'_>) -> zbus::Result<Message> {
        Message::error(call, self.name()).build(&self.1)
    }

    fn name(&self) -> ErrorName<'_> {
        ErrorName::try_from(self.0.as_str()).unwrap()
    }

    fn description(&self) -> Option<&str> {
        Some(&self.1)
    }
}
