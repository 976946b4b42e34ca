//! Caches stored configs and file digests, so that an update does not read them twice.

use std::sync::{Arc, Mutex, PoisonError};

use super::{journal::ConfigName, observe::DigestCache};
use machinist_ignition::MachineConfig;

/// The previous config and the new one.
const MAX_CACHED_CONFIGS: usize = 2;

/// Cache of stored configs and file digests. A new cache is empty, so that everything is read.
#[derive(Debug, Default)]
pub struct ObservationCache {
    configs: Mutex<Vec<(ConfigName, Arc<MachineConfig>)>>,
    digests: DigestCache,
}

impl ObservationCache {
    /// Returns the config with this name; calls `read` if it is not cached. The cache is safe because the content
    /// stored under a digest never changes.
    pub(super) fn config_or_read<E>(
        &self,
        name: &ConfigName,
        read: impl FnOnce() -> Result<MachineConfig, E>,
    ) -> Result<Arc<MachineConfig>, E> {
        let known = || self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, config)) = known().iter().find(|(known, _)| known == name) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(read()?);
        self.add(name, Arc::clone(&config));
        Ok(config)
    }

    /// Adds a config that is stored under this name.
    pub(super) fn add_config(&self, name: &ConfigName, config: &MachineConfig) {
        self.add(name, Arc::new(config.clone()));
    }

    fn add(&self, name: &ConfigName, config: Arc<MachineConfig>) {
        let mut known = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(known, _)| known != name);
        let surplus = (known.len() + 1).saturating_sub(MAX_CACHED_CONFIGS);
        known.drain(..surplus);
        known.push((name.clone(), config));
    }

    /// Returns the cached digests of files.
    pub const fn digests(&self) -> &DigestCache {
        &self.digests
    }

    /// Drops the cached configs at the end of an update.
    pub(super) fn forget_configs(&self) {
        let mut known = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Vec::new();
    }
}
