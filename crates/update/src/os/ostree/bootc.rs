//! Stages an image on a host with bootc.
//!
//! bootc pulls the images to which the new one is bound, and computes the kernel arguments of `/usr/lib/bootc/kargs.d`. It
//! stages a deployment that every following boot would enter, so its commit is staged again as a trial. Shutdowns are
//! inhibited until bootc's deployment is locked, which happens however bootc ends; a power cut discards it. A file marks
//! it as machinist's until then, so that the next process discards it.

use std::time::Duration;

use super::{
    OstreeProvider, RpmOstree, deployment_origin, error::OstreeError, repository_images,
    signature_source::SignatureSource, staged::Staged,
};
use crate::os::HostCommand;
use machinist_plan::{ImageRef, ImageTransport};

/// Holds a lock against shutdowns while another program runs.
const SYSTEMD_INHIBIT: &str = "/usr/bin/systemd-inhibit";

/// Stages the image that the arguments of bootc name and locks the deployment, also when bootc has failed after staging it
/// or when the unit is stopped. `bootc switch` cannot lock it.
const SWITCH_AND_LOCK: &str = "trap : TERM; /usr/bin/bootc switch --quiet \"$@\"; code=$?; \
                               test ! -e /run/ostree/staged-deployment || \
                               /usr/bin/ostree admin lock-finalization || code=1; exit $code";

/// Exists while a deployment that bootc or rpm-ostree has staged for machinist may be there. Its first line names the
/// image, if that is new; the second one has the added packages, if rpm-ostree was asked.
pub(super) const SWITCH_MARKER: &str = "/run/machinist/os-switch";

/// A deployment that bootc has staged.
pub(super) struct SwitchedDeployment {
    pub(super) staged: Staged,
    /// The text of its origin.
    pub(super) origin: String,
}

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// Lets bootc stage an image, locked.
    pub(super) async fn switch(
        &self,
        image: &ImageRef,
        stateroot: &str,
        limit: Duration,
    ) -> Result<SwitchedDeployment, OstreeError> {
        let reference = image.to_string();
        self.write_run_file(SWITCH_MARKER, &reference)?;
        // The digest of a path is checked afterwards.
        let name = match image.transport() {
            ImageTransport::Registry => &reference,
            _ => image.name(),
        };
        let mut arguments = vec![
            "--what=shutdown",
            "--mode=block",
            "--who=machinist",
            "--why=An OS image is being staged",
            "/bin/sh",
            "-c",
            SWITCH_AND_LOCK,
            "sh",
        ];
        if SignatureSource::of_booted(&self.root) == SignatureSource::Policy {
            arguments.push("--enforce-container-sigpolicy");
        }
        arguments.extend(["--transport", image.transport().name(), name]);
        let switched = self.run_in_background(SYSTEMD_INHIBIT, &arguments, limit);
        switched.await.map_err(OstreeError::Switch)?;
        let staged = Staged::read(&self.root)?.ok_or(OstreeError::NothingStaged("bootc switch"))?;
        let origin = deployment_origin::origin_of(&self.root, stateroot, &staged.id)?;
        repository_images::check_image(&self.root, stateroot, &staged.id, Some(image))?;
        Ok(SwitchedDeployment { staged, origin })
    }
}
