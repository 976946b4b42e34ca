//! A host that machinist leaves, as `machinist uninstall` and `machinist release` do.

use std::fs;

use machinist_update::os::{self, OsProvider as _};

use super::{
    contract::{Host, STEP_TIMEOUT, of_image},
    fedora_host::FedoraHost,
    grub_host::GrubHost,
    ostree_files::Layout,
    ostree_host::OstreeHost,
    ostree_registry::is_stored,
    power_cuts::stages,
    systemd_boot_host::SystemdBootHost,
};

/// Leaves a host whose staged deployment the next boot would enter, and boots.
async fn leaves(host: &impl Host) {
    let id = stages(host, "nosmt", "").await;
    host.agent().unlock(&id).await.unwrap();
    os::leave_host(&host.agent()).await.unwrap();
    host.reboot();
    let running = host.agent().observe().await.unwrap();
    assert_eq!(running.booted.id, running.next);
    let has_nosmt = running
        .booted
        .kernel_arguments
        .iter()
        .any(|one| one.as_str() == "nosmt");
    assert!(!has_nosmt && running.staged.is_none(), "{running:?}");
}

#[tokio::test]
async fn a_host_with_grub_has_no_staged_entry_afterwards() {
    let host = GrubHost::new();
    let (custom, environment) = ("boot/grub/custom.cfg", "boot/grub/grubenv");
    let before = host.read(custom);
    leaves(&host).await;
    assert_eq!(host.read(custom), before);
    assert!(!host.read(environment).contains("machinist"));
    let host = FedoraHost::new();
    leaves(&host).await;
    let files = fs::read_dir(host.path("boot/loader/entries")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let own: Vec<String> = names.filter(|name| name.starts_with("machinist")).collect();
    assert_eq!(own, ["machinist-1.conf"], "the kept one");
}

#[tokio::test]
async fn a_host_with_systemd_boot_has_no_staged_entry_afterwards() {
    let host = SystemdBootHost::new();
    let before = host.entries();
    leaves(&host).await;
    assert_eq!(host.entries(), before);
}

#[tokio::test]
async fn a_host_with_ostree_has_no_trial_and_no_unused_image_afterwards() {
    for layout in [Layout::Debian, Layout::Bootc] {
        let host = OstreeHost::with_layout(layout);
        let digest = machinist_base::digest::Digest::of(b"unused");
        let image = format!("registry.example.com/os@{digest}");
        let image = machinist_plan::ImageRef::parse(&image).unwrap();
        host.registry.publish(&image, "2.0");
        let wanted = of_image(image.clone());
        host.agent().fetch(&wanted, STEP_TIMEOUT).await.unwrap();
        assert!(is_stored(host.directory.path(), &image));
        leaves(&host).await;
        host.assert_settled("left");
        assert!(!is_stored(host.directory.path(), &image));
    }
}

/// An administrator who cannot have trials can still uninstall machinist.
#[tokio::test]
async fn a_host_whose_menu_cannot_be_read_can_be_left() {
    for config in ["set superusers=root\n", "menuentry {\n"] {
        let host = GrubHost::new();
        let file = host.path("boot/grub/grub.cfg");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("{config}{text}")).unwrap();
        assert!(host.agent().observe().await.is_err(), "{config}");
        os::leave_host(&host.agent()).await.unwrap();
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            format!("{config}{text}")
        );
    }
}
