//! A pretend machine at the far end of a socket pair: PID 1, logind, timedated and as much of a bus
//! as a connection needs. The code under test speaks to it through real connections.
//!
//! Include it with `#[path = "support/pretend_systemd.rs"] mod pretend_systemd;`.

#![allow(
    dead_code,
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "shared by tests that each use a part of it; a broken pretence should panic"
)]

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Read as _},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use machinist::systemd::Lines;
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
type InhibitorRow = (String, String, String, String, u32, u32);
type Properties = Vec<(String, OwnedVariant)>;

const MANAGER: &str = "/org/freedesktop/systemd1";
const LOGIN: &str = "/org/freedesktop/login1";

/// One unit as the pretend PID 1 shows it.
#[derive(Clone, Debug)]
pub struct Unit {
    pub load: &'static str,
    pub active: &'static str,
    pub sub: &'static str,
    pub file_state: &'static str,
    pub invocation: Vec<u8>,
    pub service_type: &'static str,
    pub result: &'static str,
    pub main_pid: u32,
    pub n_restarts: u32,
    pub can_reload: bool,
    pub refuse_manual_start: bool,
    pub job: u32,
}

impl Default for Unit {
    fn default() -> Self {
        Self {
            load: "loaded",
            active: "active",
            sub: "running",
            file_state: "enabled",
            invocation: vec![7; 16],
            service_type: "simple",
            result: "success",
            main_pid: 4711,
            n_restarts: 0,
            can_reload: true,
            refuse_manual_start: false,
            job: 0,
        }
    }
}

impl Unit {
    pub fn missing() -> Self {
        Self {
            load: "not-found",
            file_state: "",
            ..Self::stopped()
        }
    }

    pub fn stopped() -> Self {
        Self {
            active: "inactive",
            sub: "dead",
            invocation: vec![],
            main_pid: 0,
            ..Self::default()
        }
    }
}

type Change = Box<dyn FnOnce(&mut Unit) + Send>;

/// How the next job of a unit goes.
pub struct Job {
    /// What `JobRemoved` says.
    pub result: &'static str,
    /// `JobRemoved` goes out before the answer to the request.
    pub before_reply: bool,
    /// How long the job takes otherwise.
    pub takes: Duration,
    /// What becomes of the unit when the job ends.
    pub becomes: Change,
    /// What becomes of the unit some time after the job has ended.
    pub then: Option<(Duration, Change)>,
}

impl Job {
    pub fn ends(result: &'static str) -> Self {
        Self {
            result,
            before_reply: false,
            takes: Duration::from_millis(20),
            becomes: Box::new(|_| ()),
            then: None,
        }
    }

    pub fn done() -> Self {
        Self::ends("done")
    }

    #[must_use]
    pub fn before_reply(mut self) -> Self {
        self.before_reply = true;
        self
    }

    #[must_use]
    pub fn taking(mut self, takes: Duration) -> Self {
        self.takes = takes;
        self
    }

    #[must_use]
    pub fn becoming(mut self, change: impl FnOnce(&mut Unit) + Send + 'static) -> Self {
        self.becomes = Box::new(change);
        self
    }

    #[must_use]
    pub fn and_after(
        mut self,
        pause: Duration,
        change: impl FnOnce(&mut Unit) + Send + 'static,
    ) -> Self {
        self.then = Some((pause, Box::new(change)));
        self
    }
}

/// How logind answers the next reboot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reboot {
    /// Accepted and announced.
    #[default]
    Announced,
    /// Accepted and called off.
    Cancelled,
    /// Announced, and the answer never comes.
    ReplyLost,
    /// Accepted, and nothing follows.
    Silent,
    /// Accepted, and the bus goes away before the announcement; the property tells.
    BusRestarts,
    /// Refused by this error.
    Refused(&'static str, &'static str),
}

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
    reload_takes: Duration,
    bus_up: bool,
    manager_on_bus: bool,
    private_up: bool,
    live: Vec<Connection>,
}

/// The machine. Cheap to clone.
#[derive(Clone)]
pub struct PretendSystemd(Arc<Mutex<World>>);

impl PretendSystemd {
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

    /// The sockets that lead here.
    pub fn lines(&self) -> Lines {
        let (bus, private) = (self.clone(), self.clone());
        Lines::none()
            .bus(move || bus.dial(bus.world().bus_up))
            .private(move || private.dial(private.world().private_up))
    }

    pub fn set_unit(&self, name: &str, unit: Unit) {
        self.world().units.insert(name.to_owned(), unit);
    }

    /// The next job of `unit` goes like this. Without a script it is done at once.
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

    pub fn set_reload_takes(&self, takes: Duration) {
        self.world().reload_takes = takes;
    }

    /// Whether the bus's socket and PID 1's own answer from now on.
    pub fn set_up(&self, bus: bool, private: bool) {
        let mut world = self.world();
        (world.bus_up, world.private_up) = (bus, private);
    }

