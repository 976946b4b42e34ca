//! The bus interfaces of the fake machine.

use super::*;

pub(super) struct Bus(pub(super) FakeSystemd);

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

pub(super) struct Manager(pub(super) FakeSystemd);

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    async fn subscribe(&self) {
        self.0.record_request("Subscribe".to_owned());
    }

    async fn reload(&self) {
        self.0.record_request("Reload".to_owned());
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
        server.at(path.as_str(), FakeUnit(of())).await.unwrap();
        server.at(path.as_str(), FakeService(of())).await.unwrap();
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
            self.0.record_request(format!("{property}={value:?}"));
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

    async fn list_jobs(&self) -> Vec<JobRow> {
        let own = |text: &str| text.to_owned();
        let jobs = self.0.world().boot_jobs.clone();
        let row = |(id, unit): (u32, String)| {
            let path = OwnedObjectPath::try_from(path_of(&unit)).unwrap();
            (id, unit, own("start"), own("running"), job_path(id), path)
        };
        (1..).zip(jobs).map(row).collect()
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

    #[zbus(property)]
    async fn userspace_timestamp_monotonic(&self) -> u64 {
        self.0.world().userspace
    }

    #[zbus(property)]
    async fn soft_reboots_count(&self) -> zbus::fdo::Result<u32> {
        let count = self.0.world().soft_reboots;
        count.ok_or_else(|| zbus::fdo::Error::UnknownProperty("SoftRebootsCount".to_owned()))
    }
}

struct FakeUnit((FakeSystemd, String));

impl FakeUnit {
    fn now(&self) -> Unit {
        let found = self.0.0.world().units.get(&self.0.1).cloned();
        found.unwrap_or_else(Unit::missing)
    }
}

#[zbus::interface(name = "org.freedesktop.systemd1.Unit")]
impl FakeUnit {
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

struct FakeService((FakeSystemd, String));

impl FakeService {
    fn now(&self) -> Unit {
        FakeUnit(self.0.clone()).now()
    }
}

#[zbus::interface(name = "org.freedesktop.systemd1.Service")]
impl FakeService {
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

pub(super) struct Login(pub(super) FakeSystemd);

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Login {
    async fn reboot(&self, interactive: bool) -> Result<(), Refusal> {
        self.0.record_request(format!("Reboot {interactive}"));
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
        self.0.record_request(format!("RebootWithFlags {flags}"));
        self.0.answer_reboot().await
    }

    async fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> OwnedFd {
        self.0
            .record_request(format!("Inhibit {what} {who} {mode}"));
        self.0.add_inhibitor(what, who, why, mode);
        let (kept, given) = UnixStream::pair().unwrap();
        self.0.world().locks.push(kept);
        std::os::fd::OwnedFd::from(given).into()
    }

    async fn list_inhibitors(&self) -> Vec<InhibitorRow> {
        self.0.world().inhibitors.clone()
    }

    async fn set_wall_message(&self, text: &str, enable: bool) {
        self.0
            .record_request(format!("SetWallMessage {text:?} {enable}"));
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

pub(super) struct TimeDate(pub(super) FakeSystemd);

#[zbus::interface(name = "org.freedesktop.timedate1")]
impl TimeDate {
    #[zbus(property, name = "NTPSynchronized")]
    async fn ntp_synchronized(&self) -> zbus::fdo::Result<bool> {
        let ntp = self.0.world().ntp;
        ntp.ok_or_else(|| zbus::fdo::Error::ServiceUnknown("no timedated".to_owned()))
    }
}
