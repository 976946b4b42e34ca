//! A machine before its first boot: a fresh copy of the base image and what a test puts into it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::supervisor::{Hardware, Supervisor};
use super::{Machine, WORK, lab, machine_files, wait};

/// A machine before its first boot.
#[derive(Debug)]
pub struct Builder {
    name: String,
    files: Vec<(String, Vec<u8>, u32)>,
    links: Vec<(String, String)>,
    binds: Vec<String>,
    machinist: bool,
}

impl Builder {
    pub(super) fn new(name: &str) -> Self {
        let name = name.to_owned();
        Self {
            name,
            files: vec![],
            links: vec![],
            binds: vec![],
            machinist: false,
        }
    }

    /// A file (0644) in place at the first boot.
    pub fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.file_with_mode(path, content, 0o644)
    }

    pub fn file_with_mode(mut self, path: &str, content: impl AsRef<[u8]>, mode: u32) -> Self {
        self.files
            .push((path.to_owned(), content.as_ref().to_owned(), mode));
        self
    }

    /// A symbolic link in place at the first boot.
    pub fn link(mut self, path: &str, target: &str) -> Self {
        self.links.push((path.to_owned(), target.to_owned()));
        self
    }

    /// A unit wanted by `multi-user.target` from the first boot on.
    pub fn enable(self, unit: &str) -> Self {
        let wants = format!("/etc/systemd/system/multi-user.target.wants/{unit}");
        self.link(&wants, &format!("/usr/lib/systemd/system/{unit}"))
    }

    /// Bind-mounts a directory or device of the host at `path`.
    pub fn bind(mut self, host: &Path, path: &str) -> Self {
        self.binds.push(format!("--bind={}:{path}", host.display()));
        self
    }

    /// The built binary in `/usr/bin`, and the repository's units.
    pub fn machinist(mut self) -> Self {
        self.machinist = true;
        self
    }

    /// Switches the machine on and waits until its manager has nothing left to start.
    pub fn boot(self) -> Machine {
        static NEXT: AtomicU8 = AtomicU8::new(0);
        // In turn, so that an address is reused only after a long time.
        let address = format!(
            "10.99.0.{}",
            11 + NEXT.fetch_add(1, Ordering::Relaxed) % 240
        );
        let dir = Path::new(WORK).join(&self.name);
        let root = dir.join("root");
        copy_base(&dir, &root, self.machinist);
        self.furnish(&root, &address);
        let containerd = dir.join("containerd");
        fs::create_dir(&containerd).unwrap();
        let containerd = format!("--bind={}:/var/lib/containerd", containerd.display());
        let supervisor = Supervisor::new(Hardware {
            name: self.name.clone(),
            console: dir.join("console.log"),
            binds: self.binds.into_iter().chain([containerd]).collect(),
            root,
        });
        let boot_time = Duration::ZERO;
        let mut machine = Machine {
            name: self.name,
            address,
            dir,
            supervisor,
            boot_time,
        };
        machine.power_on();
        machine
    }
    /// Adds everything the machine has beyond the base image to its root.
    fn furnish(&self, root: &Path, address: &str) {
        let put = |path: &str, content: &[u8], mode| {
            machine_files::write(root, path, content, Some(mode))
                .unwrap_or_else(|e| panic!("cannot write {path} of {}: {e}", self.name));
        };
        put(
            "/etc/hostname",
            format!("{}\n", self.name).as_bytes(),
            0o644,
        );
        let network = format!(
            "[Match]\nName=host0\n[Network]\nAddress={address}/24\nGateway=10.99.0.1\n\
             LinkLocalAddressing=no\nIPv6AcceptRA=no\n"
        );
        put(
            "/etc/systemd/network/10-host0.network",
            network.as_bytes(),
            0o644,
        );
        for (path, content) in EVERY_MACHINE {
            put(path, content.as_bytes(), 0o644);
        }
        self.files
            .iter()
            .for_each(|(path, bytes, mode)| put(path, bytes, *mode));
        let masked = MASKED
            .iter()
            .map(|unit| (format!("/etc/systemd/system/{unit}"), "/dev/null"));
        let enabled = [(
            "/etc/systemd/system/multi-user.target.wants/systemd-networkd.service".to_owned(),
            "/usr/lib/systemd/system/systemd-networkd.service",
        )];
        let given = self
            .links
            .iter()
            .map(|(path, target)| (path.clone(), target.as_str()));
        // As the presets of the packages do.
        let recovery = self.machinist.then(|| {
            let wants = "/etc/systemd/system/sysinit.target.wants/machinist-recover.service";
            let unit = "/usr/lib/systemd/system/machinist-recover.service";
            (wants.to_owned(), unit)
        });
        for (path, target) in masked.chain(enabled).chain(recovery).chain(given) {
            machine_files::link(root, &path, target).expect("a link in a fresh machine");
        }
    }
}