    /// Whether PID 1 has come to the bus.
    pub fn set_manager_on_bus(&self, there: bool) {
        self.world().manager_on_bus = there;
    }

    /// All connections break, as when the bus is restarted.
    pub async fn hang_up(&self) {
        let live = std::mem::take(&mut self.world().live);
        for connection in live {
            connection.close().await.unwrap();
        }
    }

    /// What was asked for, in order, such as `RestartUnit a.service replace`.
    pub fn heard(&self) -> Vec<String> {
        self.world().heard.clone()
    }

    /// How many locks that were taken here are still held.
    pub fn locks_held(&self) -> usize {
        let mut world = self.world();
        world.locks.retain_mut(|end| {
            end.set_nonblocking(true).unwrap();
            let read = end.read(&mut [0]);
            read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        });
        world.locks.len()
    }

    /// Changes a unit and says so to everybody who listens.
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

    /// A shutdown is called off, and nobody hears it.
    pub fn call_off_in_silence(&self) {
        self.world().preparing = false;
    }

    /// logind announces a shutdown, or calls it off.
    pub async fn announce(&self, start: bool) {
        self.world().preparing = start;
        let interface = "org.freedesktop.login1.Manager";
        self.signal(LOGIN, interface, "PrepareForShutdown", &start)
            .await;
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    fn hear(&self, what: String) {
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
            // A listener that has gone hears nothing.
            let to = None::<&str>;
            let _ = connection
                .emit_signal(to, path, interface, name, body)
                .await;
        }
    }

    async fn job(&self, method: &str, unit: &str, mode: &str) -> Result<OwnedObjectPath, Refusal> {
        self.hear(format!("{method} {unit} {mode}"));
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

/// As systemd spells a unit's name in a path: letters and digits stay, others become `_` and hex.
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

/// An error by any name.
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

struct Bus(PretendSystemd);

#[zbus::interface(name = "org.freedesktop.DBus")]
impl Bus {
    async fn hello(&self) -> &str {
        ":1.1"
    }
    async fn add_match(&self, _rule: &str) {}
    async fn remove_match(&self, _rule: &str) {}
    async fn name_has_owner(&self, _name: &str) -> bool {
        self.0.world().manager_on_bus
    }
    // Messages of this connection carry no sender, so there must be no owner to compare it with.
    async fn get_name_owner(&self, name: &str) -> zbus::fdo::Result<String> {
        Err(zbus::fdo::Error::NameHasNoOwner(name.to_owned()))
    }
}

struct Manager(PretendSystemd);

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    async fn subscribe(&self) {
        self.0.hear("Subscribe".to_owned());
    }

    async fn reload(&self) {
        self.0.hear("Reload".to_owned());
        let takes = self.0.world().reload_takes;
        tokio::time::sleep(takes).await;
    }

    async fn load_unit(
        &self,
        name: &str,
        #[zbus(object_server)] server: &ObjectServer,
    ) -> Result<OwnedObjectPath, Refusal> {
        if name.contains(' ') {
            let error = "org.freedesktop.DBus.Error.InvalidArgs";
            return Err(Refusal(
                error.into(),
                format!("Unit name {name} is not valid."),
            ));
        }
        let path = path_of(name);
        let of = || (self.0.clone(), name.to_owned());
        server.at(path.as_str(), PretendUnit(of())).await.unwrap();
        server
            .at(path.as_str(), PretendService(of()))
            .await
            .unwrap();
        Ok(OwnedObjectPath::try_from(path).unwrap())
    }

    async fn start_unit(&self, name: &str, mode: &str) -> Result<OwnedObjectPath, Refusal> {
        self.0.job("StartUnit", name, mode).await
    }
    async fn stop_unit(&self, name: &str, mode: &str) -> Result<OwnedObjectPath, Refusal> {
        self.0.job("StopUnit", name, mode).await
    }
    async fn restart_unit(&self, name: &str, mode: &str) -> Result<OwnedObjectPath, Refusal> {
        self.0.job("RestartUnit", name, mode).await
    }
    async fn try_restart_unit(&self, name: &str, mode: &str) -> Result<OwnedObjectPath, Refusal> {
        self.0.job("TryRestartUnit", name, mode).await
    }
    async fn reload_unit(&self, name: &str, mode: &str) -> Result<OwnedObjectPath, Refusal> {
        self.0.job("ReloadUnit", name, mode).await
    }
    async fn reload_or_restart_unit(
        &self,
        name: &str,
        mode: &str,
    ) -> Result<OwnedObjectPath, Refusal> {
        self.0.job("ReloadOrRestartUnit", name, mode).await
    }

    async fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: Properties,
        _others: Vec<(String, Properties)>,
    ) -> Result<OwnedObjectPath, Refusal> {
        for (property, value) in properties {
            self.0.hear(format!("{property}={value:?}"));
        }
        self.0.job("StartTransientUnit", name, mode).await
    }

