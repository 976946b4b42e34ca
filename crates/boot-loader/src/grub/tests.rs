//! The simulated boot loader on configs as grub-mkconfig writes them, and beside GRUB itself.

mod bls;
mod emulator;

use std::collections::BTreeMap;

use super::*;

/// Files by their paths.
#[derive(Default)]
struct Files(BTreeMap<String, String>);

impl Files {
    fn with(mut self, path: &str, text: impl Into<String>) -> Self {
        self.0.insert(path.to_owned(), text.into());
        self
    }
}

impl GrubFiles for Files {
    fn text(&self, path: &str) -> Option<String> {
        self.0.get(path).cloned()
    }

    fn size(&self, path: &str) -> Option<u64> {
        self.0.get(path).map(|text| text.len() as u64)
    }

    fn is_directory(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.0.keys().any(|file| file.starts_with(&below))
    }

    fn list(&self, path: &str) -> Vec<String> {
        let below = format!("{path}/");
        let names = self.0.keys().filter_map(|file| file.strip_prefix(&below));
        names.map(str::to_owned).collect()
    }
}

/// A config with the parts that grub-mkconfig writes on Debian: the environment block, the menu with a submenu, and
/// custom.cfg.
const CONFIG: &str = r#"
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
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
if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
export menuentry_id_option
function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
    save_env saved_entry
  fi
}
function load_video {
  if [ x$feature_all_video_module = xy ]; then
    insmod all_video
  else
    insmod efi_gop; insmod efi_uga
  fi
}
if loadfont unicode ; then set gfxmode=auto ; fi
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-1' {
	load_video
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	search --no-floppy --fs-uuid --set=root 1
	echo	'Loading Linux 6.1 ...'
	linux	/boot/vmlinuz-6.1 root=UUID=1 ro  quiet 'a=b c'
	initrd	/boot/initrd.img-6.1
}
submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-1' {
	menuentry 'Linux 6.1' $menuentry_id_option 'gnulinux-6.1' {
		linux	/boot/vmlinuz-6.1 root=UUID=1 ro
	}
	menuentry 'Linux 6.0 (recovery mode)' $menuentry_id_option 'gnulinux-6.0' {
		linux	/boot/vmlinuz-6.0 root=UUID=1 ro single
		initrd	/boot/initrd.img-6.0
	}
}
if [ -f  ${config_directory}/custom.cfg ]; then
  source ${config_directory}/custom.cfg
elif [ -z "${config_directory}" -a -f  $prefix/custom.cfg ]; then
  source $prefix/custom.cfg
fi
"#;

fn block(variables: &[(&str, &str)]) -> String {
    let mut block = EnvironmentBlock::default();
    for (name, value) in variables {
        block.set(name, value);
    }
    block.to_text().unwrap()
}

fn machine(variables: &[(&str, &str)]) -> Files {
    Files::default()
        .with("/boot/grub/grub.cfg", CONFIG)
        .with("/boot/grub/grubenv", block(variables))
        .with("/boot/vmlinuz-6.1", "kernel")
        .with("/boot/initrd.img-6.1", "initrd")
        .with("/boot/vmlinuz-6.0", "kernel")
}

const TRIAL: &str = "menuentry 'trial' --unrestricted --id machinist-1 {
  linux /boot/vmlinuz-6.1 root=UUID=1 ro quiet 'x=y z' panic=5
  initrd /boot/initrd.img-6.1
}
";

#[test]
fn the_first_entry_is_booted_by_default() {
    let files = machine(&[]);
    let boot = SimulatedGrub::new(&files, "/boot/grub").boot().unwrap();
    assert_eq!(boot.entry, ["gnulinux-simple-1"]);
    assert_eq!(boot.kernel, "/boot/vmlinuz-6.1");
    assert_eq!(boot.command_line, "root=UUID=1 ro quiet \"a=b c\"");
    assert_eq!(boot.initrds, ["/boot/initrd.img-6.1"]);
}

#[test]
fn an_entry_of_the_environment_block_is_booted_once() {
    let files = machine(&[("next_entry", "machinist-1"), ("other", "stays")]);
    let files = files.with("/boot/grub/custom.cfg", TRIAL);
    let mut grub = SimulatedGrub::new(&files, "/boot/grub");
    let boot = grub.boot().unwrap();
    assert_eq!(boot.entry, ["machinist-1"]);
    assert_eq!(boot.command_line, "root=UUID=1 ro quiet \"x=y z\" panic=5");
    let after = grub.environment.unwrap();
    assert_eq!(after.get("next_entry"), Some(""));
    assert_eq!(after.get("other"), Some("stays"));
    let files = files.with("/boot/grub/grubenv", after.to_text().unwrap());
    let boot = SimulatedGrub::new(&files, "/boot/grub").boot().unwrap();
    assert_eq!(boot.entry, ["gnulinux-simple-1"]);
}

#[test]
fn with_superusers_only_unrestricted_entries_boot_without_a_password() {
    let config = format!("set superusers=\"root\"\n{CONFIG}");
    let files = machine(&[]).with("/boot/grub/grub.cfg", &config);
    let boot = SimulatedGrub::new(&files, "/boot/grub").boot();
    assert_eq!(boot, Err(BootError::Password("gnulinux-simple-1".into())));
    let trial = machine(&[("next_entry", "machinist-1")])
        .with("/boot/grub/grub.cfg", &config)
        .with("/boot/grub/custom.cfg", TRIAL);
    let boot = SimulatedGrub::new(&trial, "/boot/grub").boot().unwrap();
    assert_eq!(boot.entry, ["machinist-1"]);
    for (option, boots) in [
        ("--unrestricted", true),
        ("--unrestricted --users ''", false),
    ] {
        let config = config.replace("--class debian", option);
        let files = machine(&[]).with("/boot/grub/grub.cfg", config);
        let boot = SimulatedGrub::new(&files, "/boot/grub").boot();
        assert_eq!(boot.is_ok(), boots, "{option}: {boot:?}");
    }
}

