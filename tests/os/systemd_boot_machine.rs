//! A machine with packages and systemd-boot: real files, EFI variables as files, a simulated boot loader, and a bootctl
//! that sets the variable of the next boot.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use machinist_boot_loader::systemd_boot::{
    LoaderFiles, LoaderVariables, MenuEntry, SimulatedSystemdBoot,
};
use machinist_rootfs::Root;
use machinist_update::os::{
    BackgroundError, HostCommand, OutputFiles, ProviderStep, SystemdBootProvider,
};

use super::interruptions::{Interruption, Lack};

/// The arguments of the machine before the first step.
pub(crate) const BEFORE: &str =
    "root=UUID=1234 ro net.ifnames=0 quiet console=tty0 systemd.machine_id=1234 audit=0 quiet";

/// The entry that kernel-install wrote.
pub(crate) const HOST_ARGUMENTS: &str =
    "root=UUID=1234 ro net.ifnames=0 quiet console=tty0 systemd.machine_id=1234";

/// What kernel-install appends where the names of entries begin with the machine ID.
const MACHINE_ID: &str = "systemd.machine_id=1234";

const BOOTCTL: &str = "/usr/bin/bootctl";
const VENDOR: &str = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// The step that fails next.
type Failing = Arc<Mutex<Option<ProviderStep>>>;

pub(crate) struct SystemdBootMachine {
    directory: PathBuf,
    failing: Failing,
    panics: Mutex<Option<String>>,
}

fn variable(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("sys/firmware/efi/efivars/{name}-{VENDOR}"))
}

fn set_variable(directory: &Path, name: &str, value: &str) {
    let units = value.encode_utf16().chain([0]);
    let mut bytes = vec![7, 0, 0, 0];
    bytes.extend(units.flat_map(u16::to_le_bytes));
    fs::write(variable(directory, name), bytes).unwrap();
}

/// The text of a variable, without the attributes in front of it.
fn read_variable(directory: &Path, name: &str) -> Option<String> {
    let bytes = fs::read(variable(directory, name)).ok()?;
    let pairs = bytes[4..].chunks(2);
    let units: Vec<u16> = pairs
        .map(|pair| u16::from_le_bytes(pair.try_into().unwrap()))
        .collect();
    Some(
        String::from_utf16(&units)
            .unwrap()
            .trim_end_matches('\0')
            .to_owned(),
    )
}

/// The EFI system partition of a machine.
struct Partition<'d>(&'d Path);

impl LoaderFiles for Partition<'_> {
    fn loader_config(&self) -> Option<String> {
        fs::read_to_string(self.0.join("loader/loader.conf")).ok()
    }

    fn entries(&self) -> Vec<(String, String)> {
        let files = fs::read_dir(self.0.join("loader/entries")).unwrap();
        let files = files.map(|file| file.unwrap());
        files
            .map(|file| {
                let name = file.file_name().into_string().unwrap();
                (name, fs::read_to_string(file.path()).unwrap())
            })
            .collect()
    }

    fn has_kernel(&self, entry: &MenuEntry) -> bool {
        let kernel = entry.kernel.as_deref().unwrap_or_default();
        self.0.join(kernel.trim_start_matches('/')).exists()
    }
}

