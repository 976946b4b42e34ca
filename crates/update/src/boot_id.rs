//! Identifies the running userspace, because one boot of the kernel has a new userspace after each soft reboot.
//!
//! A soft reboot does not change the boot ID and leaves no trace on the disk. PID 1 reports when this userspace
//! started and, since systemd 256, how many soft reboots there were. Each process that begins work on a live root
//! queries PID 1 and stores the answer in a note below `/run`, which survives a soft reboot and is lost when the
//! kernel restarts; all other code reads the note. In this way each userspace has its own name, which the journal
//! uses for boots: the boot ID, with `+N` after the N-th soft reboot.

use super::{
    service_port::{Services, Userspace},
    store,
};
use machinist_base::{abs_path::AbsPath, error_chain::chain};
use machinist_rootfs::{Root, RootError};

/// It is not below `/run/machinist`, which is removed with the agent.
const NOTE_PATH: &str = "/run/machinist.userspace";

/// Maximum length of the note: a boot ID and two numbers.
const MAX_NOTE_BYTES: u64 = 256;

/// The last note in this boot of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UserspaceNote {
    kernel: String,
    started: u64,
    number: u32,
}

impl UserspaceNote {
    fn decode(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        Some(Self {
            kernel: words.next()?.to_owned(),
            started: words.next()?.parse().ok()?,
            number: words.next()?.parse().ok()?,
        })
    }

    fn encode(&self) -> String {
        format!("{} {} {}\n", self.kernel, self.started, self.number)
    }
}

/// Returns the name of the running boot: the boot ID, with a number after a soft reboot; `None` if no kernel runs
/// for the root (offline, or in a sandbox).
pub fn current(root: &Root) -> Result<Option<String>, RootError> {
    let kernel = kernel_boot_id(root)?;
    kernel.map(|id| name(root, id)).transpose()
}

/// Returns the kernel's boot ID.
fn kernel_boot_id(root: &Root) -> Result<Option<String>, RootError> {
    store::read_id(root, &store::paths::boot_id())
}

/// Queries the running userspace and stores it in the note; returns false if it is unknown. The caller must do this
/// before it compares boots, because an unnoticed soft reboot looks like no reboot. If the service manager does not
/// answer, work continues: it is queried again before a reboot is requested.
pub async fn record_userspace<S: Services>(root: &Root, services: &S) -> bool {
    let noted = match services.userspace().await {
        Ok(Some(seen)) => note(root, seen),
        Ok(None) => return false,
        Err(error) => {
            tracing::debug!("cannot determine the running userspace: {}", chain(&error));
            return false;
        }
    };
    if let Err(error) = &noted {
        tracing::warn!("cannot record the running userspace: {}", chain(error));
    }
    noted.is_ok()
}

/// Stores the running userspace in the note, if it has changed.
fn note(root: &Root, seen: Userspace) -> Result<(), RootError> {
    let Some(kernel) = kernel_boot_id(root)? else {
        return Ok(());
    };
    let known = read(root, &kernel)?;
    let counted = seen.soft_reboots.unwrap_or_default();
    let number = match &known {
        Some(known) if known.started == seen.started => return Ok(()),
        // A systemd that was updated in between may have restarted its count.
        Some(known) => counted.max(known.number + 1),
        None => counted,
    };
    let started = seen.started;
    let note = UserspaceNote {
        kernel,
        started,
        number,
    };
    root.replace(&path(), note.encode().as_bytes(), 0o644)
}

/// Returns the name of the running userspace in this boot of the kernel.
fn name(root: &Root, kernel: String) -> Result<String, RootError> {
    Ok(match read(root, &kernel)?.map(|note| note.number) {
        None | Some(0) => kernel,
        Some(number) => format!("{kernel}+{number}"),
    })
}

/// Reads the note of this boot. A note of another boot or an unreadable note counts as missing.
fn read(root: &Root, kernel: &str) -> Result<Option<UserspaceNote>, RootError> {
    match root.read_text(&path(), MAX_NOTE_BYTES) {
        Ok(text) => Ok(UserspaceNote::decode(&text).filter(|note| note.kernel == kernel)),
        Err(RootError::NotText { .. } | RootError::TooLarge { .. }) => Ok(None),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn path() -> AbsPath {
    AbsPath::new(NOTE_PATH).unwrap_or_else(|_| AbsPath::root())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_prevents_the_restart_of_a_trial_that_can_be_checked() {
        let unit = include_str!("../../../systemd/machinist-trial-fallback.service");
        let condition = format!("ConditionPathExists=!{NOTE_PATH}");
        assert!(unit.lines().any(|line| line == condition));
    }

    fn machine() -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        for parent in ["/run", "/proc/sys/kernel/random"] {
            root.make_dirs(&AbsPath::new(parent).unwrap(), 0o755)
                .unwrap();
        }
        (dir, root)
    }

    #[test]
    fn each_userspace_start_has_a_distinct_boot_name() {
        // Boot ID, start time, systemd's count, and the expected name.
        let table = [
            ("a", 5, None, "a"),
            ("a", 5, None, "a"),
            ("a", 9, None, "a+1"),
            ("a", 9, None, "a+1"),
            ("a", 12, None, "a+2"),
            // Now systemd counts, too low at first.
            ("a", 15, Some(1), "a+3"),
            ("a", 20, Some(7), "a+7"),
            ("b", 5, Some(0), "b"),
            ("b", 20, Some(1), "b+1"),
            // First observed after two soft reboots.
            ("c", 30, Some(2), "c+2"),
        ];
        let (_dir, root) = machine();
        for (kernel, started, soft_reboots, expected) in table {
            let id = AbsPath::new("/proc/sys/kernel/random/boot_id").unwrap();
            root.replace(&id, kernel.as_bytes(), 0o644).unwrap();
            let seen = Userspace {
                started,
                soft_reboots,
            };
            note(&root, seen).unwrap();
            assert_eq!(current(&root).unwrap().unwrap(), expected);
        }
    }

    #[test]
    fn an_unreadable_soft_reboot_record_is_ignored() {
        let (_dir, root) = machine();
        for text in [&b"a"[..], b"a x 1", b"\xff", &[b'a'; 300]] {
            root.replace(&path(), text, 0o644).unwrap();
            assert_eq!(name(&root, "a".into()).unwrap(), "a");
        }
    }
}
