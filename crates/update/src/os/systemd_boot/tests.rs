//! Entries of trials and of kept deployments on a host with the files of kernel-install.

use super::{
    kept_entry::KeptEntry,
    new_entry::{NewEntry, check},
    state::SystemdBootState,
};
use crate::os::{
    DesiredDeployment, KernelArgumentEdit, OsError, ProviderStep, trial_arguments::without_trial,
};
use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::systemd_boot::MenuEntry;
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::Root;
use tempfile::TempDir;

struct Host(TempDir);

impl Host {
    /// A host on which machinist has kept these arguments.
    fn with_kept(own: &str) -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        let mounts = "31 22 8:1 / /efi rw - vfat /dev/sda1 rw\n";
        host.write("proc/1/mountinfo", mounts);
        host.write("efi/1234/6.1/linux", "kernel");
        host.write("efi/1234/6.1/initrd", "initrd");
        let entry =
            "sort-key debian\nmachine-id 1234\nlinux /1234/6.1/linux\ninitrd /1234/6.1/initrd\n";
        host.write(
            "efi/loader/entries/1234-6.1.conf",
            &format!("version 6.1\noptions root=x ro\n{entry}"),
        );
        let kept = format!(
            "# Host: root=x ro\n# Current: {own}\n# Previous: \nversion 6.1.machinist1\noptions root=x ro {own}\n{entry}"
        );
        host.write("efi/loader/entries/machinist-1.conf", &kept);
        host.runs(&format!("root=x ro {own}"));
        host
    }

    fn root(&self) -> Root {
        Root::open(self.0.path()).unwrap()
    }

    fn write(&self, path: &str, text: &str) {
        let path = AbsPath::new(format!("/{path}")).unwrap();
        let root = self.root();
        root.make_dirs(&path.parent().unwrap(), 0o755).unwrap();
        root.replace(&path, text.as_bytes(), 0o644).unwrap();
    }

    /// Installs a newer kernel, which becomes the default.
    fn install_kernel(&self, file: &str, options: &str) {
        self.write("efi/1234/6.2/linux", "kernel");
        self.write("efi/1234/6.2/initrd", "initrd");
        let entry = format!(
            "version 6.2\nsort-key debian\nmachine-id 1234\noptions {options}\nlinux /1234/6.2/linux\ninitrd \
             /1234/6.2/initrd\n"
        );
        self.write(&format!("efi/loader/entries/{file}"), &entry);
    }

    fn runs(&self, arguments: &str) {
        self.write("proc/cmdline", arguments);
    }

    fn state(&self) -> SystemdBootState {
        SystemdBootState::read(&self.root()).unwrap()
    }
}

fn wanted(append: &str, remove: &str) -> DesiredDeployment {
    let [append, remove] = [append, remove].map(KernelCommandLine::parse);
    DesiredDeployment {
        kernel_arguments: KernelArgumentEdit { remove, append },
        ..DesiredDeployment::default()
    }
}

/// The package of a kernel makes the initial RAM disk after its entry.
#[test]
fn a_kernel_that_is_being_installed_is_not_kept() {
    let host = Host::with_kept("nosmt");
    let state = host.state();
    let trial = NewEntry::of(&state, &wanted("a=1", "")).unwrap().unwrap();
    host.write(
        "efi/loader/entries/machinist-trial.conf",
        &trial.text.unwrap(),
    );
    let keep = || {
        let state = host.state();
        let own = KernelCommandLine::parse("nosmt a=1");
        let kept = KeptEntry::of(&state, &state.kept.followed_by(state.host.clone(), own));
        kept.map_err(|error| error.at(ProviderStep::Keep))
    };
    let is_busy = || matches!(keep(), Err(OsError::Busy { .. }));
    assert!(!is_busy());
    host.install_kernel("1234-6.2.conf", "root=x ro nosmt");
    let initrd = AbsPath::new("/efi/1234/6.2/initrd").unwrap();
    host.root().remove_file(&initrd).unwrap();
    assert!(is_busy(), "the initial RAM disk does not exist");
    let entry = "version 6.2\nsort-key debian\nmachine-id 1234\noptions root=x ro nosmt\nlinux /1234/6.2/linux\n";
    host.write("efi/loader/entries/1234-6.2.conf", entry);
    assert!(is_busy(), "the entry has none yet");
    host.install_kernel("1234-6.2.conf", "root=x ro nosmt");
    keep().unwrap();
}

