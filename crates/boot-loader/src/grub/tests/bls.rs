//! The menu of hosts on which GRUB reads boot entries.

use machinist_ignition::KernelCommandLine;

use super::*;

/// The grub.cfg that bootupd writes on hosts with image mode, shortened to what makes the menu.
const STATIC_CONFIG: &str = r#"
if [ -d (md/md-boot)/grub2 ]; then
  set boot=md/md-boot
  set prefix=($boot)/grub2
else
  if [ -f ${config_directory}/bootuuid.cfg ]; then
    source ${config_directory}/bootuuid.cfg
  fi
  search --label boot --set boot --no-floppy
fi
set root=$boot
if [ -f ${config_directory}/grubenv ]; then
  load_env -f ${config_directory}/grubenv
elif [ -s $prefix/grubenv ]; then
  load_env
fi
function load_video {
  insmod all_video
}
blscfg
if [ "${menu_show_once_timeout}" ]; then
  set timeout_style=menu
  unset menu_show_once_timeout
  save_env menu_show_once_timeout
fi
if [ -f $prefix/custom.cfg ]; then
  source $prefix/custom.cfg
fi
"#;

#[test]
fn blscfg_makes_the_menu_from_boot_entries_and_custom_cfg_selects_one() {
    let entry = |number: u32, options: &str| {
        format!(
            "title Fedora (ostree:{})\nversion {number}\noptions {options}\nlinux /ostree/k{number}\n\
             initrd /ostree/i{number}\n",
            2 - number
        )
    };
    let mut block = EnvironmentBlock::default();
    block.set("tuned_params", "isolcpus=1");
    block.set("trial", "0");
    let files = |custom: &str| {
        Files::default()
            .with("/boot/grub2/grub.cfg", STATIC_CONFIG)
            .with("/boot/grub2/custom.cfg", custom)
            .with("/boot/grub2/grubenv", block.to_text().unwrap())
            .with("/loader/entries/ostree-1.conf", entry(1, "root=a old"))
            .with(
                "/loader/entries/ostree-2.conf",
                entry(2, "root=a \"b=c d\" $tuned_params $no e"),
            )
            .with("/loader/entries/README", "")
            .with("/ostree/k1", "")
            .with("/ostree/i1", "")
            .with("/ostree/k2", "")
            .with("/ostree/i2", "")
    };
    let plain = files("");
    let mut grub = SimulatedGrub::new(&plain, "/boot/grub2");
    let boot = grub.boot().unwrap();
    assert_eq!((&*boot.kernel, &*boot.entry[0]), ("/ostree/k2", "ostree-2"));
    assert_eq!(boot.initrds, ["/ostree/i2"]);
    let expected = KernelCommandLine::parse("root=a \"b=c d\" isolcpus=1 e");
    assert_eq!(boot.arguments(), expected);
    let trial = files("if [ \"${trial}\" = \"0\" ]; then\nset default=1\nfi\n");
    let boot = SimulatedGrub::new(&trial, "/boot/grub2").boot().unwrap();
    assert_eq!(boot.arguments(), KernelCommandLine::parse("root=a old"));
    let several = plain.with(
        "/loader/entries/ostree-2.conf",
        "linux /k\noptions a\noptions b\n",
    );
    let error = SimulatedGrub::new(&several, "/boot/grub2")
        .boot()
        .unwrap_err();
    assert!(matches!(error, BootError::BlsEntry(..)), "{error}");
}
