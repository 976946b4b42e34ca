//! A machine with packages and GRUB: real files, a simulated boot loader, and a grub-mkconfig that runs the shell on
//! /etc/default/grub as the real one does.

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use machinist_boot_loader::grub::{BootError, EnvironmentBlock, GrubFiles, SimulatedGrub};
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::Root;
use machinist_update::os::{BackgroundError, GrubProvider, HostCommand, OutputFiles, ProviderStep};

/// The parts of a generated grub.cfg; `@ARGUMENTS@` is replaced by the arguments.
const CONFIG: &str = r#"if [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="0"
fi
set timeout=5
menuentry 'Debian GNU/Linux' --class debian --id 'gnulinux-simple' {
	insmod gzio
	search --no-floppy --fs-uuid --set=root 1234
	linux	/boot/vmlinuz-6.1 root=UUID=1234 ro @ARGUMENTS@
	initrd	/boot/initrd.img-6.1
}
if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
fi
"#;

/// The same parts where Ubuntu's grub.cfg tries a boot without an initial RAM disk first (GRUB_FORCE_PARTUUID, as cloud
/// images set it), and repeats a boot that failed with it.
const CONFIG_WITHOUT_INITRD: &str = r#"if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${initrdfail}" = 2 ]; then
   set initrdfail=
elif [ "${initrdfail}" = 1 ]; then
   set next_entry="${prev_entry}"
   set prev_entry=
   save_env prev_entry
   if [ "${next_entry}" ]; then
      set initrdfail=2
   fi
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="0"
fi
function initrdfail {
    if [ -n "${have_grubenv}" ]; then if [ -n "${partuuid}" ]; then
      if [ -z "${initrdfail}" ]; then
        set initrdfail=1
        if [ -n "${boot_once}" ]; then
          set prev_entry="${default}"
          save_env prev_entry
        fi
      fi
      save_env initrdfail
    fi; fi
}
set partuuid=1234-01
set timeout=0
menuentry 'Ubuntu' --class ubuntu --id 'gnulinux-simple' {
	search --no-floppy --fs-uuid --set=root 1234
	if [ "${initrdfail}" = 1 ]; then
		echo	'With the initial RAM disk'
		linux	/boot/vmlinuz-6.1 root=UUID=1234 ro @ARGUMENTS@
		initrd	/boot/initrd.img-6.1
	else
		echo	'Without it'
		linux	/boot/vmlinuz-6.1 root=UUID=1234 ro @ARGUMENTS@ panic=-1
	fi
	initrdfail
}
if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
fi
"#;

/// The setting that makes grub-mkconfig write that.
const WITHOUT_INITRD: &str = "etc/default/grub.d/40-force-partuuid.cfg";

/// Whether and how a machine boots without an initial RAM disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Initrd {
    Always,
    /// The first attempt is without one, and succeeds.
    Unneeded,
    /// The first attempt is without one, and the kernel panics.
    TriedWithout,
}

/// What an administrator wrote.
pub(crate) const CUSTOM: &str = "# by hand\nset color_normal=white/black\n";

/// The program that writes grub.cfg.
const MKCONFIG: &str = "/usr/sbin/grub-mkconfig";

/// The arguments of the machine before the first step.
pub(crate) const BEFORE: &str = "root=UUID=1234 ro net.ifnames=0 quiet console=tty0 audit=0 quiet";

/// The step that fails next.
pub(crate) type Failing = Arc<Mutex<Option<ProviderStep>>>;

pub(crate) struct GrubMachine {
    directory: PathBuf,
    failing: Failing,
    panics: Mutex<Option<String>>,
    initrd: Initrd,
}

/// Files below a directory.
pub(crate) struct Below<'d>(pub(crate) &'d Path);

impl GrubFiles for Below<'_> {
    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(below(self.0, path)).ok()
    }

    fn size(&self, path: &str) -> Option<u64> {
        let meta = fs::metadata(below(self.0, path)).ok()?;
        meta.is_file().then_some(meta.len())
    }

    fn is_directory(&self, path: &str) -> bool {
        below(self.0, path).is_dir()
    }

    fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(below(self.0, path)).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }
}

fn below(directory: &Path, path: &str) -> PathBuf {
    directory.join(path.trim_start_matches('/'))
}