    async fn get_job(&self, id: u32) -> Result<OwnedObjectPath, Refusal> {
        if self.0.world().queued.contains(&id) {
            return Ok(job_path(id));
        }
        let error = "org.freedesktop.systemd1.NoSuchJob";
        Err(Refusal(error.into(), format!("Job {id} does not exist.")))
    }

    async fn list_units(&self) -> Vec<Row> {
        let names: Vec<_> = self.0.world().units.keys().cloned().collect();
        names.iter().map(|name| self.0.row(name)).collect()
    }
    async fn list_units_filtered(&self, states: Vec<String>) -> Vec<Row> {
        let mut rows = self.list_units().await;
        rows.retain(|row| states.contains(&row.3));
        rows
    }
    async fn list_units_by_names(&self, names: Vec<String>) -> Vec<Row> {
        names.iter().map(|name| self.0.row(name)).collect()
    }

    #[zbus(property)]
    async fn system_state(&self) -> &str {
        self.0.world().system_state
    }
}

struct PretendUnit((PretendSystemd, String));

impl PretendUnit {
    fn now(&self) -> Unit {
        let found = self.0.0.world().units.get(&self.0.1).cloned();
        found.unwrap_or_else(Unit::missing)
    }
}

#[zbus::interface(name = "org.freedesktop.systemd1.Unit")]
impl PretendUnit {
    #[zbus(property)]
    async fn id(&self) -> String {
        self.0.1.clone()
    }
    #[zbus(property)]
    async fn load_state(&self) -> &str {
        self.now().load
    }
    #[zbus(property)]
    async fn active_state(&self) -> &str {
        self.now().active
    }
    #[zbus(property)]
    async fn sub_state(&self) -> &str {
        self.now().sub
    }
    #[zbus(property)]
    async fn unit_file_state(&self) -> &str {
        self.now().file_state
    }
    #[zbus(property, name = "InvocationID")]
    async fn invocation_id(&self) -> Vec<u8> {
        self.now().invocation
    }
    #[zbus(property)]
    async fn can_reload(&self) -> bool {
        self.now().can_reload
    }
    #[zbus(property)]
    async fn refuse_manual_start(&self) -> bool {
        self.now().refuse_manual_start
    }
    #[zbus(property)]
    async fn job(&self) -> (u32, OwnedObjectPath) {
        (self.now().job, job_path(self.now().job))
    }
}

struct PretendService((PretendSystemd, String));

impl PretendService {
    fn now(&self) -> Unit {
        PretendUnit(self.0.clone()).now()
    }
}

#[zbus::interface(name = "org.freedesktop.systemd1.Service")]
impl PretendService {
    #[zbus(property, name = "Type")]
    async fn service_type(&self) -> &str {
        self.now().service_type
    }
    #[zbus(property)]
    async fn result(&self) -> &str {
        self.now().result
    }
    #[zbus(property, name = "MainPID")]
    async fn main_pid(&self) -> u32 {
        self.now().main_pid
    }
    #[zbus(property, name = "NRestarts")]
    async fn n_restarts(&self) -> u32 {
        self.now().n_restarts
    }
}

struct Login(PretendSystemd);

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Login {
    async fn reboot(&self, interactive: bool) -> Result<(), Refusal> {
        self.0.hear(format!("Reboot {interactive}"));
        self.0.answer_reboot().await
    }

    async fn reboot_with_flags(&self, flags: u64) -> Result<(), Refusal> {
        if !self.0.world().knows_flags {
            let error = "org.freedesktop.DBus.Error.UnknownMethod";
            return Err(Refusal(
                error.into(),
                "Unknown method RebootWithFlags".into(),
            ));
        }
        self.0.hear(format!("RebootWithFlags {flags}"));
        self.0.answer_reboot().await
    }

    async fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> OwnedFd {
        self.0.hear(format!("Inhibit {what} {who} {mode}"));
        self.0.add_inhibitor(what, who, why, mode);
        let (kept, given) = UnixStream::pair().unwrap();
        self.0.world().locks.push(kept);
        std::os::fd::OwnedFd::from(given).into()
    }

    async fn list_inhibitors(&self) -> Vec<InhibitorRow> {
        self.0.world().inhibitors.clone()
    }

    async fn set_wall_message(&self, text: &str, enable: bool) {
        self.0.hear(format!("SetWallMessage {text:?} {enable}"));
    }

    #[zbus(property)]
    async fn preparing_for_shutdown(&self) -> bool {
        self.0.world().preparing
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    async fn inhibit_delay_max_usec(&self) -> u64 {
        5_000_000
    }
}

struct TimeDate(PretendSystemd);

#[zbus::interface(name = "org.freedesktop.timedate1")]
impl TimeDate {
    #[zbus(property, name = "NTPSynchronized")]
    async fn ntp_synchronized(&self) -> zbus::fdo::Result<bool> {
        let ntp = self.0.world().ntp;
        ntp.ok_or_else(|| zbus::fdo::Error::ServiceUnknown("no timedated".to_owned()))
    }
}
