//! A host with packages and GRUB: real files, a simulated boot loader, and a grub-mkconfig that runs the shell on
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

use machinist_boot_loader::grub::{GrubFiles, SimulatedGrub};
use machinist_plan::ImageRef;
use machinist_rootfs::Root;
use machinist_update::os::{DeploymentId, GrubProvider, HostCommand, ProviderStep};

use machinist_ignition::KernelCommandLine;
use machinist_update::os::{DesiredDeployment, KernelArguments, OsProvider as _, STEP_TIMEOUT};

use super::contract::{Host, every_provider_keeps};

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

/// What an administrator wrote.
const CUSTOM: &str = "# by hand\nset color_normal=white/black\n";

/// The step that fails next.
type Failing = Arc<Mutex<Option<ProviderStep>>>;

pub(crate) struct GrubHost {
    directory: tempfile::TempDir,
    failing: Failing,
    panics: Mutex<Option<DeploymentId>>,
}

/// Files below a directory.
struct Below<'d>(&'d Path);

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
}

fn below(directory: &Path, path: &str) -> PathBuf {
    directory.join(path.trim_start_matches('/'))
}

/// Writes the config as grub-mkconfig does.
fn mkconfig(directory: &Path, to: &str) {
    let script = r#"cd "$1"; . ./etc/default/grub
for file in ./etc/default/grub.d/*.cfg; do if test -e "$file"; then . "$file"; fi; done
printf %s "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT""#;
    let mut shell = Command::new("sh");
    shell.args(["-eu", "-c", script, "sh"]).arg(directory);
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let arguments = String::from_utf8(output.stdout).unwrap();
    let text = CONFIG.replace("@ARGUMENTS@", &arguments);
    fs::write(below(directory, to), text).unwrap();
}

impl GrubHost {
    /// A host on which machinist has kept a deployment before.
    pub(crate) fn new() -> Self {
        let host = Self {
            directory: tempfile::tempdir().unwrap(),
            failing: Failing::default(),
            panics: Mutex::default(),
        };
        for directory in ["boot/grub", "etc/default/grub.d", "proc"] {
            fs::create_dir_all(host.path(directory)).unwrap();
        }
        let default = "GRUB_CMDLINE_LINUX='net.ifnames=0'\nGRUB_CMDLINE_LINUX_DEFAULT=\"quiet console=tty0\"\n";
        let own = "GRUB_CMDLINE_LINUX_DEFAULT=\"$GRUB_CMDLINE_LINUX_DEFAULT audit=0 quiet\"\n\
                   # Host: root=UUID=1234 ro net.ifnames=0 quiet console=tty0\n\
                   # Current: audit=0 quiet\n# Previous: audit=1\n";
        for (path, text) in [
            ("etc/default/grub", default),
            ("etc/default/grub.d/99-machinist.cfg", own),
            (
                "boot/grub/custom.cfg",
                "# by hand\nset color_normal=white/black\n",
            ),
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
        mkconfig(host.directory.path(), "/boot/grub/grub.cfg");
        host.boot();
        host
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        below(self.directory.path(), path)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    /// A provider whose file operations fail from this one on, like those of a machine that loses power.
    fn agent_until(&self, operations: usize) -> GrubProvider<Programs> {
        let done = Arc::new(AtomicUsize::new(0));
        let root = Root::open(self.directory.path()).unwrap();
        let root = root.with_fault(Arc::new(move |_| {
            let before = done.fetch_add(1, Ordering::Relaxed);
            (before >= operations).then(|| std::io::ErrorKind::Other.into())
        }));
        let programs = Programs {
            directory: self.directory.path().to_owned(),
            failing: Failing::default(),
        };
        GrubProvider::new(root, programs)
    }

    fn running(&self) -> String {
        let line = self.read("proc/cmdline");
        let line = line.trim().split_once(' ').unwrap().1;
        let (line, _) = line.split_once(" panic=10").unwrap_or((line, ""));
        line.to_owned()
    }

    /// Boots until a kernel reaches userspace.
    fn boot(&self) {
        for _ in 0..3 {
            let files = Below(self.directory.path());
            let mut grub = SimulatedGrub::new(&files, "/boot/grub");
            let boot = grub.boot().unwrap();
            let block = grub.block.unwrap().to_text().unwrap();
            fs::write(self.path("boot/grub/grubenv"), block).unwrap();
            let line = boot.command_line;
            let panics = self.panics.lock().unwrap().clone();
            let fails = panics.is_some_and(|id| boot.entry == [id.as_str()]);
            if fails {
                assert!(line.contains("panic="), "it hangs for ever: {line}");
                continue;
            }
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
        assert_eq!((program, arguments[0]), ("grub-mkconfig", "-o"));
        let failing = self.failing.lock().unwrap().take();
        if failing.is_some() {
            fs::write(below(&self.directory, arguments[1]), "half a conf").unwrap();
            return Err("exit status 1".into());
        }
        mkconfig(&self.directory, arguments[1]);
        Ok(())
    }
}

impl Host for GrubHost {
    type Provider = GrubProvider<Programs>;

    const CHANGES_IMAGES: bool = false;

    fn agent(&self) -> Self::Provider {
        let failing = Arc::clone(&self.failing);
        let root = Root::open(self.directory.path()).unwrap();
        // A step that runs no program fails at its first write.
        let root = root.with_fault(Arc::new(move |_| {
            let mut failing = failing.lock().unwrap();
            let by_program = [Some(ProviderStep::Keep), Some(ProviderStep::RollBack)];
            match failing.is_some() && !by_program.contains(&failing) {
                true => failing
                    .take()
                    .map(|_| std::io::ErrorKind::StorageFull.into()),
                false => None,
            }
        }));
        let programs = Programs {
            directory: self.directory.path().to_owned(),
            failing: Arc::clone(&self.failing),
        };
        GrubProvider::new(root, programs)
    }

    fn reboot(&self) {
        self.boot();
    }

    /// Every write is durable, so that a power cut leaves what a shutdown leaves.
    fn power_cut(&self) {
        self.boot();
    }

    fn publishes(&self, _image: &ImageRef, _version: &str) {}

    fn fails_next(&self, step: ProviderStep) {
        *self.failing.lock().unwrap() = Some(step);
    }

    fn panics(&self, id: &DeploymentId) {
        *self.panics.lock().unwrap() = Some(id.clone());
    }

    fn takes(&self, _long: Duration) {}
}

#[tokio::test(start_paused = true)]
async fn the_grub_provider_passes_the_contract() {
    let broken = every_provider_keeps(GrubHost::new).await;
    assert!(broken.is_empty(), "{broken:#?}");
}

fn wanted(append: &str, remove: &str) -> DesiredDeployment {
    DesiredDeployment {
        kernel_arguments: KernelArguments {
            append: KernelCommandLine::parse(append),
            remove: KernelCommandLine::parse(remove),
        },
        ..DesiredDeployment::default()
    }
}

const BEFORE: &str = "root=UUID=1234 ro net.ifnames=0 quiet console=tty0 audit=0 quiet";

/// After a power cut at any moment the machine boots with the arguments of before or with the new ones, and the steps can
/// be repeated or undone.
#[tokio::test]
async fn a_power_cut_during_any_grub_step_leaves_one_of_two_deployments() {
    let after = format!("{BEFORE} nosmt");
    for step in ["stage", "unlock", "keep", "roll_back", "discard"] {
        for operations in 0.. {
            let host = GrubHost::new();
            let first = host.agent().observe().await.unwrap().booted.id;
            let mut id = None;
            if step != "stage" {
                id = host
                    .agent()
                    .stage(&wanted("nosmt", ""), STEP_TIMEOUT)
                    .await
                    .unwrap();
            }
            if ["keep", "roll_back"].contains(&step) {
                host.agent().unlock(id.as_ref().unwrap()).await.unwrap();
                host.reboot();
            }
            if step == "roll_back" {
                host.agent().keep(id.as_ref().unwrap()).await.unwrap();
            }
            let agent = host.agent_until(operations);
            let done = match step {
                "stage" => agent
                    .stage(&wanted("nosmt", ""), STEP_TIMEOUT)
                    .await
                    .map(drop),
                "unlock" => agent.unlock(id.as_ref().unwrap()).await,
                "keep" => agent.keep(id.as_ref().unwrap()).await,
                "roll_back" => agent.roll_back(&first).await,
                _ => agent.discard().await,
            };
            host.power_cut();
            let running = host.running();
            let case = format!("{step} after {operations} operations");
            assert!([BEFORE, &after].contains(&&*running), "{case}: {running}");
            // The next process can discard it, and stage and keep another deployment.
            let agent = host.agent();
            agent.discard().await.unwrap();
            let staged = agent
                .stage(&wanted("b=1", "nosmt"), STEP_TIMEOUT)
                .await
                .unwrap();
            agent.unlock(&staged.clone().unwrap()).await.unwrap();
            host.reboot();
            host.agent().keep(&staged.unwrap()).await.unwrap();
            host.reboot();
            assert_eq!(host.running(), format!("{BEFORE} b=1"), "{case}");
            assert_eq!(host.read("boot/grub/custom.cfg"), CUSTOM, "{case}");
            if done.is_ok() {
                break;
            }
            assert!(operations < 200, "{case}");
        }
    }
}

#[tokio::test]
async fn arguments_that_need_quotes_reach_the_kernel_in_every_boot() {
    let host = GrubHost::new();
    let text =
        "a=\"b  c\" d=$x e=`y` f=#z;g|h&i \"j=k l\" m=*?[n]~ console=ttyS0 console=tty1 o={p}<q>";
    let id = host
        .agent()
        .stage(&wanted(text, ""), STEP_TIMEOUT)
        .await
        .unwrap()
        .unwrap();
    host.agent().unlock(&id).await.unwrap();
    let expected = KernelCommandLine::parse(&format!("{BEFORE} {text}"));
    for kept in [false, true] {
        host.reboot();
        assert_eq!(
            KernelCommandLine::parse(&host.running()),
            expected,
            "kept: {kept}"
        );
        host.agent().keep(&id).await.unwrap();
    }
    for text in ["a=\\b", "a=it's", "a=b\"c\"d"] {
        let refused = host
            .agent()
            .stage(&wanted(text, ""), STEP_TIMEOUT)
            .await
            .unwrap_err();
        assert!(!refused.is_retryable());
    }
}

/// update-grub of the distribution may run at any moment, for example with a new kernel package.
#[tokio::test]
async fn the_distributions_update_grub_changes_nothing_between_the_steps() {
    let host = GrubHost::new();
    let update_grub = || mkconfig(host.directory.path(), "/boot/grub/grub.cfg");
    let id = host
        .agent()
        .stage(&wanted("nosmt", ""), STEP_TIMEOUT)
        .await
        .unwrap()
        .unwrap();
    update_grub();
    host.reboot();
    assert_eq!(host.running(), BEFORE);
    host.agent().unlock(&id).await.unwrap();
    update_grub();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
    update_grub();
    host.agent().keep(&id).await.unwrap();
    update_grub();
    host.reboot();
    assert_eq!(host.running(), format!("{BEFORE} nosmt"));
}

#[tokio::test]
async fn a_grub_config_that_would_not_boot_as_wanted_is_not_used() {
    let host = GrubHost::new();
    let id = host
        .agent()
        .stage(&wanted("nosmt", ""), STEP_TIMEOUT)
        .await
        .unwrap()
        .unwrap();
    host.agent().unlock(&id).await.unwrap();
    host.reboot();
    let before = host.read("boot/grub/grub.cfg");
    let own = host.read("etc/default/grub.d/99-machinist.cfg");
    // A later file drops the arguments.
    let later = host.path("etc/default/grub.d/zz.cfg");
    fs::write(&later, "GRUB_CMDLINE_LINUX_DEFAULT=quiet\n").unwrap();
    let error = host.agent().keep(&id).await.unwrap_err();
    let text = machinist_base::error_chain::chain(&error);
    assert!(text.contains("the entry would boot with"), "{text}");
    assert_eq!(host.read("boot/grub/grub.cfg"), before);
    assert_eq!(host.read("etc/default/grub.d/99-machinist.cfg"), own);
    assert!(!host.path("boot/grub/machinist-new.cfg").exists());
    fs::remove_file(later).unwrap();
    // A kernel that was removed cannot be staged, nor its entry unlocked.
    host.reboot();
    let staged = host
        .agent()
        .stage(&wanted("nosmt", ""), STEP_TIMEOUT)
        .await
        .unwrap()
        .unwrap();
    fs::remove_file(host.path("boot/initrd.img-6.1")).unwrap();
    let stale = host.agent().unlock(&staged).await.unwrap_err();
    let stale = machinist_base::error_chain::chain(&stale);
    assert!(
        stale.contains("/boot/initrd.img-6.1 does not exist"),
        "{stale}"
    );
}
