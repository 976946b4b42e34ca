//! Finds out whether another program writes grub.cfg at this moment.

use super::{
    error::GrubError,
    host_files::{in_grub_directory, path},
};
use machinist_rootfs::Root;

/// Where grub-mkconfig collects the text of the new grub.cfg.
const WRITTEN: &str = "grub.cfg.new";

/// How long grub-mkconfig writes nothing at most. A file that is older was left by one that failed.
const LONGEST_PAUSE_SECONDS: u64 = 10 * 60;

/// Fails while another grub-mkconfig writes grub.cfg: it may have read its settings before they had the arguments of `made`,
/// which grub-mkconfig has just written for machinist.
pub(super) fn check_no_other_mkconfig(root: &Root, made: &str) -> Result<(), GrubError> {
    let changed = |file: &str| {
        let stat = root.stat(&path(file)?)?;
        Ok::<_, GrubError>(stat.map(|stat| stat.mtime.0))
    };
    let written = changed(&in_grub_directory(root, WRITTEN))?;
    match written.zip(changed(made)?) {
        Some((written, made)) if written.abs_diff(made) < LONGEST_PAUSE_SECONDS => {
            Err(GrubError::ConfigBeingWritten)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    const MADE: &str = "/boot/grub/machinist-new.cfg";

    #[test]
    #[expect(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "sets the times of files"
    )]
    fn only_a_recent_file_of_another_mkconfig_counts() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        let write = |file: &str, at: SystemTime| {
            let file = path(file).unwrap();
            root.make_dirs(&file.parent().unwrap(), 0o755).unwrap();
            root.replace(&file, b"", 0o644).unwrap();
            let host_file = directory.path().join(&file.as_str()[1..]);
            let file = std::fs::OpenOptions::new().write(true).open(host_file);
            file.unwrap().set_modified(at).unwrap();
        };
        write(MADE, now);
        check_no_other_mkconfig(&root, MADE).unwrap();
        for (age_seconds, is_busy) in [(0, true), (599, true), (600, false), (86_400, false)] {
            write(
                "/boot/grub/grub.cfg.new",
                now - Duration::from_secs(age_seconds),
            );
            let checked = check_no_other_mkconfig(&root, MADE);
            assert_eq!(checked.is_err(), is_busy, "{age_seconds}");
        }
    }
}
