//! A machine with OSTree and GRUB: real files, a simulated boot loader, and an `ostree admin` that changes the files of
//! deployments and of the menu as libostree does.

use std::{
    collections::HashMap,
    error::Error,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
    time::Duration,
};

use machinist_boot_loader::grub::{EnvironmentBlock, SimulatedGrub};
use machinist_update::os::{HostCommand, OstreeProvider, ProviderStep};
use zgvariant::{NATIVE_ENDIAN, OwnedVariant, Variant, serialized::Context, to_bytes};

use super::grub_machine::{Below, Failing, failing_root, root_until};

/// The arguments of the machine before the first step, without the one that selects a deployment.
pub(crate) const BEFORE: &str = "root=LABEL=root rw net.ifnames=0 quiet console=tty0 audit=0";

/// What an administrator wrote.
pub(crate) const CUSTOM: &str = "# by hand\nset color_normal=white/black\n";

/// The beginning and the end of the grub.cfg that grub-mkconfig writes.
const HEADER: &str = r#"if [ -s $prefix/grubenv ]; then
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
"#;
const FOOTER: &str = r#"if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
elif [ -z "${config_directory}" -a -f  $prefix/custom.cfg ]; then
  source $prefix/custom.cfg
fi
"#;

const OSTREE: &str = "/usr/bin/ostree";
const STAGED: &str = "run/ostree/staged-deployment";
const LOCKED: &str = "run/ostree/staged-deployment-locked";

/// The steps that fail because `ostree admin` does, the others at their first write.
const BY_PROGRAM: &[ProviderStep] = &[
    ProviderStep::Keep,
    ProviderStep::RollBack,
    ProviderStep::Discard,
    ProviderStep::Lock,
];

/// A deployment of the menu: its name and its arguments.
type Entry = (String, String);

pub(crate) struct OstreeMachine {
    files: Files,
    failing: Failing,
    panics: Mutex<Option<Entry>>,
}

/// The options of an entry as libostree writes them: of several equal ones, the last.
fn without_equal(options: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    // A blank inside quotes does not matter here: the parts are not equal to others.
    for word in options.split(' ') {
        words.retain(|other| *other != word || word.is_empty());
        words.push(word);
    }
    words.join(" ")
}

/// The files of the machine.
#[derive(Clone)]
struct Files(PathBuf);

impl Files {
    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn loader(&self) -> Option<u32> {
        let link = fs::read_link(self.path("boot/loader")).ok()?;
        link.to_str()?.strip_prefix("loader.")?.parse().ok()
    }

