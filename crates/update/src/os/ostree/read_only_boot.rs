//! Writes GRUB's files where /boot is mounted read-only, as on Fedora CoreOS.
//!
//! libostree does so in a mount namespace of its own, and so does this: a program remounts /boot there, and every other
//! process still sees it read-only.

use super::{MENU_TIMEOUT, OstreeProvider, RpmOstree, error::OstreeError};
use crate::os::{
    HostCommand,
    grub::{NewGrubFile, mount_of, mounts},
};

/// Starts a program in a new mount namespace.
pub(super) const UNSHARE: &str = "/usr/bin/unshare";

/// The content of the file, which the program moves to /boot.
const SOURCE: &str = "/run/machinist/grub-file";

/// Remounts `$1` writable and replaces the file `$3` by the content of `$2`. The file keeps its mode.
const REPLACE: &str = r#"set -e
mount -o remount,rw "$1"
new=$3.machinist
cp --preserve=mode "$2" "$new"
test ! -e "$3" || chmod --reference="$3" "$new"
sync "$new"
mv -f "$new" "$3"
sync -f "$3"
"#;

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    pub(super) async fn write_grub_file(&self, new: &NewGrubFile) -> Result<(), OstreeError> {
        let mounts = mounts(&self.root);
        let mount = mount_of(&mounts, &new.file);
        let Some(mount) = mount.filter(|mount| mount.is_read_only) else {
            return Ok(new.write(&self.root)?);
        };
        self.write_run_file(SOURCE, &new.text)?;
        let arguments = [
            "--mount",
            "--propagation",
            "private",
            "/bin/sh",
            "-c",
            REPLACE,
            "sh",
            mount.point,
            SOURCE,
            &new.file,
        ];
        let written = self.commands.run(UNSHARE, &arguments, MENU_TIMEOUT).await;
        written.map_err(|source| OstreeError::Write {
            file: new.file.clone(),
            source,
        })
    }
}
