//! Reads the facts of a root that specifiers in unit files and version checks refer to: the machine ID and the
//! fields of os-release.

use std::collections::BTreeMap;

use machinist_plan::SpecifierFacts;
use machinist_rootfs::{Root, RootError};

use super::{MAX_TEXT_BYTES, text_if_there};

/// Returns the values of specifiers.
pub(super) fn read(root: &Root) -> Result<SpecifierFacts, RootError> {
    let id = text_if_there(root, "/etc/machine-id", MAX_TEXT_BYTES)?;
    let id = id.trim();
    // machine-id(5): before the first boot the file is empty or contains another word.
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(SpecifierFacts {
        machine_id: is_id.then(|| id.to_ascii_lowercase()),
        os_release: os_release(root)?,
    })
}

/// Returns the fields of the root's os-release; `None` if there is no such file.
fn os_release(root: &Root) -> Result<Option<BTreeMap<String, String>>, RootError> {
    // os-release(5): the second file is read only if the first is missing.
    let mut text = text_if_there(root, "/etc/os-release", MAX_TEXT_BYTES)?;
    if text.is_empty() {
        text = text_if_there(root, "/usr/lib/os-release", MAX_TEXT_BYTES)?;
    }
    let field = |line: &str| {
        let (key, value) = line.trim().split_once('=')?;
        Some((key.to_owned(), value.trim_matches(['"', '\'']).to_owned()))
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok((!text.is_empty()).then(|| lines.filter_map(field).collect()))
}
