//! A machine with OSTree and GRUB: real files and a simulated boot loader.

use std::{
    error::Error,
    fs, io,
    os::unix::fs::symlink,
    path::Path,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

use machinist_boot_loader::grub::{EnvironmentBlock, SimulatedGrub};
use machinist_plan::ImageRef;
use machinist_rootfs::Root;
use machinist_systemd::Systemd;
use machinist_testkit::fake_rpm_ostree::FakeRpmOstree;
use machinist_update::os::{
    BackgroundError, HostCommand, OstreeProvider, OutputFiles, PackageChange, ProviderStep,
    RpmOstree, TransactionKind,
};

use super::{
    bootc_program::BootcProgram,
    grub_machine::{Below, Failing, failing_root},
    interruptions::{Interruption, Lack},
    ostree_files::{Entry, Files, Layout},
    ostree_registry::OstreeRegistry,
    rpm_ostree_daemon::RpmOstreeDaemon,
    unshare_program::{self, UNSHARE, UnshareProgram},
};

/// The arguments of the machine before the first step, without the one that selects a deployment.
pub(crate) const BEFORE: &str = "root=LABEL=root rw net.ifnames=0 quiet console=tty0 audit=0";

/// What an administrator wrote.
pub(crate) const CUSTOM: &str = "# by hand\nset color_normal=white/black\n";

/// What makes the menu in the grub.cfg that bootupd writes on hosts with image mode.
const STATIC_CONFIG: &str = r#"if [ -d (md/md-boot)/grub2 ]; then
  set boot=md/md-boot
  set prefix=($boot)/grub2
else
  search --label boot --set boot --no-floppy
fi
set root=$boot
if [ -f ${config_directory}/grubenv ]; then
  load_env -f ${config_directory}/grubenv
elif [ -s $prefix/grubenv ]; then
  load_env
fi
set timeout=1
blscfg
if [ -f $prefix/custom.cfg ]; then
  source $prefix/custom.cfg
fi
"#;

/// The size of its file system, in bytes.
pub(crate) const DISK_BYTES: u64 = 100 << 30;

const OSTREE: &str = "/usr/bin/ostree";

/// The steps that fail because `ostree admin` does, the others at their first write.
const BY_PROGRAM: &[ProviderStep] = &[
    ProviderStep::Fetch,
    ProviderStep::Keep,
    ProviderStep::RollBack,
    ProviderStep::Discard,
    ProviderStep::Lock,
];

pub(crate) struct OstreeMachine {
    files: Files,
    failing: Failing,
    panics: Mutex<Option<Entry>>,
    pub(crate) free_bytes: Arc<AtomicU64>,
    pub(crate) unshare: Arc<UnshareProgram>,
    pub(crate) registry: Arc<OstreeRegistry>,
    pub(crate) bootc: Arc<BootcProgram>,
    pub(crate) rpm_ostree: Arc<RpmOstreeDaemon>,
}

impl OstreeMachine {
    /// A machine with two deployments.
    pub(crate) fn with_layout(directory: &Path, layout: Layout) -> Self {
        let files = Files::new(directory, layout);
        let grub = layout.grub();
        for (path, text) in [
            ("boot/ostree/debian-beef/vmlinuz-6.1", "kernel"),
            ("usr/bin/ostree", "x ostree_sysroot_change_finalization x"),
            ("run/ostree-booted", ""),
            ("ostree/lock", ""),
            ("sys/dev/block/8:2/dev", "8:2\n"),
            ("sys/dev/block/8:3/dev", "8:3\n"),
        ] {
            files.write(path, text);
        }
        files.write(&format!("{grub}/custom.cfg"), CUSTOM);
        let block = format!(
            "# GRUB Environment Block\nsaved_entry=x\n{}",
            "#".repeat(985)
        );
        files.write(&format!("{grub}/grubenv"), block);
        match layout {
            Layout::Debian => {
                symlink("../loader/grub.cfg", files.path("boot/grub/grub.cfg")).unwrap();
            }
            _ => {
                files.write("boot/grub2/grub.cfg", STATIC_CONFIG);
                files.write("usr/bin/unshare", "");
            }
        }
        for program in layout.programs() {
            files.write(program, "");
        }
        let options = match layout {
            // As on Fedora CoreOS, where the variable is empty but in the first boot.
            Layout::RpmOstree | Layout::BootcAndRpmOstree => {
                BEFORE.replacen(' ', " $ignition_firstboot ", 1)
            }
            _ => BEFORE.to_owned(),
        };
        let menu = ["cd", "ab"].map(|commit| (files.new_deployment(commit), options.clone()));
        for directory in ["etc/yum.repos.d", "var/lib/machinist"] {
            fs::create_dir_all(files.path(directory)).unwrap();
        }
        fs::create_dir_all(files.etc_of("ab.0")).unwrap();
        files.write_menu(&menu);
        let machine = Self {
            files,
            failing: Failing::default(),
            panics: Mutex::default(),
            free_bytes: Arc::new(AtomicU64::new(DISK_BYTES / 2)),
            unshare: Arc::default(),
            registry: Arc::default(),
            bootc: Arc::default(),
            rpm_ostree: Arc::default(),
        };
        machine.boot();
        machine
    }

    /// An administrator stages a deployment after this command of machinist.
    pub(crate) fn is_overtaken_after(&self, command: &'static str) {
        *self.files.overtaken_after.lock().unwrap() = Some(command);
    }

    /// A file in the directory of GRUB's configuration.
    pub(crate) fn grub_file(&self, name: &str) -> String {
        self.read(&format!("{}/{name}", self.files.layout.grub()))
    }

    pub(crate) fn read(&self, path: &str) -> String {
        self.files.read(path)
    }

    pub(crate) fn admin(&self, arguments: &[&str]) {
        self.files.admin(arguments).unwrap();
    }

    pub(crate) fn menu(&self) -> Vec<Entry> {
        self.files.menu()
    }

    /// The arguments of the running kernel, without those of a trial and of OSTree.
    pub(crate) fn running(&self) -> String {
        let line = self.read("proc/cmdline");
        let line = line.trim().split_once(' ').unwrap().1;
        let line = line.rsplit_once(" ostree=").unwrap().0;
        line.split(" panic=10").next().unwrap().to_owned()
    }

    /// A provider; a step that was made to fail does so.
    pub(crate) fn agent(&self) -> OstreeProvider<OstreeProgram> {
        let root = failing_root(&self.files.directory, &self.failing, BY_PROGRAM);
        self.provider(root, self.program(&self.failing, None))
    }

    /// A provider on a machine that loses power: operations on files and programs fail from this one on.
    pub(crate) fn agent_until(&self, operations: usize) -> OstreeProvider<OstreeProgram> {
        self.interrupted_agent(&Interruption::after(operations, Lack::Power))
    }

    pub(crate) fn interrupted_agent(
        &self,
        interruption: &Interruption,
    ) -> OstreeProvider<OstreeProgram> {
        let root = interruption.root(&self.files.directory);
        let program = self.program(&Failing::default(), Some(interruption.clone()));
        self.provider(root, program)
    }

    fn provider(&self, root: Root, program: OstreeProgram) -> OstreeProvider<OstreeProgram> {
        let root = root.with_simulated_space(DISK_BYTES, Arc::clone(&self.free_bytes));
        OstreeProvider::new(root, program)
    }

    /// The programs of a provider.
    pub(crate) fn programs(&self) -> OstreeProgram {
        self.program(&Failing::default(), None)
    }

    fn program(&self, failing: &Failing, interruption: Option<Interruption>) -> OstreeProgram {
        OstreeProgram {
            files: self.files.clone(),
            interruption,
            failing: Arc::clone(failing),
            unshare: Arc::clone(&self.unshare),
            registry: Arc::clone(&self.registry),
            bootc: Arc::clone(&self.bootc),
            rpm_ostree: Arc::clone(&self.rpm_ostree),
        }
    }

    pub(crate) fn fails_next(&self, step: ProviderStep) {
        *self.failing.lock().unwrap() = Some(step);
    }

    /// The kernel of the staged deployment, which has this name, panics from now on. A later one may get the same name.
    pub(crate) fn panics(&self, name: &str) {
        let (staged, words) = self.files.staged().unwrap();
        assert_eq!(staged, name);
        // GRUB replaces a variable by nothing.
        let words = words.into_iter().filter(|word| !word.starts_with('$'));
        let words: Vec<String> = words.collect();
        *self.panics.lock().unwrap() = Some((staged, words.join(" ")));
    }

    /// Shuts down properly and boots again.
    pub(crate) fn reboot(&self) {
        self.files.finalize();
        self.boot();
    }

    /// Shuts down properly, and boots without the kernel of the first entry of the menu.
    pub(crate) fn reboot_without_kernel(&self) {
        self.files.finalize();
        self.files.remove_kernel();
        self.boot();
    }

    /// Shuts down properly, and boots the first entry of the menu, which a person selects.
    pub(crate) fn reboot_into_first(&self) {
        self.files.finalize();
        let file = format!("{}/custom.cfg", self.files.layout.grub());
        let custom = self.read(&file);
        self.files.write(&file, "");
        self.boot();
        self.files.write(&file, custom);
    }

    /// Boots until a kernel reaches userspace.
    pub(crate) fn boot(&self) {
        for directory in ["run/ostree", "run/machinist"] {
            fs::remove_dir_all(self.files.path(directory)).ok();
        }
        for _ in 0..4 {
            let layout = self.files.layout;
            let boot_directory = self.files.path("boot");
            let (files, prefix) = match layout {
                Layout::Debian => (Below(&self.files.directory), "/boot/grub"),
                _ => (Below(&boot_directory), "/grub2"),
            };
            let mut grub = SimulatedGrub::new(&files, prefix);
            let boot = grub.boot_or_fall_back().unwrap();
            let block: EnvironmentBlock = grub.environment.unwrap();
            let file = format!("{}/grubenv", layout.grub());
            self.files.write(&file, block.to_text().unwrap());
            let line = boot.command_line;
            let selector = line.rsplit_once(" ostree=").unwrap().1;
            let target = fs::canonicalize(self.files.path(selector)).unwrap();
            let name = target.file_name().unwrap().to_str().unwrap();
            let panics = self.panics.lock().unwrap().clone();
            if panics.is_some_and(|(panics, words)| panics == name && line.contains(&words)) {
                assert!(line.contains("panic="), "it hangs for ever: {line}");
                continue;
            }
            let before = self.files.path("proc/1/mountinfo").exists();
            let before = before.then(|| self.files.booted());
            self.files.exchange_etc(before.as_deref(), name);
            let mut mounts =
                format!("22 1 8:2 /ostree/deploy/debian/deploy/{name} / rw - ext4 /dev/sda2 rw\n");
            if layout != Layout::Debian {
                let options = layout.boot_options();
                mounts.push_str(&format!(
                    "23 22 8:3 / /boot {options} - ext4 /dev/sda3 rw\n\
                     24 22 8:2 / /sysroot {options} - ext4 /dev/sda2 rw\n"
                ));
            }
            self.files.write("proc/1/mountinfo", mounts);
            let line = format!("BOOT_IMAGE={} {line}\n", boot.kernel);
            return self.files.write("proc/cmdline", line);
        }
        panic!("no kernel reaches userspace");
    }
}

/// The programs `ostree`, `bootc` and podman, and rpm-ostree's daemon.
pub(crate) struct OstreeProgram {
    files: Files,
    interruption: Option<Interruption>,
    failing: Failing,
    unshare: Arc<UnshareProgram>,
    registry: Arc<OstreeRegistry>,
    bootc: Arc<BootcProgram>,
    rpm_ostree: Arc<RpmOstreeDaemon>,
}

impl OstreeProgram {
    fn is_failing(&self) -> bool {
        self.failing.lock().unwrap().take().is_some()
    }

    /// Fails if the machine has no power any more, or a full disk.
    fn operation(&self, needs_space: bool) -> io::Result<()> {
        let interruption = self.interruption.as_ref();
        interruption.map_or(Ok(()), |interruption| interruption.next(needs_space))
    }

    /// The program that runs `ostree container`: where /sysroot is mounted read-only, one that remounts it.
    fn ostree_program(&self) -> &'static str {
        match self.files.layout.boot_options() {
            "ro" => UNSHARE,
            _ => OSTREE,
        }
    }

    /// Copies the repository of an image, as the script with podman does.
    fn extract(&self, image: &str, directory: &str) -> Result<(), String> {
        let image = ImageRef::parse(image).unwrap();
        let packages = self.registry.packages(&image);
        let packages = packages.ok_or("reading manifest: manifest unknown")?;
        for package in packages {
            self.files
                .write(&format!("{directory}/{package}-1.0-1.x86_64.rpm"), "rpm");
        }
        Ok(())
    }

    /// Takes the time of a download, or that of copying an image.
    async fn delay(&self, limit: Duration) -> Result<(), Box<dyn Error + Send + Sync>> {
        let delay = tokio::time::sleep(self.registry.takes());
        Ok(tokio::time::timeout(limit, delay).await?)
    }
}

