//! A token file as people write them: kubectl takes the white space around a token away, kube does not, and
//! then takes what is no header for a server that is away.

use std::path::Path;

use kube::{Config, config::AuthInfo};
use serde_json::json;

use super::error::ConnectError;
use crate::{path::AbsPath, root::Root};

/// Far above any token.
const LARGEST: u64 = 1 << 20;

/// Takes the token out of its file where kube could not use it as it is. Whether it did: such a file is not
/// kube's to read anew.
pub(super) fn trim(config: &mut Config) -> Result<bool, ConnectError> {
    let Some(file) = config.auth_info.token_file.clone() else {
        return Ok(false);
    };
    // A file that cannot be read is named by kube.
    let Some(text) = read(Path::new(&file)) else {
        return Ok(false);
    };
    let token = text.trim();
    if token.is_empty() || token.chars().any(char::is_control) {
        return Err(ConnectError::Token(file.into()));
    }
    if token == text {
        return Ok(false);
    }
    // The type of the field is a crate's of its own; the field is also part of a file's form.
    let Ok(with) = serde_json::from_value::<AuthInfo>(json!({"token": token})) else {
        return Ok(false);
    };
    config.auth_info.token = with.token;
    config.auth_info.token_file = None;
    Ok(true)
}

fn read(file: &Path) -> Option<String> {
    let whole = std::path::absolute(file).ok()?;
    let path = AbsPath::new(whole.to_str()?).ok()?;
    // The caller's files, not those of the machine that is looked after.
    let root = Root::open(Path::new("/")).ok()?;
    root.read_text(&path, LARGEST).ok()
}
