//! The list of images that machinist has fetched.

use machinist_base::abs_path::AbsPath;
use machinist_plan::ImageRef;
use machinist_rootfs::{Root, RootError};

/// The images that machinist has fetched, one in each line. Others are never removed.
const FETCHED_IMAGES: &str = "/var/lib/machinist/os-images";

/// Maximum length of that list.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// The images that machinist has fetched.
pub(super) fn recorded(root: &Root) -> Result<Vec<ImageRef>, RootError> {
    let Ok(path) = AbsPath::new(FETCHED_IMAGES) else {
        return Ok(Vec::new());
    };
    let text = match root.read_text(&path, MAX_RECORD_BYTES) {
        Err(error) if error.is_not_found() => String::new(),
        text => text?,
    };
    let images = text.lines().filter_map(|line| ImageRef::parse(line).ok());
    Ok(images.collect())
}

/// Records the images that machinist has fetched.
pub(super) fn record(root: &Root, images: &[ImageRef]) -> Result<(), RootError> {
    let Ok(path) = AbsPath::new(FETCHED_IMAGES) else {
        return Ok(());
    };
    if images.is_empty() {
        return root.remove_file(&path);
    }
    let lines: String = images.iter().map(|image| format!("{image}\n")).collect();
    root.replace(&path, lines.as_bytes(), 0o600)
}