impl HostCommand for OstreeProgram {
    async fn run(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let (_, arguments) = self.unshare.started(program, arguments);
        let is_extension = matches!(arguments, ["container" | "refs", ..]);
        assert!(!is_extension || program == self.ostree_program());
        let is_removing = matches!(
            arguments,
            ["--mount", .., script, _, "/boot", _] if unshare_program::program_of(script) == "rm"
        );
        let is_locking = arguments.contains(&"lock-finalization");
        self.operation(!is_removing && !is_locking)?;
        let is_step = arguments[0] == "admin" && arguments[1] != "cleanup";
        if is_step && self.is_failing() {
            return Err("exit status 1".into());
        }
        Ok(match arguments {
            ["container", "image", rest @ ..] => self.registry.run(&self.files.directory, rest),
            ["admin", "cleanup"] => self.registry.clean_up(&self.files.directory),
            ["admin", rest @ ..] => {
                if rest[0] == "deploy" {
                    self.delay(limit).await?;
                    let commit = rest.last().unwrap();
                    if self.rpm_ostree.is_pruned(&self.files, commit) {
                        return Err(format!("No such metadata object {commit}").into());
                    }
                }
                if matches!(rest[0], "undeploy" | "set-default" | "instutil") {
                    self.files.check_menu_link();
                }
                let done = self.files.admin(rest);
                self.rpm_ostree.prune(&self.files);
                done
            }
            ["--mount", _, _, _, _, script, _, "/boot", rest @ ..] => {
                let operation = || self.operation(true);
                let change = (*script, rest);
                let changed = unshare_program::change_file(&self.files, change, operation);
                changed.map_err(|error| error.to_string())
            }
            ["refs", "--repo", "/ostree/repo", rest @ ..] => {
                RpmOstreeDaemon::refs(&self.files, rest)
            }
            other => panic!("{other:?}"),
        }?)
    }

