//! The deployment that libostree finalizes at shutdown.

use std::collections::HashMap;

use super::{boot_entries::kernel_arguments, deployment_origin::commit_of, error::OstreeError};
use crate::os::{
    DeploymentId, grub::MenuSource, host_detection::is_there, trial_arguments::is_trial_of,
};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::{Root, RootError};
use zgvariant::{
    NATIVE_ENDIAN, OwnedVariant,
    serialized::{Context, Data},
};

/// The directory in which libostree describes it.
pub(super) const STAGING_DIRECTORY: &str = "/run/ostree";

/// Where libostree describes it, as a GVariant dictionary in the byte order of the machine.
const STAGED: &str = "/run/ostree/staged-deployment";

/// Exists while a deployment is locked, in every version of libostree.
const LOCKED: &str = "/run/ostree/staged-deployment-locked";

/// Maximum length of the description.
const MAX_STAGED_BYTES: u64 = 1 << 20;

/// A dictionary of named values.
type Dictionary = HashMap<String, OwnedVariant>;

/// The deployment that libostree finalizes at shutdown.
#[derive(Clone, Debug)]
pub(super) struct Staged {
    pub(super) id: DeploymentId,
    pub(super) arguments: KernelCommandLine,
    pub(super) is_locked: bool,
}

impl Staged {
    /// Whether it is a trial of machinist.
    pub(super) fn is_trial(&self) -> bool {
        is_trial_of(commit_of(&self.id), &self.arguments)
    }

    /// `None` if nothing is staged.
    pub(super) fn read(root: &Root) -> Result<Option<Self>, OstreeError> {
        let Ok(path) = AbsPath::new(STAGED) else {
            return Ok(None);
        };
        let bytes = match root.read(&path, MAX_STAGED_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut staged = parse(&bytes, MenuSource::of(root))
            .map_err(|error| OstreeError::Staged(error.to_string()))?;
        staged.is_locked |= is_there(root, LOCKED);
        Ok(Some(staged))
    }

    /// Removes the lock file that a failed `ostree admin deploy`, or rpm-ostree, has left: it would lock what another
    /// program stages next.
    pub(super) fn remove_stale_lock(root: &Root) -> Result<(), RootError> {
        match AbsPath::new(LOCKED) {
            Ok(path) if !is_there(root, STAGED) => root.remove_file(&path),
            _ => Ok(()),
        }
    }
}

/// Parses the description (`ostree_sysroot_stage_tree_with_options` writes it).
fn parse(bytes: &[u8], source: MenuSource) -> zgvariant::Result<Staged> {
    let data = Data::new(bytes, Context::new(NATIVE_ENDIAN, 0));
    let (mut staged, _) = data.deserialize::<Dictionary>()?;
    let mut take = |name: &str| staged.remove(name);
    let target = take("target").ok_or(zgvariant::Error::IncorrectType)?;
    let mut target = Dictionary::try_from(target)?;
    let name = target
        .remove("name")
        .ok_or(zgvariant::Error::IncorrectType)?;
    let options = match take("kargs") {
        Some(options) => Vec::<String>::try_from(options)?.join(" "),
        None => String::new(),
    };
    let is_locked = take("locked").map(bool::try_from).transpose()?;
    Ok(Staged {
        id: DeploymentId::new(String::try_from(name)?),
        arguments: kernel_arguments(&options, source).ok_or(zgvariant::Error::IncorrectType)?,
        is_locked: is_locked.unwrap_or_default(),
    })
}
