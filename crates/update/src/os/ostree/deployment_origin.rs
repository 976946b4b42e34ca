//! The file in which libostree, rpm-ostree and bootc keep from what a deployment was made.

use super::error::OstreeError;
use crate::os::DeploymentId;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// The key of the reference of the image.
pub(super) const REFERENCE_KEY: &str = "container-image-reference";

/// Maximum length of an origin.
const MAX_ORIGIN_BYTES: u64 = 1 << 20;

/// The commit of a deployment, whose identifier is `COMMIT.SERIAL`.
pub(super) fn commit_of(deployment: &DeploymentId) -> &str {
    deployment.as_str().split('.').next().unwrap_or_default()
}

/// The text of a deployment's origin.
pub(super) fn origin_of(
    root: &Root,
    stateroot: &str,
    deployment: &DeploymentId,
) -> Result<String, OstreeError> {
    let path = origin_file(stateroot, deployment);
    let path = AbsPath::new(&path).map_err(|_| OstreeError::Commit(deployment.to_string()))?;
    Ok(root.read_text(&path, MAX_ORIGIN_BYTES)?)
}

/// The reference of the image in an origin.
pub(super) fn reference_in(origin: &str) -> Option<&str> {
    let mut lines = origin.lines().filter_map(|line| line.split_once('='));
    let (_, reference) = lines.find(|(key, _)| key.trim() == REFERENCE_KEY)?;
    Some(reference.trim())
}

/// An origin without the state of its deployment, as `ostree_deployment_origin_remove_transient_state` removes it: a new
/// deployment is neither pinned nor unlocked.
pub(super) fn without_state(origin: &str) -> String {
    let mut group = "";
    let mut text = String::new();
    for line in origin.lines() {
        if line.trim_start().starts_with('[') {
            group = line.trim();
        }
        let key = line.split('=').next().unwrap_or_default().trim();
        let is_state = group == "[libostree-transient]" || (group, key) == ("[origin]", "unlocked");
        if !is_state {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The file of a deployment's origin.
fn origin_file(stateroot: &str, deployment: &DeploymentId) -> String {
    format!("/ostree/deploy/{stateroot}/deploy/{deployment}.origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pin_of_a_deployment_is_not_in_the_origin_of_the_next_one() {
        let kept = "# by rpm-ostree\n[origin]\nrefspec=fedora:stable\n\n[packages]\nunlocked=x;\n";
        let origin = kept.replace(
            "\n\n[packages]",
            "\nunlocked = hotfix\n\n[libostree-transient]\npinned=true\n\n[packages]",
        );
        assert_ne!(origin, kept);
        assert_eq!(without_state(&origin), kept);
    }
}
