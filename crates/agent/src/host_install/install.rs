//! Installs the host part, so that a crash between any two steps leaves it either complete or not
//! enabled.

use std::sync::PoisonError;

use super::{HostInstall, HostPaths, InstallCache, InstallError, elf, units};
use machinist_base::abs_path::AbsPath;
use machinist_plan::ObjectKind;
use machinist_rootfs::{ChunkedReader, FileKind, Root, RootError};
use machinist_update::{
    journal::Journal,
    observe::{labels, recovery_missing},
    store,
};

/// Maximum size of a unit file that is read; a longer one is not machinist's.
const MAX_UNIT_FILE_BYTES: u64 = 256 << 10;

/// The state of a path where a part of the host part belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InstalledState {
    Nothing,
    Ours,
    Foreign,
}

impl HostInstall {
    /// Installs this agent's version of the host part. True if a file was written.
    ///
    /// The program is written first and the enabling link last; an upgrade replaces the program
    /// before the units.
    ///
    /// # Errors
    /// The installation failed; the previously installed files are intact.
    pub fn install(&self) -> Result<bool, InstallError> {
        // An older or damaged copy could not read a journal that this agent cannot read.
        let journal = store::peek(&self.root).map_err(InstallError::Journal)?;
        let places = HostPaths::new()?;
        let own = places
            .units()
            .map(|path| installed_state_of_unit(&self.root, path))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        let missing = recovery_missing(&self.root)?;
        if missing.is_none() && !own.contains(&InstalledState::Ours) {
            return Ok(false);
        }
        let why =
            missing.unwrap_or_else(|| "the other recovery unit is managed by machinist".to_owned());
        for (standing, path) in own.iter().zip(places.units()) {
            if *standing == InstalledState::Foreign {
                return Err(foreign(path, &why));
            }
        }
        is_not_the_configs(&journal, &places)?;
        let program = self.program()?;
        let mut written = self.put_program(&program, &places)?;
        for (name, text) in units::texts() {
            let path = places
                .recover
                .parent()
                .unwrap_or_else(AbsPath::root)
                .join(name)?;
            written |= self.put_unit(&path, &text)?;
        }
        written |= self.enable(&places)?;
        if written {
            tracing::info!("recovery units installed on the host");
        }
        Ok(written)
    }

    /// This process's program, which must run without the files of its container.
    fn program(&self) -> Result<ChunkedReader, InstallError> {
        let program = (self.source)()?;
        let length = usize::try_from(program.size()).unwrap_or(elf::HEADER_SEARCH_BYTES);
        let head = program.at(0, length.min(elf::HEADER_SEARCH_BYTES))?;
        match elf::is_dynamic(&head) {
            Some(false) => Ok(program),
            Some(true) => Err(InstallError::Dynamic),
            None => Err(InstallError::NoProgram),
        }
    }

    fn put_program(
        &self,
        program: &ChunkedReader,
        places: &HostPaths,
    ) -> Result<bool, InstallError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stat = self.root.stat(&places.program)?;
        if stat.is_some() && known.copy == stat {
            return Ok(false);
        }
        let own = match known.own {
            Some(own) => own,
            None => program.digest()?,
        };
        let same = match &stat {
            Some(stat) if stat.kind == FileKind::File && stat.mode == 0o755 => {
                stat.size == program.size() && self.root.digest(&places.program)? == own
            }
            _ => false,
        };
        if !same {
            self.root.make_dirs(&places.dir, 0o755)?;
            let labels = labels(&self.root)?;
            let label = labels.of(&places.program, ObjectKind::File);
            self.root
                .replace_by_copy(&places.program, program, 0o755, label)?;
        }
        *known = InstallCache {
            own: Some(own),
            copy: self.root.stat(&places.program)?,
        };
        Ok(!same)
    }

    fn put_unit(&self, path: &AbsPath, text: &str) -> Result<bool, InstallError> {
        let there = match self.root.read_nofollow(path, MAX_UNIT_FILE_BYTES) {
            Ok(there) => there,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        if there == text.as_bytes() {
            return Ok(false);
        }
        if let Some(units) = path.parent() {
            self.root.make_dirs(&units, 0o755)?;
        }
        self.root.replace(path, text.as_bytes(), 0o644)?;
        Ok(true)
    }

    /// Creates the link that `systemctl enable` would create.
    fn enable(&self, places: &HostPaths) -> Result<bool, InstallError> {
        match self.root.stat(&places.link)? {
            Some(stat) if stat.kind == FileKind::Link => return Ok(false),
            Some(_) => return Err(foreign(&places.link, "not a symbolic link")),
            None => {}
        }
        self.root.make_dirs(&places.wants, 0o755)?;
        self.root
            .build_link(&places.link, places.recover.as_str())?;
        self.root.sync_dir(&places.wants)?;
        Ok(true)
    }
}

/// Files of the config must not be changed: they would show as drift, and would be removed with the
/// config.
fn is_not_the_configs(journal: &Journal, places: &HostPaths) -> Result<(), InstallError> {
    let owned =
        |path: &&AbsPath| journal.owned.contains_key(*path) || journal.adopted.contains(*path);
    match places.all().into_iter().find(owned) {
        Some(path) => Err(InstallError::OfTheConfig(path.clone())),
        None => Ok(()),
    }
}

/// Whether the agent wrote the unit at `path`.
pub(super) fn is_our_unit(root: &Root, path: &AbsPath) -> Result<bool, RootError> {
    Ok(installed_state_of_unit(root, path)? == InstalledState::Ours)
}

fn foreign(path: &AbsPath, why: &str) -> InstallError {
    let (path, why) = (path.clone(), why.to_owned());
    InstallError::Foreign { path, why }
}

/// Who owns the unit at `path`.
fn installed_state_of_unit(root: &Root, path: &AbsPath) -> Result<InstalledState, RootError> {
    match root.read_nofollow(path, MAX_UNIT_FILE_BYTES) {
        Ok(text) if units::is_ours(&String::from_utf8_lossy(&text)) => Ok(InstalledState::Ours),
        Ok(_) => Ok(InstalledState::Foreign),
        Err(error) if error.is_not_found() => Ok(InstalledState::Nothing),
        Err(error) => match root.stat(path)? {
            // A link, such as a mask; a directory; or a file that is too long.
            Some(_) => Ok(InstalledState::Foreign),
            None => Err(error),
        },
    }
}