    /// The finalized deployments, the first of the menu first.
    fn menu(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for file in fs::read_dir(self.path("boot/loader/entries")).unwrap() {
            let text = fs::read_to_string(file.unwrap().path()).unwrap();
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name));
                line.unwrap().trim().to_owned()
            };
            let (options, selector) = {
                let options = field("options ");
                let (own, selector) = options.rsplit_once(" ostree=").unwrap();
                (own.to_owned(), selector.to_owned())
            };
            let target = fs::canonicalize(self.path(&selector)).unwrap();
            let name = target.file_name().unwrap().to_str().unwrap().to_owned();
            entries.push((field("version ").parse::<u32>().unwrap(), (name, options)));
        }
        entries.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
        entries.into_iter().map(|(_, entry)| entry).collect()
    }

    /// Writes another menu and selects it by one rename.
    fn write_menu(&self, menu: &[Entry]) {
        let old = self.loader();
        let new = 1 - old.unwrap_or(1);
        let mut config = HEADER.to_owned();
        for (index, (name, options)) in menu.iter().enumerate() {
            let selector = format!("/ostree/boot.{new}/debian/beef/{index}");
            let link = self.path(&selector);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&link);
            symlink(format!("../../../deploy/debian/deploy/{name}"), link).unwrap();
            let number = menu.len() - index;
            let line = format!("{} ostree={selector}", without_equal(options));
            let entry = format!(
                "title Debian (ostree:{index})\nversion {number}\noptions {line}\n\
                 linux /boot/ostree/debian-beef/vmlinuz-6.1\n"
            );
            self.write(
                &format!("boot/loader.{new}/entries/ostree-{number}.conf"),
                entry,
            );
            config.push_str(&format!(
                "menuentry 'Debian (ostree:{index})' --class os --unrestricted 'ostree-{index}-1234' {{\n\
                 linux /boot/ostree/debian-beef/vmlinuz-6.1 {line}\n}}\n"
            ));
        }
        config.push_str(FOOTER);
        self.write(&format!("boot/loader.{new}/grub.cfg"), config);
        symlink(format!("loader.{new}"), self.path("boot/loader.tmp")).unwrap();
        fs::rename(self.path("boot/loader.tmp"), self.path("boot/loader")).unwrap();
        if let Some(old) = old {
            fs::remove_dir_all(self.path(&format!("boot/loader.{old}"))).unwrap();
            fs::remove_dir_all(self.path(&format!("ostree/boot.{old}"))).unwrap();
        }
    }

    fn booted(&self) -> String {
        let mounts = self.read("proc/1/mountinfo");
        let (_, rest) = mounts.split_once("/deploy/debian/deploy/").unwrap();
        rest.split(' ').next().unwrap().to_owned()
    }

    fn staged(&self) -> Option<(String, Vec<String>)> {
        let bytes = fs::read(self.path(STAGED)).ok()?;
        let data = zgvariant::serialized::Data::new(bytes, Context::new(NATIVE_ENDIAN, 0));
        let (mut staged, _) = data.deserialize::<HashMap<String, OwnedVariant>>().unwrap();
        let target = staged.remove("target").unwrap();
        let mut target = HashMap::<String, OwnedVariant>::try_from(target).unwrap();
        let name = String::try_from(target.remove("name").unwrap()).unwrap();
        Some((name, staged.remove("kargs").unwrap().try_into().unwrap()))
    }

    fn write_staged(&self, name: &str, arguments: &[String]) {
        let target = HashMap::from([
            ("name", Variant::from(name)),
            ("osname", Variant::from("debian")),
            ("bootcsum", Variant::from("beef")),
        ]);
        let staged = HashMap::from([
            ("target", Variant::from(target)),
            ("kargs", Variant::from(arguments.to_vec())),
        ]);
        let bytes = to_bytes(Context::new(NATIVE_ENDIAN, 0), &staged).unwrap();
        self.write(STAGED, &*bytes);
    }

    fn remove_staged(&self) {
        if let Some((name, _)) = self.staged() {
            fs::remove_dir_all(self.path(&format!("ostree/deploy/debian/deploy/{name}"))).unwrap();
        }
        for file in [STAGED, LOCKED] {
            let _ = fs::remove_file(self.path(file));
        }
    }

    fn new_deployment(&self, commit: &str) -> String {
        let name = (0..).map(|serial| format!("{commit}.{serial}"));
        let directory = |name: &String| self.path(&format!("ostree/deploy/debian/deploy/{name}"));
        let name = name
            .into_iter()
            .find(|name| !directory(name).exists())
            .unwrap();
        fs::create_dir_all(directory(&name)).unwrap();
        let origin = "[origin]\nrefspec=debian/stable\n";
        self.write(
            &format!("ostree/deploy/debian/deploy/{name}.origin"),
            origin,
        );
        name
    }

    fn admin(&self, arguments: &[&str]) -> Result<(), String> {
        let menu = self.menu();
        let staged = self.staged();
        let offset = usize::from(staged.is_some());
        match arguments {
            ["deploy", rest @ ..] => self.deploy(rest),
            ["lock-finalization", rest @ ..] => {
                staged.ok_or("No staged deployment")?;
                match rest {
                    ["--unlock"] => drop(fs::remove_file(self.path(LOCKED))),
                    _ => self.write(LOCKED, ""),
                }
                Ok(())
            }
            ["undeploy", "0"] if offset == 1 => {
                self.remove_staged();
                Ok(())
            }
            ["undeploy", index] => {
                let index = index.parse::<usize>().unwrap() - offset;
                let mut menu = menu;
                let (name, _) = menu.remove(index);
                if name == self.booted() {
                    return Err("Cannot undeploy currently booted deployment".to_owned());
                }
                self.write_menu(&menu);
                fs::remove_dir_all(self.path(&format!("ostree/deploy/debian/deploy/{name}")))
                    .map_err(|error| error.to_string())
            }
            ["set-default", index] => {
                assert_eq!(offset, 0, "a staged deployment is the first one");
                let mut menu = menu;
                let entry = menu.remove(index.parse().unwrap());
                menu.insert(0, entry);
                self.write_menu(&menu);
                Ok(())
            }
            ["instutil", "set-kargs", words @ ..] => {
                assert_eq!(offset, 0, "it would change the staged deployment");
                let mut menu = menu;
                menu[0].1 = words.join(" ");
                self.write_menu(&menu);
                Ok(())
            }
            other => panic!("{other:?}"),
        }
    }

    fn deploy(&self, arguments: &[&str]) -> Result<(), String> {
        let value = |name: &str| arguments.iter().find_map(|word| word.strip_prefix(name));
        for flag in [
            "--stage",
            "--lock-finalization",
            "--karg-none",
            "--os=debian",
        ] {
            assert!(arguments.contains(&flag), "{flag}");
        }
        let origin = value("--origin-file=").unwrap();
        assert!(self.path(origin).exists(), "{origin}");
        let words = arguments
            .iter()
            .filter_map(|word| word.strip_prefix("--karg-append="));
        let words: Vec<String> = words.map(str::to_owned).collect();
        let name = self.new_deployment(arguments.last().unwrap());
        self.write(LOCKED, "");
        // The lock of the former one goes with it, and so does this one.
        if self.staged().is_some() {
            self.remove_staged();
        }
        self.write_staged(&name, &words);
        Ok(())
    }

    /// Where a deployment has its /etc while it does not run.
    fn etc_of(&self, name: &str) -> PathBuf {
        self.path(&format!("ostree/deploy/debian/deploy/{name}/etc"))
    }

    /// Exchanges /etc for that of the deployment that runs from now on.
    fn exchange_etc(&self, before: Option<&str>, now: &str) {
        let etc = self.path("etc");
        if before == Some(now) {
            return;
        }
        if let Some(before) = before {
            fs::rename(&etc, self.etc_of(before)).unwrap();
        }
        if self.etc_of(now).exists() {
            let _ = fs::remove_dir(&etc);
            fs::rename(self.etc_of(now), &etc).unwrap();
        }
    }

    /// What libostree does at shutdown: the new deployment gets a copy of /etc and comes first, and only the running one
    /// stays.
    fn finalize(&self) {
        let Some((name, words)) = self.staged() else {
            return;
        };
        if self.path(LOCKED).exists() {
            return;
        }
        let booted = self.booted();
        let mut copy = Command::new("cp");
        copy.arg("-a").arg(self.path("etc")).arg(self.etc_of(&name));
        assert!(copy.status().unwrap().success());
        let mut menu = self.menu();
        menu.retain(|(name, _)| *name == booted);
        menu.insert(0, (name, words.join(" ")));
        self.write_menu(&menu);
    }
}