/// Whether a kernel that panics restarts the machine. Init gets what follows `--`.
fn restarts_by_itself(line: &str) -> bool {
    let line = KernelCommandLine::parse(line);
    line.iter()
        .any(|one| one.name() == "panic" && !one.is_for_init())
}

/// Writes the config as grub-mkconfig does.
pub(crate) fn mkconfig(directory: &Path, to: &str) {
    let script = r#"cd "$1"; . ./etc/default/grub
for file in ./etc/default/grub.d/*.cfg; do if test -e "$file"; then . "$file"; fi; done
printf %s "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT""#;
    let mut shell = Command::new("sh");
    shell.args(["-eu", "-c", script, "sh"]).arg(directory);
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let arguments = String::from_utf8(output.stdout).unwrap();
    let config = match below(directory, WITHOUT_INITRD).exists() {
        true => CONFIG_WITHOUT_INITRD,
        false => CONFIG,
    };
    let text = config.replace("@ARGUMENTS@", &arguments);
    let exists = |file| below(directory, file).exists();
    let [kernel, initrd] = ["/boot/vmlinuz-6.2", "/boot/initrd.img-6.2"].map(exists);
    let text = match kernel {
        true => text.replace("6.1", "6.2"),
        false => text,
    };
    let without_initrd = || -> Vec<&str> {
        let lines = text.lines();
        lines.filter(|line| !line.contains("initrd.img")).collect()
    };
    let text = match kernel && !initrd {
        true => without_initrd().join("\n"),
        false => text,
    };
    fs::write(below(directory, to), text).unwrap();
}

/// The root of a machine that loses power: file operations fail from this one on. Also returns their number.
pub(crate) fn root_until(directory: &Path, operations: usize) -> (Root, Arc<AtomicUsize>) {
    let done = Arc::new(AtomicUsize::new(0));
    let root = Root::open(directory).unwrap();
    let counted = Arc::clone(&done);
    let root = root.with_fault(Arc::new(move |_| {
        let before = counted.fetch_add(1, Ordering::Relaxed);
        (before >= operations).then(|| std::io::ErrorKind::Other.into())
    }));
    (root, done)
}

/// The root of a machine where the step that was made to fail does so at its first write, unless its program fails.
pub(crate) fn failing_root(
    directory: &Path,
    failing: &Failing,
    by_program: &'static [ProviderStep],
) -> Root {
    let failing = Arc::clone(failing);
    let root = Root::open(directory).unwrap();
    root.with_fault(Arc::new(move |_| {
        let mut failing = failing.lock().unwrap();
        match failing.is_some_and(|step| !by_program.contains(&step)) {
            true => failing
                .take()
                .map(|_| std::io::ErrorKind::StorageFull.into()),
            false => None,
        }
    }))
}

impl GrubMachine {
    /// A machine on which machinist has kept a deployment before.
    pub(crate) fn new(directory: &Path, initrd: Initrd) -> Self {
        let host = Self {
            initrd,
            directory: directory.to_owned(),
            failing: Failing::default(),
            panics: Mutex::default(),
        };
        for directory in ["boot/grub", "etc/default/grub.d", "proc/1", "usr/sbin"] {
            fs::create_dir_all(host.path(directory)).unwrap();
        }
        let default = "GRUB_CMDLINE_LINUX='net.ifnames=0'\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet console=tty0\"\n";
        let own = "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT audit=0 quiet\"\n\
                   # Host: root=UUID=1234 ro net.ifnames=0 quiet console=tty0\n\
                   # Current: audit=0 quiet\n# Previous: audit=1\n";
        for (path, text) in [
            ("etc/default/grub", default),
            ("etc/default/grub.d/zz-machinist.cfg", own),
            (
                "boot/grub/custom.cfg",
                "# by hand\nset color_normal=white/black\n",
            ),
            (MKCONFIG, "#!/bin/sh\n"),
            ("boot/vmlinuz-6.1", "kernel"),
            ("boot/initrd.img-6.1", "initrd"),
        ] {
            fs::write(host.path(path), text).unwrap();
        }
        let block = format!(
            "# GRUB Environment Block\nsaved_entry=x\n{}",
            "#".repeat(985)
        );
        fs::write(host.path("boot/grub/grubenv"), block).unwrap();
        if initrd != Initrd::Always {
            fs::write(host.path(WITHOUT_INITRD), "GRUB_FORCE_PARTUUID=1234-01\n").unwrap();
        }
        mkconfig(&host.directory, "/boot/grub/grub.cfg");
        host.boot();
        host
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        below(&self.directory, path)
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    /// The root of a machine that loses power: file operations fail from this one on. Also returns their number.
    pub(crate) fn root_until(&self, operations: usize) -> (Root, Arc<AtomicUsize>) {
        root_until(&self.directory, operations)
    }

    /// A provider on a machine that loses power.
    pub(crate) fn agent_until(&self, operations: usize) -> GrubProvider<Programs> {
        self.agent_on(self.root_until(operations).0)
    }

    pub(crate) fn agent_on(&self, root: Root) -> GrubProvider<Programs> {
        let programs = Programs {
            directory: self.directory.clone(),
            failing: Failing::default(),
        };
        GrubProvider::new(root, programs)
    }

    /// The arguments of the running kernel, without those of a trial.
    pub(crate) fn running(&self) -> String {
        let line = self.read("proc/cmdline");
        let line = line.trim().split_once(' ').unwrap().1;
        let (line, _) = line.split_once(" panic=10").unwrap_or((line, ""));
        line.strip_suffix(" panic=-1").unwrap_or(line).to_owned()
    }

    /// A provider; a step that was made to fail does so.
    pub(crate) fn agent(&self) -> GrubProvider<Programs> {
        let by_program = &[ProviderStep::Keep, ProviderStep::RollBack];
        let root = failing_root(&self.directory, &self.failing, by_program);
        let programs = Programs {
            directory: self.directory.clone(),
            failing: Arc::clone(&self.failing),
        };
        GrubProvider::new(root, programs)
    }

    /// Begins to install a newer kernel, as a package does.
    pub(crate) fn unpack_kernel(&self) {
        fs::write(self.path("boot/vmlinuz-6.2"), "6.2").unwrap();
    }

    /// Installs a newer kernel, as a package does.
    pub(crate) fn install_kernel(&self) {
        self.unpack_kernel();
        fs::write(self.path("boot/initrd.img-6.2"), "6.2").unwrap();
        mkconfig(&self.directory, "/boot/grub/grub.cfg");
    }

    pub(crate) fn fails_next(&self, step: ProviderStep) {
        *self.failing.lock().unwrap() = Some(step);
    }

    /// The kernel of this entry panics from now on.
    pub(crate) fn panics(&self, entry: &str) {
        *self.panics.lock().unwrap() = Some(entry.to_owned());
    }

    fn write_environment(&self, block: &EnvironmentBlock) {
        fs::write(self.path("boot/grub/grubenv"), block.to_text().unwrap()).unwrap();
    }

    /// Boots until a kernel reaches userspace.
    pub(crate) fn boot(&self) {
        for _ in 0..4 {
            let files = Below(&self.directory);
            let mut grub = SimulatedGrub::new(&files, "/boot/grub");
            let boot = grub.boot();
            let mut block = grub.environment.unwrap();
            self.write_environment(&block);
            let boot = match boot {
                Err(BootError::Restarts(_)) => continue,
                boot => boot.unwrap(),
            };
            let line = boot.command_line;
            let panics = self.panics.lock().unwrap().clone();
            let lacks_initrd = self.initrd == Initrd::TriedWithout && boot.initrds.is_empty();
            if lacks_initrd || panics.is_some_and(|id| boot.entry == [id]) {
                assert!(restarts_by_itself(&line), "it hangs for ever: {line}");
                continue;
            }
            // As grub-initrd-fallback.service does.
            block.unset("initrdfail");
            block.unset("prev_entry");
            self.write_environment(&block);
            let line = format!("BOOT_IMAGE={} {line}\n", boot.kernel);
            return fs::write(self.path("proc/cmdline"), line).unwrap();
        }
        panic!("no kernel reaches userspace");
    }
}

/// The programs of the host.
pub(crate) struct Programs {
    directory: PathBuf,
    failing: Failing,
}

impl HostCommand for Programs {
    async fn run(
        &self,
        program: &str,
        arguments: &[&str],
        _limit: Duration,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        assert_eq!((program, arguments[0]), (MKCONFIG, "-o"));
        let failing = self.failing.lock().unwrap().take();
        if failing.is_some() {
            fs::write(below(&self.directory, arguments[1]), "half a conf").unwrap();
            return Err("exit status 1".into());
        }
        mkconfig(&self.directory, arguments[1]);
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
