//! The SELinux policy of the root: which labels new files get.

use crate::{
    path::AbsPath,
    plan::Labels,
    root::{Root, RootError},
};

use super::text_if_there;

/// Longest file of the policy that is read. Those of distributions have some 500 KiB.
const LONGEST: u64 = 16 << 20;

/// The labelling rules of the root; none where it has no policy, or one that is switched off.
pub(super) fn read(root: &Root) -> Result<Labels, RootError> {
    let Some(contexts) = contexts_of(root)? else {
        return Ok(Labels::default());
    };
    let part = |suffix: &str| text_if_there(root, &format!("{contexts}{suffix}"), LONGEST);
    let texts = [part("")?, part(".homedirs")?, part(".local")?];
    let (own, policys) = (part(".subs")?, part(".subs_dist")?);
    let texts = texts.iter().map(String::as_str);
    Ok(Labels::read(texts, [&own, &policys]))
}

/// Where the rules of the policy are that is in force.
pub(super) fn contexts_of(root: &Root) -> Result<Option<AbsPath>, RootError> {
    let settings = text_if_there(root, "/etc/selinux/config", LONGEST)?;
    let said = |key: &str| {
        let lines = settings.lines().rev().map(str::trim);
        let mut values = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        values.next().map(|value| value.trim().to_owned())
    };
    let off = said("SELINUX").is_some_and(|mode| mode.eq_ignore_ascii_case("disabled"));
    let contexts = said("SELINUXTYPE").and_then(|name| contexts(&name));
    Ok(contexts.filter(|_| !off))
}

/// Where the rules of a policy are; none for what is no name of one.
fn contexts(policy: &str) -> Option<AbsPath> {
    let below = format!("/etc/selinux/{policy}/contexts/files/file_contexts");
    AbsPath::new(below).ok().filter(|_| !policy.contains('/'))
}
