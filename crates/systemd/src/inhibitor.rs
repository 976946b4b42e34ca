//! An inhibitor lock of logind, as it lists them.

/// The name shown for our inhibitor locks.
pub const INHIBITOR_NAME: &str = "machinist";

/// An inhibitor lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inhibitor {
    /// What it inhibits: `shutdown`, `sleep`, `idle`, `handle-power-key`, …, separated by colons.
    pub what: String,
    /// The name of the holding program, as given by it.
    pub who: String,
    /// Its reason, for people.
    pub why: String,
    /// `block`, `delay` or `block-weak`.
    pub mode: String,
    /// The holder's user.
    pub uid: u32,
    /// The holder's process id, in the host's numbering.
    pub pid: u32,
}

impl Inhibitor {
    /// Whether it is a `block` lock against shutdown that is not ours. Up to systemd 256 a reboot
    /// by root ignores such locks; machinist respects them in every version.
    pub fn holds_off_shutdown(&self) -> bool {
        self.mode == "block"
            && self.who != INHIBITOR_NAME
            && self.what.split(':').any(|it| it == "shutdown")
    }
}
