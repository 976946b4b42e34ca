//! Power cuts and reboots during each step of the OSTree provider, at each of its operations on files and programs.

use machinist_plan::ImageRef;
use machinist_update::os::{DeploymentId, DesiredDeployment, OsProvider as _};

use super::{
    contract::{Host as _, STEP_TIMEOUT, image, wanted},
    interruptions::moments,
    ostree_files::Layout,
    ostree_host::OstreeHost,
    ostree_machine::BEFORE,
};

const STEPS: [&str; 7] = [
    "stage",
    "unlock",
    "lock",
    "keep",
    "discard",
    "discard failed",
    "roll_back",
];

/// A trial of a kernel argument, and of an image if there is one.
#[derive(Clone, Debug)]
struct Trial {
    layout: Layout,
    image: Option<ImageRef>,
}

impl Trial {
    fn wanted(&self) -> DesiredDeployment {
        DesiredDeployment {
            image: self.image.clone(),
            ..wanted("nosmt", "")
        }
    }

    /// A machine with everything before this step done.
    async fn prepared_for(&self, step: &str) -> (OstreeHost, Option<DeploymentId>) {
        let host = OstreeHost::with_layout(self.layout);
        let wanted = self.wanted();
        if let Some(image) = &self.image {
            host.publishes(image, "2.0");
        }
        host.agent().fetch(&wanted, STEP_TIMEOUT).await.unwrap();
        if step == "stage" {
            return (host, None);
        }
        let staged = host.agent().stage(&wanted, STEP_TIMEOUT).await;
        let id = staged.unwrap().unwrap();
        if step != "unlock" {
            host.agent().unlock(&id).await.unwrap();
        }
        if step == "discard failed" {
            host.panics(&id);
        }
        if ["keep", "roll_back", "discard failed"].contains(&step) {
            host.reboot();
        }
        if step == "roll_back" {
            host.agent().keep(&id).await.unwrap();
        }
        (host, Some(id))
    }

    /// Interrupts a step after some operations, and returns whether it was done by then.
    async fn is_done_before(&self, step: &str, operations: usize, power_cut: bool) -> bool {
        let case = format!("{self:?}: {step} after {operations}, power cut: {power_cut}");
        let (host, id) = self.prepared_for(step).await;
        let agent = host.agent_until(operations);
        let staged = || id.as_ref().unwrap();
        let done = match step {
            "stage" => agent.stage(&self.wanted(), STEP_TIMEOUT).await.map(drop),
            "unlock" => agent.unlock(staged()).await,
            "lock" => agent.lock().await,
            "keep" => agent.keep(staged()).await,
            "roll_back" => agent.roll_back(&DeploymentId::new("cd.0")).await,
            _ => agent.discard().await,
        };
        match power_cut {
            true => host.power_cut(),
            false => host.reboot(),
        }
        let running = host.running();
        let is_new = running == format!("{BEFORE} nosmt");
        assert!(is_new || running == BEFORE, "{case}: {running}");
        let booted = host.agent().observe().await.unwrap().booted;
        let expected = self.image.as_ref().filter(|_| is_new);
        assert_eq!(booted.image.as_ref(), expected, "{case}");
        // The next process can discard it, and stage and keep another deployment.
        host.agent().discard().await.unwrap();
        let next = wanted("b=1", "nosmt");
        let staged = host.agent().stage(&next, STEP_TIMEOUT).await;
        let staged = staged.unwrap().unwrap();
        host.agent().unlock(&staged).await.unwrap();
        host.reboot();
        host.agent().keep(&staged).await.unwrap();
        host.reboot();
        assert_eq!(host.running(), format!("{BEFORE} b=1"), "{case}");
        let booted = host.agent().observe().await.unwrap().booted;
        assert_eq!(booted.image.as_ref(), expected, "{case}");
        host.assert_settled(&case);
        done.is_ok()
    }

    /// Interrupts each step at these operations, by a power cut and by a reboot.
    async fn is_whole_after<M: Iterator<Item = usize>>(&self, moments: impl Fn(usize) -> M) {
        for (case, step) in STEPS.into_iter().enumerate() {
            for power_cut in [true, false] {
                for operations in moments(2 * case + usize::from(power_cut)) {
                    assert!(operations < 200, "{step}");
                    if self.is_done_before(step, operations, power_cut).await {
                        break;
                    }
                }
            }
        }
    }
}

/// After a power cut or a reboot at any moment the machine boots with the arguments of before or with the new ones, and
/// the steps can be repeated or undone.
#[tokio::test]
async fn an_interrupted_ostree_step_leaves_one_of_two_deployments() {
    let trial = |layout| Trial {
        layout,
        image: None,
    };
    trial(Layout::Debian).is_whole_after(|_| 0..).await;
    trial(Layout::Bootc).is_whole_after(moments).await;
    trial(Layout::RpmOstree).is_whole_after(moments).await;
}

/// The arguments and the image are those of one deployment.
#[tokio::test]
async fn an_interrupted_ostree_step_with_an_image_leaves_one_of_two_deployments() {
    for layout in [
        Layout::Debian,
        Layout::Bootc,
        Layout::RpmOstree,
        Layout::BootcAndRpmOstree,
    ] {
        let image = Some(image("new"));
        Trial { layout, image }.is_whole_after(moments).await;
    }
}
