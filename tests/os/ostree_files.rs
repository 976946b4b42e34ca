//! The files of a machine with OSTree and GRUB, and an `ostree admin` that changes deployments and the menu as libostree
//! does.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    libc::{F_WRLCK, SEEK_SET, flock},
};
use zgvariant::{NATIVE_ENDIAN, OwnedVariant, Variant, serialized::Context, to_bytes};

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
set timeout=5
"#;
const FOOTER: &str = r#"if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
elif [ -z "${config_directory}" -a -f  $prefix/custom.cfg ]; then
  source $prefix/custom.cfg
fi
"#;

/// The commit of deployments that other programs stage.
pub(super) const FOREIGN_COMMIT: &str = "ef";

const STAGED: &str = "run/ostree/staged-deployment";
pub(super) const LOCKED: &str = "run/ostree/staged-deployment-locked";

/// A deployment of the menu: its name and its arguments.
pub(super) type Entry = (String, String);

/// How GRUB finds the deployments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// libostree lets grub-mkconfig write the menu; /boot is on the root file system.
    Debian,
    /// GRUB has bootupd's configuration and reads the boot entries; /boot is a file system of its own. There is bootc.
    Bootc,
    /// As with bootc, but there is rpm-ostree instead.
    RpmOstree,
    /// There are both, as on RHEL CoreOS.
    BootcAndRpmOstree,
}

impl Layout {
    /// The directory of GRUB's configuration.
    pub(super) const fn grub(self) -> &'static str {
        match self {
            Self::Debian => "boot/grub",
            _ => "boot/grub2",
        }
    }

    /// The programs that change images and packages.
    pub(super) const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Debian => &[],
            Self::Bootc => &["usr/bin/bootc"],
            Self::RpmOstree => &["usr/bin/rpm-ostree"],
            Self::BootcAndRpmOstree => &["usr/bin/bootc", "usr/bin/rpm-ostree"],
        }
    }

    /// How /boot is mounted, where it is a file system of its own.
    pub(super) const fn boot_options(self) -> &'static str {
        match self {
            Self::Debian | Self::Bootc => "rw",
            // As on Fedora CoreOS.
            Self::RpmOstree | Self::BootcAndRpmOstree => "ro",
        }
    }

    /// The path of the kernel in GRUB's file system.
    const fn kernel(self) -> &'static str {
        match self {
            Self::Debian => "/boot/ostree/debian-beef/vmlinuz-6.1",
            _ => "/ostree/debian-beef/vmlinuz-6.1",
        }
    }
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
pub(super) struct Files {
    pub(super) directory: PathBuf,
    pub(super) layout: Layout,
    /// After this command of machinist, an administrator stages a deployment.
    pub(super) overtaken_after: Arc<Mutex<Option<&'static str>>>,
}