/// Files of every lab machine beyond the base image.
const EVERY_MACHINE: &[(&str, &str)] = &[
    // Empty, not missing: systemd then creates an id without treating it as the first boot.
    ("/etc/machine-id", ""),
    // Otherwise each shutdown waits 90 s for pods that ignore SIGTERM.
    (
        "/etc/systemd/system.conf.d/10-lab.conf",
        "[Manager]\nDefaultTimeoutStopSec=5s\n",
    ),
    // There is no name server here. An unreachable one would block chronyd, and with it each
    // shutdown, until the lookup times out.
    ("/etc/resolv.conf", "# the lab has no name server\n"),
    // The kernel's log is the host's and is full of messages about the other machines.
    (
        "/etc/systemd/journald.conf.d/10-lab.conf",
        "[Journal]\nReadKMsg=no\n",
    ),
    // Kernel events reach all machines of the host: each device that one machine triggers starts processes in every
    // other one. networkd needs those of its interfaces.
    (
        "/usr/lib/systemd/system/systemd-udev-trigger.service.d/10-lab.conf",
        "[Service]\nExecStart=\nExecStart=-udevadm trigger --type=all --action=add --subsystem-match=net\n",
    ),
    // The clock is the host's: chronyd monitors it and does not adjust it.
    ("/etc/default/chrony", "DAEMON_OPTS=\"-x -F 1\"\n"),
];

/// Units a lab machine does not need: package updates from the network, and a console login.
const MASKED: &[&str] = &[
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "console-getty.service",
];

/// A copy of the base image, and of the program's files if `machinist` is set, that shares unchanged data with them.
///
/// An overlay costs nothing to create and to remove; where the work directory does not support one
/// (it is an overlay itself, as in a container) the files are copied, with reflinks if possible.
fn copy_base(dir: &Path, root: &Path, machinist: bool) {
    assert!(
        !dir.exists(),
        "{} exists: two machines of one name?",
        dir.display()
    );
    let (upper, work) = (dir.join("upper"), dir.join("work"));
    for part in [&upper, &work, root] {
        fs::create_dir_all(part).unwrap();
    }
    let program = machinist.then(|| lab().program.display().to_string());
    let layers: Vec<String> = program
        .into_iter()
        .chain([lab().base.display().to_string()])
        .collect();
    let options = format!(
        "lowerdir={},upperdir={},workdir={},redirect_dir=on",
        layers.join(":"),
        upper.display(),
        work.display()
    );
    let made = mount(
        Some("machinist-lab"),
        root,
        Some("overlay"),
        MsFlags::empty(),
        Some(&*options),
    );
    if let Err(error) = made {
        eprintln!("lab: no overlay in {WORK} ({error}): copying the base image");
        for layer in layers.iter().rev() {
            let mut copy = Command::new("cp");
            copy.args(["--archive", "--reflink=auto"])
                .arg(format!("{layer}/."))
                .arg(root);
            assert!(copy.status().unwrap().success(), "cannot copy {layer}");
        }
    }
}

/// Removes the copy, once no process of the machine runs.
pub fn remove_copy(dir: &Path) {
    let root = dir.join("root");
    // The kernel releases a dead machine's own mounts a moment after its last process.
    wait::until("the machine's root to be free", wait::seconds(15), || {
        matches!(
            umount2(&root, MntFlags::UMOUNT_NOFOLLOW),
            Ok(()) | Err(Errno::EINVAL)
        )
    });
    fs::remove_dir_all(dir).unwrap();
}
