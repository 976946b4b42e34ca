//! The files of GRUB that machinist changes in place: the environment block and custom.cfg.

use super::{
    boot_file_writer,
    error::GrubError,
    host_files::{MAX_CONFIG_BYTES, in_grub_directory, path},
    trial_entry::has_broken_section,
};
use crate::os::HostCommand;
use machinist_boot_loader::grub::{BootError, EnvironmentBlock};
use machinist_rootfs::Root;

const ENVIRONMENT_BLOCK: &str = "grubenv";
const CUSTOM_CONFIG: &str = "custom.cfg";

/// The mode of a file that did not exist.
const NEW_FILE_MODE: u32 = 0o600;

/// The texts of the files.
pub(in crate::os) struct ChangedFiles {
    pub(in crate::os) environment: EnvironmentBlock,
    pub(in crate::os) custom: String,
}

impl ChangedFiles {
    pub(in crate::os) fn read(root: &Root) -> Result<Self, GrubError> {
        let environment = read_text(root, ENVIRONMENT_BLOCK)?;
        let custom = read_text(root, CUSTOM_CONFIG)?;
        if has_broken_section(&custom) {
            return Err(GrubError::UnterminatedSection);
        }
        let environment = match environment.is_empty() {
            true => EnvironmentBlock::default(),
            false => EnvironmentBlock::parse(&environment).map_err(BootError::from)?,
        };
        Ok(Self {
            environment,
            custom,
        })
    }

    /// The paths of the files.
    pub(in crate::os) fn paths(root: &Root) -> [String; 2] {
        [ENVIRONMENT_BLOCK, CUSTOM_CONFIG].map(|name| in_grub_directory(root, name))
    }

    /// The environment block with another content.
    pub(in crate::os) fn new_environment(
        root: &Root,
        environment: &EnvironmentBlock,
    ) -> Result<NewGrubFile, GrubError> {
        let file = in_grub_directory(root, ENVIRONMENT_BLOCK);
        let text = environment.to_text().map_err(BootError::from)?;
        Ok(NewGrubFile { file, text })
    }

    /// custom.cfg with another content; `None` if it has that.
    pub(in crate::os) fn new_custom(&self, root: &Root, custom: &str) -> Option<NewGrubFile> {
        let differs = custom != self.custom;
        differs.then(|| NewGrubFile {
            file: in_grub_directory(root, CUSTOM_CONFIG),
            text: custom.to_owned(),
        })
    }
}

/// A file of GRUB that is to be written.
pub(in crate::os) struct NewGrubFile {
    pub(in crate::os) file: String,
    pub(in crate::os) text: String,
}

impl NewGrubFile {
    pub(in crate::os) async fn write(
        &self,
        root: &Root,
        commands: &impl HostCommand,
    ) -> Result<(), GrubError> {
        let file = path(&self.file)?;
        boot_file_writer::write(root, commands, &file, &self.text, NEW_FILE_MODE).await
    }
}

/// Reads a file that must not lose anything: empty only if it does not exist.
fn read_text(root: &Root, name: &str) -> Result<String, GrubError> {
    let path = path(&in_grub_directory(root, name))?;
    match root.read(&path, MAX_CONFIG_BYTES) {
        Ok(bytes) => String::from_utf8(bytes).map_err(|_| GrubError::NotUtf8(path)),
        Err(error) if error.is_not_found() => Ok(String::new()),
        Err(error) => Err(error.into()),
    }
}