#[test]
fn entries_of_the_boot_loader_specification_name_who_may_boot_them() {
    let config = "set default=0\nload_env\nset blsdir=/boot/loader/entries\nblscfg\n";
    for (users, variable, boots) in [
        ("", "", true),
        ("grub_users $grub_users\n", "", true),
        ("grub_users $grub_users\n", "root", false),
        ("grub_users root\n", "", false),
    ] {
        let entry = format!("title one\nlinux /boot/vmlinuz-6.0\noptions root=UUID=1\n{users}");
        for (superusers, boots) in [("", true), ("set superusers=root\n", boots)] {
            let files = machine(&[("grub_users", variable)])
                .with("/boot/grub/grub.cfg", format!("{superusers}{config}"))
                .with("/boot/loader/entries/one.conf", entry.as_str());
            let boot = SimulatedGrub::new(&files, "/boot/grub").boot();
            assert_eq!(boot.is_ok(), boots, "{users}{variable}: {boot:?}");
        }
    }
}

#[test]
fn entries_of_submenus_are_found_by_number_name_and_title() {
    for (next, kernel) in [
        ("1>1", "/boot/vmlinuz-6.0"),
        ("gnulinux-advanced-1>gnulinux-6.1", "/boot/vmlinuz-6.1"),
        ("Advanced options>Linux 6.1", "/boot/vmlinuz-6.1"),
        // An unknown name means the first entry.
        ("unknown", "/boot/vmlinuz-6.1"),
    ] {
        let files = machine(&[("next_entry", next)]).with("/boot/initrd.img-6.0", "initrd");
        let boot = SimulatedGrub::new(&files, "/boot/grub").boot().unwrap();
        assert_eq!(boot.kernel, kernel, "{next}");
    }
}

#[test]
fn a_path_may_have_a_device_and_parents() {
    let files = Files::default()
        .with("/boot/loader/here", "")
        .with("/boot/grub/grub.cfg", "for file in here missing; do if [ -f \"($root)${prefix}/../loader//$file\" ]; then set found=\"$found$file\"; fi; done\n");
    let mut grub = SimulatedGrub::new(&files, "/boot/grub");
    grub.menu().unwrap();
    assert_eq!(grub.variable("found"), "here");
}

#[test]
fn a_boot_that_starts_no_kernel_says_why() {
    let files = machine(&[("next_entry", "1>1")]);
    let missing = SimulatedGrub::new(&files, "/boot/grub").boot();
    let initrd = "/boot/initrd.img-6.0".to_owned();
    assert_eq!(missing, Err(BootError::Missing(initrd)));
    for (text, why) in [
        ("", "no menu entry"),
        (
            "menuentry x { true }",
            "the menu entry \"x\" starts no kernel",
        ),
        (
            "if true; then",
            "GRUB cannot read /boot/grub/grub.cfg: line 1: fi was expected",
        ),
        (
            "\n\nset a='b",
            "GRUB cannot read /boot/grub/grub.cfg: line 3: unclosed '",
        ),
        ("blscfg non-default", "the command blscfg is not simulated"),
        (
            "menuentry x {",
            "GRUB cannot read /boot/grub/grub.cfg: line 1: unclosed {",
        ),
        ("while true; do true; done", "the scripts do not end"),
        ("function f { f; }; f", "the scripts do not end"),
        ("source $prefix/grub.cfg", "the scripts do not end"),
    ] {
        let files = Files::default().with("/boot/grub/grub.cfg", text);
        let error = SimulatedGrub::new(&files, "/boot/grub").boot().unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let found = [Some(error.to_string()), source].into_iter().flatten();
        assert_eq!(found.collect::<Vec<_>>().join(": "), why, "{text}");
    }
    let error = SimulatedGrub::new(&Files::default(), "/boot/grub").boot();
    assert_eq!(
        error.unwrap_err().to_string(),
        "/boot/grub/grub.cfg does not exist"
    );
}

#[test]
fn the_text_of_an_entry_can_be_used_for_another_one() {
    let files = machine(&[]);
    let mut grub = SimulatedGrub::new(&files, "/boot/grub");
    let menu = grub.menu().unwrap();
    let entry = &menu[0];
    assert_eq!(
        (entry.name(), entry.is_submenu),
        ("gnulinux-simple-1", false)
    );
    assert!(
        entry
            .source()
            .contains("search --no-floppy --fs-uuid --set=root 1\n")
    );
    let copy = format!(
        "{CONFIG}\nmenuentry copy --id copy {{{}}}\nset default=copy\n",
        entry.source()
    );
    let files = machine(&[]).with("/boot/grub/grub.cfg", copy);
    let boot = SimulatedGrub::new(&files, "/boot/grub").boot().unwrap();
    assert_eq!(
        (boot.entry[0].as_str(), boot.kernel.as_str()),
        ("copy", "/boot/vmlinuz-6.1")
    );
}