    async fn run_unkillable(
        &self,
        program: &str,
        arguments: &[&str],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let ["-c", script, "sh", mount] = arguments else {
            panic!("{program} {arguments:?}");
        };
        assert!(script.contains("fsfreeze --freeze"), "{script}");
        let expected = match self.files.layout {
            Layout::Debian => "/",
            _ => "/boot",
        };
        assert_eq!(*mount, expected);
        Ok(())
    }

    async fn run_in_background(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
        files: OutputFiles<'_>,
    ) -> Result<(), BackgroundError> {
        let started = self.operation(true);
        started.map_err(|error| BackgroundError::Failed(error.into()))?;
        self.registry.set_running(true);
        let is_extension = matches!(arguments, ["container", ..]);
        assert!(!is_extension || program == self.ostree_program());
        let (program, arguments) = self.unshare.started(program, arguments);
        if program == OSTREE {
            let needed = "layers already present: 2; layers needed: 4 (1.2\u{a0}GB)\n";
            self.files.write(files.output, needed);
        }
        let delay = self.delay(limit).await;
        delay.map_err(|_| BackgroundError::TimedOut)?;
        self.registry.set_running(false);
        let failing = self.is_failing();
        let done = match (program, arguments) {
            ("/usr/bin/systemd-inhibit", _) => {
                self.bootc
                    .switch(&self.files, &self.registry, arguments, failing)
            }
            ("/bin/sh", ["-c", _, _, image, directory]) => self.extract(image, directory),
            (OSTREE, ["container", "image", "pull", ..]) if failing => {
                Err("pinging container registry: connection refused".to_owned())
            }
            (OSTREE, ["container", "image", rest @ ..]) => {
                self.registry.run(&self.files.directory, rest)
            }
            other => panic!("{other:?}"),
        };
        if let Err(error) = &done {
            self.files.write(
                files.errors,
                format!("Error: Pulling\n\nCaused by:\n    {error}\n"),
            );
        }
        done.map_err(|error| BackgroundError::Failed(error.into()))
    }

    async fn received_bytes(&self) -> Option<u64> {
        Some(300 << 20)
    }

    async fn stop_background(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.registry.set_running(false);
        Ok(())
    }
}

impl RpmOstree for OstreeProgram {
    async fn change_packages(
        &self,
        change: &PackageChange,
        kind: TransactionKind,
        limit: Duration,
    ) -> Result<(), BackgroundError> {
        let started = self.operation(true);
        started.map_err(|error| BackgroundError::Failed(error.into()))?;
        let delay = self.delay(limit).await;
        delay.map_err(|_| BackgroundError::TimedOut)?;
        if self.is_failing() {
            let error = "rpm-ostree: Transaction in progress";
            return Err(BackgroundError::Failed(error.into()));
        }
        let (files, registry) = (self.files.clone(), Arc::clone(&self.registry));
        let daemon = Arc::clone(&self.rpm_ostree);
        // Each transaction goes over D-Bus, as in the agent.
        let bus = FakeRpmOstree::new(move |change, kind| {
            daemon.transact(&files, &registry, change, kind)
        });
        let client = Systemd::new(bus.lines());
        client.change_packages(change, kind, limit).await
    }

    async fn cancel_change(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        Ok(())
    }
}
