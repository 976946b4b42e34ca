//! Handles entries that leave contents, mode or owner to the machine, and Ignition's defaults for
//! them.

use std::borrow::Cow;

use super::{Directory, File, MachineConfig, Owner};
use machinist_base::abs_path::AbsPath;

/// The default mode of a new file.
pub const FILE_MODE: u32 = 0o644;
/// The default mode of a new directory.
pub const DIRECTORY_MODE: u32 = 0o755;

impl MachineConfig {
    /// The same config with a default for everything that its entries leave to the machine: empty
    /// content, the usual mode, root as the owner. `render` writes configs in this form, and older
    /// versions, which did not distinguish absent from empty, stored them in this form.
    pub fn with_defaults(&self) -> Cow<'_, Self> {
        if !self.leaves_anything() {
            return Cow::Borrowed(self);
        }
        let mut config = self.clone();
        for file in config.files.values_mut() {
            file.content.get_or_insert_default();
            file.mode.get_or_insert(FILE_MODE);
            own(&mut file.user, &mut file.group);
        }
        for directory in config.directories.values_mut() {
            directory.mode.get_or_insert(DIRECTORY_MODE);
            own(&mut directory.user, &mut directory.group);
        }
        Cow::Owned(config)
    }

    /// Whether an entry leaves contents, mode or owner to the machine.
    fn leaves_anything(&self) -> bool {
        let partial = |directory: &Directory| {
            directory.mode.is_none() || directory.user.is_none() || directory.group.is_none()
        };
        self.files.values().any(|file| file.content.is_none())
            || self.directories.values().any(partial)
    }

    /// Files without content in the config, whose content is left to the machine.
    pub fn files_without_content(&self) -> impl Iterator<Item = &AbsPath> {
        let without = |(_, file): &(&AbsPath, &File)| file.content.is_none();
        self.files.iter().filter(without).map(|(path, _)| path)
    }
}

impl Directory {
    /// Whether mode and owner are both left to the machine.
    pub const fn leaves_mode_and_owner(&self) -> bool {
        self.mode.is_none() && self.user.is_none() && self.group.is_none()
    }
}

fn own(user: &mut Option<Owner>, group: &mut Option<Owner>) {
    user.get_or_insert(Owner::ROOT);
    group.get_or_insert(Owner::ROOT);
}
