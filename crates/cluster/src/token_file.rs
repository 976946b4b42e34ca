//! Reads token files that contain surrounding white space. kubectl trims it; kube does not, and
//! then reports the invalid header as an unreachable server.

use std::path::Path;

use kube::{Config, config::AuthInfo};
use serde_json::json;

use super::error::ConnectError;
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// Maximum file size in bytes; far above any token.
const MAX_TOKEN_BYTES: u64 = 1 << 20;

/// Reads the token here if its file contains white space that kube cannot handle. Returns whether
/// it did; kube does not reread such a file.
pub(super) fn trim(config: &mut Config) -> Result<bool, ConnectError> {
    let Some(file) = config.auth_info.token_file.clone() else {
        return Ok(false);
    };
    // kube reports files that cannot be read.
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
    // The field's type belongs to a crate that is not a dependency, so it is built through its file
    // format.
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
    // Relative to this process's root: the caller's files, not those of the managed host.
    let root = Root::open(Path::new("/")).ok()?;
    root.read_text(&path, MAX_TOKEN_BYTES).ok()
}
