//! A registry that no longer answers after the download. bootc and rpm-ostree request the image again after the drain.

use std::sync::atomic::Ordering;

use machinist_base::reason::Reason;
use machinist_plan::KernelType;
use machinist_update::os::{DesiredDeployment, OsProvider as _};

use super::{
    contract::{Host as _, STEP_TIMEOUT, image, of_image},
    ostree_files::Layout,
    ostree_host::OstreeHost,
    rpm_ostree_host::with_packages,
};

#[tokio::test]
async fn a_registry_that_does_not_answer_is_asked_before_the_next_drain() {
    let with_image = DesiredDeployment {
        image: Some(image("new")),
        ..with_packages(KernelType::Default, &["usbguard"])
    };
    for (layout, wanted) in [
        (Layout::Bootc, of_image(image("new"))),
        (Layout::RpmOstree, with_image),
    ] {
        let host = OstreeHost::with_layout(layout);
        host.publishes(&image("new"), "2.0");
        let agent = host.agent();
        agent.fetch(&wanted, STEP_TIMEOUT).await.unwrap();
        host.registry.is_away.store(true, Ordering::Relaxed);
        let failed = [
            agent.stage(&wanted, STEP_TIMEOUT).await.unwrap_err(),
            agent.fetch(&wanted, STEP_TIMEOUT).await.unwrap_err(),
        ];
        for error in failed {
            let found = (error.reason(), error.is_retryable());
            assert_eq!(found, (Reason::ImageUnreachable, true), "{layout:?}");
        }
        assert_eq!(agent.fetched(&wanted).await.unwrap(), None, "{layout:?}");
        host.registry.is_away.store(false, Ordering::Relaxed);
        agent.fetch(&wanted, STEP_TIMEOUT).await.unwrap();
        assert!(agent.fetched(&wanted).await.unwrap().is_some());
        let staged = agent.stage(&wanted, STEP_TIMEOUT).await.unwrap();
        assert!(staged.is_some(), "{layout:?}");
    }
}
