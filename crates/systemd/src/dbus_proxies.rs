//! The parts of the services' interfaces that machinist calls (org.freedesktop.systemd1(5),
//! org.freedesktop.login1(5), org.freedesktop.timedate1(5)), as of systemd 252, and of rpm-ostree's daemon.

use std::collections::HashMap;

use zbus::{OwnedFd, OwnedObjectPath, Variant, fdo};

/// One row of `ListUnits`: name, description, load, active, sub, followed unit, path, job id, job
/// type, job path.
pub(super) type UnitRow = (
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

/// One row of `ListJobs`: id, unit, type, state, job path, unit path.
pub(super) type JobRow = (
    u32,
    String,
    String,
    String,
    OwnedObjectPath,
    OwnedObjectPath,
);

/// The columns what, who, why, mode, uid and pid.
pub(super) type InhibitorRow = (String, String, String, String, u32, u32);

/// Replaces a conflicting queued job, as `systemctl` does without `--job-mode`.
pub(super) const REPLACE_MODE: &str = "replace";

/// A property of a transient unit.
pub(super) type Property<'a> = (&'a str, Variant<'a>);

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
pub(super) trait Manager {
    fn subscribe(&self) -> zbus::Result<()>;
    fn reload(&self) -> zbus::Result<()>;
    fn load_unit(&self, name: &str) -> zbus::Result<OwnedObjectPath>;
    fn start_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn restart_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn try_restart_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn reload_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn reload_or_restart_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[Property<'_>],
        others: &[(&str, Vec<Property<'_>>)],
    ) -> zbus::Result<OwnedObjectPath>;
    fn get_job(&self, id: u32) -> zbus::Result<OwnedObjectPath>;
    fn list_jobs(&self) -> zbus::Result<Vec<JobRow>>;
    fn list_units(&self) -> zbus::Result<Vec<UnitRow>>;
    fn list_units_filtered(&self, states: &[&str]) -> zbus::Result<Vec<UnitRow>>;
    fn list_units_by_names(&self, names: &[&str]) -> zbus::Result<Vec<UnitRow>>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn system_state(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn userspace_timestamp_monotonic(&self) -> zbus::Result<u64>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn soft_reboots_count(&self) -> zbus::Result<u32>;
    #[zbus(signal)]
    fn job_removed(
        &self,
        id: u32,
        job: zbus::ObjectPath<'_>,
        unit: &str,
        result: &str,
    ) -> zbus::Result<()>;
}

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Unit",
    default_service = "org.freedesktop.systemd1",
    assume_defaults = false
)]
pub(super) trait Unit {
    #[zbus(property(emits_changed_signal = "false"))]
    fn job(&self) -> zbus::Result<(u32, OwnedObjectPath)>;
}

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Service",
    default_service = "org.freedesktop.systemd1",
    assume_defaults = false
)]
pub(super) trait Service {
    #[zbus(property(emits_changed_signal = "false"), name = "Type")]
    fn service_type(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn result(&self) -> zbus::Result<String>;
    #[zbus(property(emits_changed_signal = "false"), name = "MainPID")]
    fn main_pid(&self) -> zbus::Result<u32>;
    #[zbus(property(emits_changed_signal = "false"), name = "NRestarts")]
    fn n_restarts(&self) -> zbus::Result<u32>;
    #[zbus(property(emits_changed_signal = "false"), name = "IPIngressBytes")]
    fn ip_ingress_bytes(&self) -> zbus::Result<u64>;
}

/// logind's name on the bus.
pub(super) const LOGIND_BUS_NAME: &str = "org.freedesktop.login1";

#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
pub(super) trait Login {
    fn reboot(&self, interactive: bool) -> zbus::Result<()>;
    fn reboot_with_flags(&self, flags: u64) -> zbus::Result<()>;
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<OwnedFd>;
    fn list_inhibitors(&self) -> zbus::Result<Vec<InhibitorRow>>;
    fn set_wall_message(&self, text: &str, enable: bool) -> zbus::Result<()>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn preparing_for_shutdown(&self) -> zbus::Result<bool>;
    #[zbus(property(emits_changed_signal = "false"), name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> zbus::Result<u64>;
    #[zbus(signal)]
    fn prepare_for_shutdown(&self, start: bool) -> zbus::Result<()>;
}

#[zbus::proxy(
    interface = "org.freedesktop.timedate1",
    default_service = "org.freedesktop.timedate1",
    default_path = "/org/freedesktop/timedate1"
)]
pub(super) trait TimeDate {
    #[zbus(property(emits_changed_signal = "false"), name = "NTPSynchronized")]
    fn ntp_synchronized(&self) -> fdo::Result<bool>;
}

#[zbus::proxy(
    interface = "org.projectatomic.rpmostree1.Sysroot",
    default_service = "org.projectatomic.rpmostree1",
    default_path = "/org/projectatomic/rpmostree1/Sysroot"
)]
pub(super) trait RpmOstreeSysroot {
    fn register_client(&self, options: HashMap<&str, Variant<'_>>) -> zbus::Result<()>;
    #[zbus(property(emits_changed_signal = "false"))]
    fn booted(&self) -> zbus::Result<OwnedObjectPath>;
}

#[zbus::proxy(
    interface = "org.projectatomic.rpmostree1.OS",
    default_service = "org.projectatomic.rpmostree1",
    assume_defaults = false
)]
pub(super) trait RpmOstreeOs {
    /// Returns the address of the transaction.
    fn update_deployment(
        &self,
        modifiers: HashMap<&str, Variant<'_>>,
        options: HashMap<&str, Variant<'_>>,
    ) -> zbus::Result<String>;
}

#[zbus::proxy(
    interface = "org.projectatomic.rpmostree1.Transaction",
    default_service = "org.projectatomic.rpmostree1",
    default_path = "/"
)]
pub(super) trait RpmOstreeTransaction {
    fn start(&self) -> zbus::Result<bool>;
    fn cancel(&self) -> zbus::Result<()>;
    #[zbus(signal)]
    fn finished(&self, success: bool, error_message: &str) -> zbus::Result<()>;
}