impl SystemdBootMachine {
    /// A machine on which machinist has kept a deployment before.
    pub(crate) fn new(directory: &Path) -> Self {
        let host = Self {
            directory: directory.to_owned(),
            failing: Failing::default(),
            panics: Mutex::default(),
        };
        for directory in [
            "efi/loader/entries",
            "etc/kernel",
            "proc/1",
            "usr/bin",
            "sys/firmware/efi/efivars",
        ] {
            fs::create_dir_all(host.path(directory)).unwrap();
        }
        let mounts =
            "22 1 8:2 / / rw - ext4 /dev/sda2 rw\n31 22 8:1 / /efi rw - vfat /dev/sda1 rw\n";
        fs::write(host.path("proc/1/mountinfo"), mounts).unwrap();
        fs::write(host.path("efi/loader/loader.conf"), "#timeout 3\n").unwrap();
        fs::write(host.path(&BOOTCTL[1..]), "").unwrap();
        host.install_kernel("6.1", HOST_ARGUMENTS);
        let entry = host.read("efi/loader/entries/1234-6.1.conf");
        let entry = entry
            .replace(HOST_ARGUMENTS, BEFORE)
            .replace("version    6.1", "version    6.1.machinist1");
        let kept = format!(
            "# Host: {HOST_ARGUMENTS}\n# Current: audit=0 quiet\n# Previous: audit=1\n{entry}"
        );
        fs::write(host.path("efi/loader/entries/machinist-1.conf"), kept).unwrap();
        fs::write(host.path("etc/kernel/cmdline"), format!("{BEFORE}\n")).unwrap();
        host.set("LoaderInfo", "systemd-boot 257.8-1~deb13u2");
        let features = [7, 0, 0, 0].into_iter().chain(0x1ff_u64.to_le_bytes());
        let features: Vec<u8> = features.collect();
        fs::write(variable(directory, "LoaderFeatures"), features).unwrap();
        host.boot();
        host
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    pub(crate) fn set(&self, name: &str, value: &str) {
        set_variable(&self.directory, name, value);
    }

    /// The names of the menu entries.
    pub(crate) fn entries(&self) -> Vec<String> {
        let mut names: Vec<String> = Partition(&self.path("efi"))
            .entries()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        names.sort();
        names
    }

    /// Installs a kernel as kernel-install does.
    pub(crate) fn install_kernel(&self, version: &str, arguments: &str) {
        let arguments = match arguments.contains("systemd.machine_id=") {
            true => arguments.to_owned(),
            false => format!("{arguments} {MACHINE_ID}"),
        };
        let text = format!(
            "# Boot Loader Specification type#1 entry\ntitle      Debian GNU/Linux 13 (trixie)\nversion    {version}\n\
             machine-id 1234\nsort-key   debian\noptions    {arguments}\nlinux      /1234/{version}/linux\n\
             initrd     /1234/{version}/initrd.img-{version}\n"
        );
        let directory = self.path(&format!("efi/1234/{version}"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("linux"), version).unwrap();
        fs::write(directory.join(format!("initrd.img-{version}")), version).unwrap();
        let entry = format!("efi/loader/entries/1234-{version}.conf");
        fs::write(self.path(&entry), text).unwrap();
    }

    /// The root of a machine that loses power: file operations fail from this one on.
    pub(crate) fn agent_until(&self, operations: usize) -> SystemdBootProvider<Bootctl> {
        self.interrupted_agent(&Interruption::after(operations, Lack::Power))
    }

    pub(crate) fn interrupted_agent(
        &self,
        interruption: &Interruption,
    ) -> SystemdBootProvider<Bootctl> {
        let root = interruption.root(&self.directory);
        SystemdBootProvider::new(root, self.bootctl(&Failing::default()))
    }

    /// A provider; a step that was made to fail does so.
    pub(crate) fn agent(&self) -> SystemdBootProvider<Bootctl> {
        let failing = Arc::clone(&self.failing);
        let root = Root::open(&self.directory).unwrap();
        // A step that runs no program fails at its first write.
        let root = root.with_fault(Arc::new(move |_| {
            let mut failing = failing.lock().unwrap();
            match *failing {
                None | Some(ProviderStep::Unlock) => None,
                Some(_) => {
                    *failing = None;
                    Some(std::io::ErrorKind::StorageFull.into())
                }
            }
        }));
        SystemdBootProvider::new(root, self.bootctl(&self.failing))
    }

    fn bootctl(&self, failing: &Failing) -> Bootctl {
        Bootctl {
            directory: self.directory.clone(),
            failing: Arc::clone(failing),
        }
    }

    pub(crate) fn fails_next(&self, step: ProviderStep) {
        *self.failing.lock().unwrap() = Some(step);
    }

    /// The kernel of this deployment panics in its trial from now on.
    pub(crate) fn panics(&self, id: &str) {
        *self.panics.lock().unwrap() = Some(format!("machinist.trial={id}"));
    }

    /// The arguments of the running kernel, without those of a trial.
    pub(crate) fn running(&self) -> String {
        let line = self.read("proc/cmdline");
        let line = line.trim();
        let (line, _) = line.split_once(" panic=10").unwrap_or((line, ""));
        line.to_owned()
    }

    /// Boots until a kernel reaches userspace.
    pub(crate) fn boot(&self) {
        for _ in 0..3 {
            let variables = LoaderVariables {
                one_shot: read_variable(&self.directory, "LoaderEntryOneShot"),
                default: read_variable(&self.directory, "LoaderEntryDefault"),
                last_booted: None,
            };
            let _ = fs::remove_file(variable(&self.directory, "LoaderEntryOneShot"));
            let partition = self.path("efi");
            let loader = SimulatedSystemdBoot::new(&Partition(&partition), &variables, "x64");
            let (entry, after) = loader.boot().unwrap();
            assert_eq!(after, entry.file, "no entry has a counter");
            let panics = self.panics.lock().unwrap().clone();
            if panics.is_some_and(|mark| entry.options.contains(&mark)) {
                assert!(entry.options.contains("panic="), "it hangs for ever");
                continue;
            }
            return fs::write(self.path("proc/cmdline"), format!("{}\n", entry.options)).unwrap();
        }
        panic!("no kernel reaches userspace");
    }
}

/// The program of the host that sets EFI variables.
pub(crate) struct Bootctl {
    directory: PathBuf,
    failing: Failing,
}

impl HostCommand for Bootctl {
    async fn run(
        &self,
        program: &str,
        arguments: &[&str],
        _limit: Duration,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        assert_eq!((program, arguments[0]), (BOOTCTL, "set-oneshot"));
        if self.failing.lock().unwrap().take().is_some() {
            return Err("exit status 1".into());
        }
        match arguments[1] {
            "" => drop(fs::remove_file(variable(
                &self.directory,
                "LoaderEntryOneShot",
            ))),
            file => set_variable(&self.directory, "LoaderEntryOneShot", file),
        }
        Ok(())
    }

    async fn run_in_background(
        &self,
        program: &str,
        _arguments: &[&str],
        _limit: Duration,
        _files: OutputFiles<'_>,
    ) -> Result<(), BackgroundError> {
        panic!("this host downloads nothing: {program}")
    }

    async fn stop_background(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        panic!("this host downloads nothing")
    }
}
