//! Keeps the inode of the link /boot/loader while libostree selects another menu.
//!
//! libostree renames another link over it, and the inode of the former one is freed. ext4 may write the freed inode to its
//! place before the block of the directory that names it. After a power cut in between, GRUB, which does not replay the
//! journal, would find no menu. A second name of the link keeps its inode valid in either order.

use super::{
    OstreeProvider, RpmOstree, error::OstreeError, state::OstreeState, trial_commands::TrialState,
};
use crate::os::{HostCommand, host_detection::is_there};
use machinist_base::abs_path::AbsPath;
use machinist_rootfs::FileKind;

/// The link to the directory of the present menu, such as `loader.0`.
const LINK: &str = "/boot/loader";

/// Its second name.
const SECOND_NAME: &str = "/boot/loader.machinist";

/// Gives the link `$2` the second name `$3`.
const NAME: &str = r#"set -e
mount -o remount,rw "$1"
rm -f "$3"
ln -P -T "$2" "$3"
"#;

impl<C: HostCommand + RpmOstree> OstreeProvider<C> {
    /// Gives the present link a second name. A name of a former link is removed, since it does not protect the present one.
    pub(super) async fn name_menu_link(&self) -> Result<(), OstreeError> {
        let (Ok(link), Ok(name)) = (AbsPath::new(LINK), AbsPath::new(SECOND_NAME)) else {
            return Ok(());
        };
        let Some(present) = self.root.stat(&link)? else {
            return Ok(());
        };
        let named = self.root.stat(&name)?;
        let is_named = named.is_some_and(|named| named.identity == present.identity);
        if present.kind != FileKind::Link || is_named {
            return Ok(());
        }
        match self.read_only_mount(LINK) {
            None => {
                self.root.remove_file(&name)?;
                self.root.build_hard_link_to_symlink(&name, &link)?;
            }
            Some(point) => {
                self.unshare(SECOND_NAME, NAME, &[&point, LINK, SECOND_NAME])
                    .await?;
            }
        }
        Ok(())
    }

    /// Removes the second name if an interrupted step has left it.
    pub(super) async fn remove_unneeded_menu_link_name(&self) -> Result<(), OstreeError> {
        if !is_there(&self.root, SECOND_NAME) {
            return Ok(());
        }
        let state = OstreeState::read(&self.root)?;
        // A staged deployment is finalized at shutdown, which selects another menu.
        match state.staged.is_none() && state.trial == TrialState::None {
            true => self.remove_menu_link_name().await,
            false => Ok(()),
        }
    }

    /// Removes the second name. A menu that was selected since is where GRUB finds it.
    pub(super) async fn remove_menu_link_name(&self) -> Result<(), OstreeError> {
        self.remove_marker(SECOND_NAME).await
    }
}
