//! A machine with packages, and GRUB with boot entries, as Fedora and RHEL have it: real files and a simulated boot
//! loader.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use machinist_boot_loader::grub::{BootError, EnvironmentBlock, SimulatedGrub};
use machinist_rootfs::Root;
use machinist_update::os::{BackgroundError, GrubProvider, HostCommand, OutputFiles, ProviderStep};

use super::grub_machine::{BEFORE, Below, Failing, failing_root, root_until};

/// The parts of grub.cfg as grub2-mkconfig writes it with GRUB_ENABLE_BLSCFG=true and GRUB_DEFAULT=saved.
const CONFIG: &str = r#"if [ -f ${config_directory}/grubenv ]; then
  load_env -f ${config_directory}/grubenv
elif [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="${saved_entry}"
fi
set timeout=5
function load_video {
  insmod all_video
}
search --no-floppy --fs-uuid --set=root 1234
if [ -z "${kernelopts}" ]; then
  set kernelopts="root=/dev/sda3 ro "
fi
insmod blscfg
blscfg
if [ "${boot_success}" = "1" -o "${boot_indeterminate}" = "1" ]; then
  set last_boot_ok=1
fi
if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
elif [ -z "${config_directory}" -a -f  $prefix/custom.cfg ]; then
  source $prefix/custom.cfg
fi
"#;

/// The options of kernels before the first step. TuneD appends a variable to them in each entry.
pub(crate) const HOST_OPTIONS: &str = "root=UUID=1234 ro net.ifnames=0 quiet console=tty0";
const TUNED: &str = " $tuned_params";

const KERNEL_CMDLINE: &str = "etc/kernel/cmdline";
pub(crate) const VENDOR_CMDLINE: &str = "usr/lib/kernel/cmdline";

pub(crate) struct FedoraMachine {
    directory: PathBuf,
    failing: Failing,
    panics: Mutex<Option<String>>,
    pub(crate) fsfreeze: Fsfreeze,
}

impl FedoraMachine {
    /// A machine on which machinist has kept a deployment before.
    pub(crate) fn new(directory: &Path) -> Self {
        let host = Self {
            directory: directory.to_owned(),
            failing: Failing::default(),
            panics: Mutex::default(),
            fsfreeze: Fsfreeze::default(),
        };
        for directory in ["boot/grub2", "boot/loader/entries", "etc/kernel", "proc/1"] {
            fs::create_dir_all(host.path(directory)).unwrap();
        }
        // A running host with an rpm database, and /boot on a partition.
        for directory in [
            "run/systemd/system",
            "usr/lib/sysimage/rpm",
            "sys/dev/block/8:2",
        ] {
            fs::create_dir_all(host.path(directory)).unwrap();
        }
        let mounts =
            "22 1 253:0 / / rw - xfs /dev/dm-0 rw\n31 22 8:2 / /boot rw - xfs /dev/sda2 rw\n";
        host.write("proc/1/mountinfo", mounts);
        host.write("boot/grub2/grub.cfg", CONFIG);
        host.write(
            "boot/grub2/grubenv",
            EnvironmentBlock::default().to_text().unwrap(),
        );
        host.write(KERNEL_CMDLINE, format!("{HOST_OPTIONS}\n"));
        host.install_kernel("6.1.0-1");
        let entry = host.read("boot/loader/entries/1234-6.1.0-1.conf");
        let kept = entry.replace(TUNED, &format!("{TUNED} audit=0 quiet"));
        let comments =
            format!("# Host: {HOST_OPTIONS}\n# Current: audit=0 quiet\n# Previous: audit=1\n");
        host.write("boot/loader/entries/machinist-1.conf", comments + &kept);
        host.set_variable("saved_entry", "machinist-1");
        host.write(KERNEL_CMDLINE, format!("{HOST_OPTIONS} audit=0 quiet\n"));
        host.boot();
        host
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(path), text).unwrap();
    }

    /// The names of the boot entries, in their order.
    pub(crate) fn entries(&self) -> Vec<String> {
        let files = fs::read_dir(self.path("boot/loader/entries")).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    pub(crate) fn block(&self) -> EnvironmentBlock {
        EnvironmentBlock::parse(&self.read("boot/grub2/grubenv")).unwrap()
    }

    /// Sets a variable as grub2-editenv does.
    pub(crate) fn set_variable(&self, name: &str, value: &str) {
        let mut block = self.block();
        block.set(name, value);
        self.write("boot/grub2/grubenv", block.to_text().unwrap());
    }

    /// Installs a kernel as kernel-install does: its entry gets the options of the file or of the running kernel, and
    /// becomes the saved one.
    pub(crate) fn install_kernel(&self, version: &str) {
        self.write(&format!("boot/vmlinuz-{version}"), version);
        self.write(&format!("boot/initramfs-{version}.img"), version);
        let files = [KERNEL_CMDLINE, VENDOR_CMDLINE];
        let file = files.into_iter().find(|file| self.path(file).exists());
        let options = file.map(|file| self.read(file)).unwrap_or_else(|| {
            let line = self.read("proc/cmdline");
            line.split_once(' ').unwrap().1.to_owned()
        });
        let entry = format!(
            "title Fedora Linux ({version}) 43\nversion {version}\nlinux /vmlinuz-{version}\n\
             initrd /initramfs-{version}.img $tuned_initrd\noptions {}{TUNED}\ngrub_users $grub_users\n\
             grub_arg --unrestricted\ngrub_class fedora\n",
            options.trim()
        );
        self.write(&format!("boot/loader/entries/1234-{version}.conf"), entry);
        self.set_variable("saved_entry", &format!("1234-{version}"));
    }

    /// Removes the files of a kernel as kernel-install does.
    pub(crate) fn remove_kernel(&self, version: &str) {
        for file in [
            format!("vmlinuz-{version}"),
            format!("initramfs-{version}.img"),
            format!("loader/entries/1234-{version}.conf"),
        ] {
            fs::remove_file(self.path("boot").join(file)).unwrap();
        }
    }

    /// Appends an argument to every entry and to the file, as grubby --update-kernel=ALL does.
    pub(crate) fn append_to_all(&self, argument: &str) {
        for name in self.entries() {
            let file = format!("boot/loader/entries/{name}");
            let text = self.read(&file);
            let lines = text.lines().map(|line| match line.starts_with("options ") {
                true => format!("{line} {argument}\n"),
                false => format!("{line}\n"),
            });
            self.write(&file, lines.collect::<String>());
        }
        let options = self.read(KERNEL_CMDLINE);
        self.write(KERNEL_CMDLINE, format!("{} {argument}\n", options.trim()));
    }

    /// The arguments of the running kernel, without those of a trial.
    pub(crate) fn running(&self) -> String {
        let line = self.read("proc/cmdline");
        let line = line.trim().split_once(' ').unwrap().1;
        let (line, _) = line.split_once(" panic=10").unwrap_or((line, ""));
        line.to_owned()
    }

    /// A provider; a step that was made to fail does so.
    pub(crate) fn agent(&self) -> GrubProvider<Fsfreeze> {
        self.agent_on(failing_root(&self.directory, &self.failing, &[]))
    }

    /// A provider on a machine that loses power.
    pub(crate) fn agent_until(&self, operations: usize) -> GrubProvider<Fsfreeze> {
        self.agent_on(root_until(&self.directory, operations).0)
    }

    pub(crate) fn agent_on(&self, root: Root) -> GrubProvider<Fsfreeze> {
        GrubProvider::new(root, self.fsfreeze.clone())
    }

    pub(crate) fn fails_next(&self, step: ProviderStep) {
        *self.failing.lock().unwrap() = Some(step);
    }

    /// The kernel of this entry panics from now on.
    pub(crate) fn panics(&self, entry: &str) {
        *self.panics.lock().unwrap() = Some(entry.to_owned());
    }

    /// Boots until a kernel reaches userspace.
    pub(crate) fn boot(&self) {
        for _ in 0..4 {
            let partition = self.path("boot");
            let files = Below(&partition);
            let mut grub = SimulatedGrub::new(&files, "/grub2");
            let boot = grub.boot();
            self.write(
                "boot/grub2/grubenv",
                grub.environment.unwrap().to_text().unwrap(),
            );
            let boot = match boot {
                Err(BootError::Restarts(_)) => continue,
                boot => boot.unwrap(),
            };
            let line = boot.command_line;
            let panics = self.panics.lock().unwrap().clone();
            if panics.is_some_and(|id| boot.entry == [id]) {
                assert!(line.contains("panic="), "it hangs for ever: {line}");
                continue;
            }
            let line = format!("BOOT_IMAGE=(hd0,gpt2){} {line}\n", boot.kernel);
            return self.write("proc/cmdline", line);
        }
        panic!("no kernel reaches userspace");
    }

    /// Checks that only the entry of the kept deployment is left, which has these arguments.
    pub(crate) fn assert_settled(&self, own: &str, case: &str) {
        let entries = self.entries();
        // GRUB ignores a file with another name, which the next step replaces.
        let is_entry = |name: &&String| name.starts_with("machinist-") && name.ends_with(".conf");
        let kept = entries.iter().filter(is_entry);
        assert_eq!(kept.count(), 1, "{case}: {entries:?}");
        assert!(
            !self.read("boot/grub2/custom.cfg").contains("machinist"),
            "{case}"
        );
        assert!(
            self.block().get("next_entry").is_none_or(str::is_empty),
            "{case}"
        );
        let cmdline = self.read(KERNEL_CMDLINE);
        assert_eq!(cmdline.trim(), format!("{BEFORE} {own}").trim(), "{case}");
    }
}

/// The host has fsfreeze alone. Counts its calls.
#[derive(Clone, Default)]
pub(crate) struct Fsfreeze(pub(crate) Arc<AtomicUsize>);

impl HostCommand for Fsfreeze {
    async fn run(
        &self,
        program: &str,
        arguments: &[&str],
        _limit: Duration,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let ["-c", script, "sh", "/boot"] = arguments else {
            panic!("{program} {arguments:?}");
        };
        let freezes =
            script.contains("fsfreeze --freeze \"$1\" && { fsfreeze --unfreeze \"$1\" || ");
        assert!(freezes, "{script}");
        assert_eq!(program, "/bin/sh");
        self.0.fetch_add(1, Ordering::Relaxed);
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
