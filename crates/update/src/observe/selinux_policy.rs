//! Reads the root's SELinux policy: which labels new files get.

use machinist_base::abs_path::AbsPath;
use machinist_plan::SelinuxLabels;
use machinist_rootfs::{Root, RootError};

use super::text_if_there;

/// Maximum length of a policy file. Those of distributions have about 500 KiB.
const MAX_POLICY_BYTES: u64 = 16 << 20;

/// Returns the labelling rules of the root; empty if it has no policy, or if SELinux is disabled.
pub(super) fn read(root: &Root) -> Result<SelinuxLabels, RootError> {
    let Some(contexts) = contexts_of(root)? else {
        return Ok(SelinuxLabels::default());
    };
    let part = |suffix: &str| text_if_there(root, &format!("{contexts}{suffix}"), MAX_POLICY_BYTES);
    let texts = [part("")?, part(".homedirs")?, part(".local")?];
    let (own, policys) = (part(".subs")?, part(".subs_dist")?);
    let texts = texts.iter().map(String::as_str);
    Ok(SelinuxLabels::read(texts, [&own, &policys]))
}

/// Returns the path of the active policy's rules.
pub(super) fn contexts_of(root: &Root) -> Result<Option<AbsPath>, RootError> {
    let settings = text_if_there(root, "/etc/selinux/config", MAX_POLICY_BYTES)?;
    let value_of = |key: &str| {
        let lines = settings.lines().rev().map(str::trim);
        let mut values = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.next().map(|value| value.trim().to_owned())
    };
    let off = value_of("SELINUX").is_some_and(|mode| mode.eq_ignore_ascii_case("disabled"));
    let contexts = value_of("SELINUXTYPE").and_then(|name| contexts(&name));
    Ok(contexts.filter(|_| !off))
}

/// Returns the path of a policy's rules; `None` if the name is not valid.
fn contexts(policy: &str) -> Option<AbsPath> {
    let below = format!("/etc/selinux/{policy}/contexts/files/file_contexts");
    AbsPath::new(below).ok().filter(|_| !policy.contains('/'))
}