/// The pattern of the documentation matches only the kept entry.
#[test]
fn a_default_that_only_the_loader_may_find_is_refused() {
    let host = Host::with_kept("nosmt");
    for (default, is_accepted) in [
        ("machinist-[0-9]*", true),
        ("machinist-2.conf", true),
        ("auto-windows", false),
        ("4321-*", false),
    ] {
        let config = format!("default {default}\n");
        host.write("efi/loader/loader.conf", &config);
        let checked = check(&host.root(), &wanted("a=1", ""));
        assert_eq!(checked.is_ok(), is_accepted, "{default}");
    }
}

#[test]
fn an_argument_that_kernel_install_would_change_is_refused() {
    let host = Host::with_kept("nosmt");
    for (argument, is_accepted) in [
        ("a=\"b c\"", true),
        ("a=b  c=d", true),
        ("a=\"b  c\"", false),
        ("a=\"b\tc\"", false),
    ] {
        let entry = NewEntry::of(&host.state(), &wanted(argument, ""));
        assert_eq!(entry.is_ok(), is_accepted, "{argument}");
    }
}

/// The copy would have no counter, so that no boot would leave a kernel that does not start.
#[test]
fn an_entry_that_no_boot_has_confirmed_is_not_copied() {
    let host = Host::with_kept("nosmt");
    host.install_kernel("1234-6.2+3.conf", "root=x ro nosmt");
    let state = host.state();
    let refused = NewEntry::of(&state, &wanted("a=1", "")).map(drop);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("1234-6.2+3.conf"), "{text}");
    let kept = state.kept.clone();
    assert!(KeptEntry::of(&state, &kept).is_err());
    host.install_kernel("1234-6.2.conf", "root=x ro nosmt");
    let counted = AbsPath::new("/efi/loader/entries/1234-6.2+3.conf").unwrap();
    host.root().remove_file(&counted).unwrap();
    NewEntry::of(&host.state(), &wanted("a=1", "")).unwrap();
}

/// kernel-install appends `systemd.machine_id=` to the arguments of /etc/kernel/cmdline.
#[test]
fn arguments_before_those_that_kernel_install_appends_are_changed() {
    for (own, remove, append, expected) in [
        ("nosmt", "nosmt", "", ""),
        (
            "isolcpus=1-3",
            "isolcpus=1-3",
            "isolcpus=4-7",
            " isolcpus=4-7",
        ),
        ("nosmt", "", "audit=0", " nosmt audit=0"),
        ("a=1 b=1", "a=1 b=1", "b=1 a=1", " b=1 a=1"),
    ] {
        let host = Host::with_kept(own);
        let options = format!("root=x ro {own} systemd.machine_id=1234");
        host.install_kernel("1234-6.2.conf", &options);
        host.runs(&options);
        let state = host.state();
        let before = state.selected();
        assert_eq!(state.booted(), before);
        assert_eq!(state.kept.current, KernelCommandLine::parse(own));
        let expected = format!("root=x ro systemd.machine_id=1234{expected}");
        let entry = NewEntry::of(&state, &wanted(append, remove)).unwrap();
        let text = entry.unwrap().text.unwrap();
        let entry = MenuEntry::parse("machinist-trial.conf", &text, "x64").unwrap();
        let (trial, is_trial) = without_trial(&KernelCommandLine::parse(&entry.options));
        assert!(is_trial);
        assert_eq!(trial.to_string(), expected);
        let own = state.own_arguments(&trial).unwrap();
        let kept = KeptEntry::of(&state, &state.kept.followed_by(state.host.clone(), own)).unwrap();
        host.write(&format!("efi/loader/entries/{}", kept.file), &kept.text);
        let state = host.state();
        assert_eq!(state.selected().kernel_arguments.to_string(), expected);
        // A rollback finds the deployment from which the update began.
        assert_eq!(state.previous().unwrap().id, before.id);
    }
}
