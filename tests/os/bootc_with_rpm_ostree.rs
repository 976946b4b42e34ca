//! The OSTree provider on a host with both bootc and rpm-ostree: bootc stages images until there are packages, which
//! only rpm-ostree keeps.

use machinist_plan::KernelType;
use machinist_update::os::{DesiredDeployment, OsProvider as _, TransactionKind};

use super::{
    contract::{Host as _, image, of_image},
    ostree_files::Layout,
    ostree_machine::BEFORE,
    rpm_ostree_daemon::Packages,
    rpm_ostree_host::{RpmOstreeHost, names, with_packages},
};

/// The images that bootc was to stage, and the transactions of rpm-ostree.
fn calls(host: &RpmOstreeHost) -> (Vec<String>, Vec<TransactionKind>) {
    let images = host.0.bootc.switches.lock().unwrap().clone();
    let transactions = host.0.rpm_ostree.transactions.lock().unwrap();
    (images, transactions.iter().map(|(kind, _)| *kind).collect())
}

#[tokio::test]
async fn images_and_extensions_alternate_where_bootc_and_rpm_ostree_are() {
    let host = RpmOstreeHost::with_layout(Layout::BootcAndRpmOstree);
    let images = ["first", "second", "third"].map(image);
    let origins = images
        .each_ref()
        .map(|image| format!("ostree-unverified-registry:{image}"));
    for (image, version) in images.iter().zip(["1.0", "2.0", "3.0"]) {
        host.0.registry.publish(image, version);
    }
    let [first, second, third] = images;
    let image_of_boot = async || host.0.agent().observe().await.unwrap().booted.image;
    let (download, stage) = (TransactionKind::Download, TransactionKind::Stage);

    host.run_on(&of_image(first.clone())).await;
    assert_eq!(calls(&host), (origins[..1].to_vec(), vec![]));
    // The extension is added to the image of bootc.
    let usbguard = with_packages(KernelType::Default, &["usbguard"]);
    host.run_on(&usbguard).await;
    let expected = Packages {
        requested: names(&["usbguard"]),
        ..Packages::default()
    };
    assert_eq!(host.packages(), expected);
    assert_eq!(image_of_boot().await, Some(first));
    // bootc would stage the next image without it.
    host.0.registry.set_arguments(&["of.second=1"]);
    let next = DesiredDeployment {
        image: Some(second.clone()),
        ..usbguard
    };
    host.run_on(&next).await;
    assert_eq!(host.packages(), expected);
    assert_eq!(image_of_boot().await, Some(second.clone()));
    assert_eq!(host.0.running(), BEFORE, "bootc alone applies them");
    let transactions = vec![download, stage, download, stage];
    assert_eq!(calls(&host), (origins[..1].to_vec(), transactions));
    // Without the extension, the tree is that of the image, and bootc stages the next one.
    let none = with_packages(KernelType::Default, &[]);
    host.run_on(&none).await;
    assert_eq!(host.packages(), Packages::default());
    assert_eq!(image_of_boot().await, Some(second));
    host.0.registry.set_arguments(&["of.third=1"]);
    let last = DesiredDeployment {
        image: Some(third.clone()),
        ..none
    };
    host.run_on(&last).await;
    assert_eq!(host.packages(), Packages::default());
    assert_eq!(image_of_boot().await, Some(third));
    assert_eq!(host.0.running(), format!("{BEFORE} of.third=1"));
    let [first, _, third] = origins;
    let transactions = [download, stage].repeat(3);
    assert_eq!(calls(&host), (vec![first, third], transactions));
}

/// bootc discards them without a message.
#[tokio::test]
async fn an_image_of_a_host_with_packages_of_an_administrator_is_staged_by_rpm_ostree() {
    let host = RpmOstreeHost::with_layout(Layout::BootcAndRpmOstree);
    host.add_packages("[packages]\nrequested=htop;\n\n[overrides]\nremove=nano;\n");
    host.0.publishes(&image("new"), "2.0");
    host.run_on(&of_image(image("new"))).await;
    let expected = Packages {
        requested: names(&["htop"]),
        removed: names(&["nano"]),
    };
    assert_eq!(host.packages(), expected);
    let kinds = vec![TransactionKind::Download, TransactionKind::Stage];
    assert_eq!(calls(&host), (vec![], kinds));
}