impl Files {
    pub(super) fn new(directory: &Path, layout: Layout) -> Self {
        Self {
            directory: directory.to_owned(),
            layout,
            overtaken_after: Arc::default(),
        }
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.directory.join(path.trim_start_matches('/'))
    }

    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_default()
    }

    pub(super) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(path), text).unwrap();
    }

    fn loader(&self) -> Option<u32> {
        let link = fs::read_link(self.path("boot/loader")).ok()?;
        link.to_str()?.strip_prefix("loader.")?.parse().ok()
    }

    /// The finalized deployments, the first of the menu first.
    pub(super) fn menu(&self) -> Vec<Entry> {
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

    /// Replaces the kernel of the first entry of the menu by one that does not exist.
    pub(super) fn remove_kernel(&self) {
        let file = "boot/loader/grub.cfg";
        let text = self.read(file).replacen("vmlinuz-6.1", "vmlinuz-6.0", 1);
        self.write(file, text);
    }

    /// Checks that the inode of the link to the menu stays when libostree replaces the link: a power cut during its writes
    /// would leave GRUB without a menu.
    pub(super) fn check_menu_link(&self) {
        let link = fs::symlink_metadata(self.path("boot/loader")).unwrap();
        assert_eq!(link.nlink(), 2, "the link has no second name");
    }

    /// Writes another menu and selects it by one rename.
    pub(super) fn write_menu(&self, menu: &[Entry]) {
        let old = self.loader();
        let new = 1 - old.unwrap_or(1);
        let mut config = HEADER.to_owned();
        let kernel = self.layout.kernel();
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
                 linux {kernel}\n"
            );
            self.write(
                &format!("boot/loader.{new}/entries/ostree-{number}.conf"),
                entry,
            );
            config.push_str(&format!(
                "menuentry 'Debian (ostree:{index})' --class os --unrestricted 'ostree-{index}-1234' {{\n\
                 linux {kernel} {line}\n}}\n"
            ));
        }
        config.push_str(FOOTER);
        if self.layout == Layout::Debian {
            self.write(&format!("boot/loader.{new}/grub.cfg"), config);
        }
        symlink(format!("loader.{new}"), self.path("boot/loader.tmp")).unwrap();
        fs::rename(self.path("boot/loader.tmp"), self.path("boot/loader")).unwrap();
        if let Some(old) = old {
            fs::remove_dir_all(self.path(&format!("boot/loader.{old}"))).unwrap();
            fs::remove_dir_all(self.path(&format!("ostree/boot.{old}"))).unwrap();
        }
    }

    pub(super) fn booted(&self) -> String {
        let mounts = self.read("proc/1/mountinfo");
        let (_, rest) = mounts.split_once("/deploy/debian/deploy/").unwrap();
        rest.split(' ').next().unwrap().to_owned()
    }

    pub(super) fn staged(&self) -> Option<(String, Vec<String>)> {
        let bytes = fs::read(self.path(STAGED)).ok()?;
        let data = zgvariant::serialized::Data::new(bytes, Context::new(NATIVE_ENDIAN, 0));
        let (mut staged, _) = data.deserialize::<HashMap<String, OwnedVariant>>().unwrap();
        let target = staged.remove("target").unwrap();
        let mut target = HashMap::<String, OwnedVariant>::try_from(target).unwrap();
        let name = String::try_from(target.remove("name").unwrap()).unwrap();
        Some((name, staged.remove("kargs").unwrap().try_into().unwrap()))
    }

    pub(super) fn write_staged(&self, name: &str, arguments: &[String]) {
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

    pub(super) fn remove_staged(&self) {
        if let Some((name, _)) = self.staged() {
            fs::remove_dir_all(self.path(&format!("ostree/deploy/debian/deploy/{name}"))).unwrap();
        }
        for file in [STAGED, LOCKED] {
            let _ = fs::remove_file(self.path(file));
        }
    }

    pub(super) fn new_deployment(&self, commit: &str) -> String {
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

    /// Stages a deployment of an administrator, if that comes after this command.
    pub(super) fn overtake(&self, command: &str) {
        let mut after = self.overtaken_after.lock().unwrap();
        if after.take_if(|after| *after == command).is_some() {
            let name = self.new_deployment(FOREIGN_COMMIT);
            self.remove_staged();
            self.write_staged(&name, &["quiet".to_owned()]);
        }
    }

    /// Whether libostree would have to wait for its lock.
    fn is_sysroot_locked(&self) -> bool {
        let file = fs::File::options()
            .write(true)
            .open(self.path("ostree/lock"));
        let whole_file = flock {
            l_type: F_WRLCK.try_into().unwrap(),
            l_whence: SEEK_SET.try_into().unwrap(),
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        fcntl(file.unwrap(), FcntlArg::F_OFD_SETLK(&whole_file)).is_err()
    }

    pub(super) fn admin(&self, arguments: &[&str]) -> Result<(), String> {
        // Another command would wait for ever for a lock that machinist holds.
        let needs_lock = arguments.starts_with(&["instutil", "set-kargs"]);
        assert_eq!(self.is_sysroot_locked(), needs_lock, "{arguments:?}");
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
                self.overtake("undeploy");
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
        let origin = fs::read_to_string(self.path(origin)).unwrap();
        let words = arguments
            .iter()
            .filter_map(|word| word.strip_prefix("--karg-append="));
        let words: Vec<String> = words.map(str::to_owned).collect();
        let name = self.new_deployment(arguments.last().unwrap());
        self.write(
            &format!("ostree/deploy/debian/deploy/{name}.origin"),
            origin,
        );
        self.write(LOCKED, "");
        // The lock of the former one goes with it, and so does this one.
        if self.staged().is_some() {
            self.remove_staged();
        }
        self.write_staged(&name, &words);
        Ok(())
    }

    /// Where a deployment has its /etc while it does not run.
    pub(super) fn etc_of(&self, name: &str) -> PathBuf {
        self.path(&format!("ostree/deploy/debian/deploy/{name}/etc"))
    }

    /// Exchanges /etc for that of the deployment that runs from now on.
    pub(super) fn exchange_etc(&self, before: Option<&str>, now: &str) {
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
    pub(super) fn finalize(&self) {
        let Some((name, words)) = self.staged() else {
            return;
        };
        if self.path(LOCKED).exists() {
            return;
        }
        let is_trial = words.iter().any(|word| word == "panic=10");
        if is_trial && !name.starts_with(FOREIGN_COMMIT) {
            self.check_menu_link();
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