impl OstreeMachine {
    /// A machine with two deployments.
    pub(crate) fn new(directory: &Path) -> Self {
        let files = Files(directory.to_owned());
        for (path, text) in [
            ("boot/grub/custom.cfg", CUSTOM),
            ("boot/ostree/debian-beef/vmlinuz-6.1", "kernel"),
            ("usr/bin/ostree", "x ostree_sysroot_change_finalization x"),
            ("run/ostree-booted", ""),
            ("sys/dev/block/8:2/dev", "8:2\n"),
        ] {
            files.write(path, text);
        }
        let block = format!(
            "# GRUB Environment Block\nsaved_entry=x\n{}",
            "#".repeat(985)
        );
        files.write("boot/grub/grubenv", block);
        symlink("../loader/grub.cfg", files.path("boot/grub/grub.cfg")).unwrap();
        let menu = ["cd", "ab"].map(|commit| (files.new_deployment(commit), BEFORE.to_owned()));
        fs::create_dir_all(files.path("etc")).unwrap();
        fs::create_dir_all(files.etc_of("ab.0")).unwrap();
        files.write_menu(&menu);
        let machine = Self {
            files,
            failing: Failing::default(),
            panics: Mutex::default(),
        };
        machine.boot();
        machine
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
        let root = failing_root(&self.files.0, &self.failing, BY_PROGRAM);
        OstreeProvider::new(root, self.program(&self.failing))
    }

    /// A provider on a machine that loses power: file operations fail from this one on.
    pub(crate) fn agent_until(&self, operations: usize) -> OstreeProvider<OstreeProgram> {
        let root = root_until(&self.files.0, operations).0;
        OstreeProvider::new(root, self.program(&Failing::default()))
    }

    fn program(&self, failing: &Failing) -> OstreeProgram {
        OstreeProgram {
            files: self.files.clone(),
            failing: Arc::clone(failing),
        }
    }

    pub(crate) fn fails_next(&self, step: ProviderStep) {
        *self.failing.lock().unwrap() = Some(step);
    }

    /// The kernel of the staged deployment, which has this name, panics from now on. A later one may get the same name.
    pub(crate) fn panics(&self, name: &str) {
        let (staged, words) = self.files.staged().unwrap();
        assert_eq!(staged, name);
        *self.panics.lock().unwrap() = Some((staged, words.join(" ")));
    }

    /// Shuts down properly and boots again.
    pub(crate) fn reboot(&self) {
        self.files.finalize();
        self.boot();
    }

    /// Boots until a kernel reaches userspace.
    pub(crate) fn boot(&self) {
        fs::remove_dir_all(self.files.path("run/ostree")).ok();
        for _ in 0..4 {
            let files = Below(&self.files.0);
            let mut grub = SimulatedGrub::new(&files, "/boot/grub");
            let boot = grub.boot().unwrap();
            let block: EnvironmentBlock = grub.block.unwrap();
            self.files
                .write("boot/grub/grubenv", block.to_text().unwrap());
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
            let mounts =
                format!("22 1 8:2 /ostree/deploy/debian/deploy/{name} / rw - ext4 /dev/sda2 rw\n");
            self.files.write("proc/1/mountinfo", mounts);
            let line = format!("BOOT_IMAGE={} {line}\n", boot.kernel);
            return self.files.write("proc/cmdline", line);
        }
        panic!("no kernel reaches userspace");
    }
}

/// The program `ostree`.
pub(crate) struct OstreeProgram {
    files: Files,
    failing: Failing,
}

impl HostCommand for OstreeProgram {
    async fn run(
        &self,
        program: &str,
        arguments: &[&str],
        _limit: Duration,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        assert_eq!((program, arguments[0]), (OSTREE, "admin"));
        if self.failing.lock().unwrap().take().is_some() {
            return Err("exit status 1".into());
        }
        Ok(self.files.admin(&arguments[1..])?)
    }
}
