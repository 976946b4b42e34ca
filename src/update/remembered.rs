//! What one writer of a root need not read twice in the course of an update.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    journal::ConfigName,
    observe::Digests,
    store::{self, StoreError},
};
use crate::{machine_config::MachineConfig, root::Root};

/// The config before and the one to reach.
const CONFIGS: usize = 2;

/// Stored configs and digests of files. Begins with nothing: a new one makes sure that all is read.
#[derive(Debug, Default)]
pub struct Remembered {
    configs: Mutex<Vec<(ConfigName, Arc<MachineConfig>)>>,
    digests: Digests,
}

impl Remembered {
    /// Like [`store::config`]. What is stored under a digest never changes.
    pub fn config(
        &self,
        root: &Root,
        name: Option<&ConfigName>,
    ) -> Result<Arc<MachineConfig>, StoreError> {
        let known = || self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(wanted) = name else {
            return Ok(Arc::default());
        };
        if let Some((_, config)) = known().iter().find(|(name, _)| name == wanted) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(store::config(root, name)?);
        self.add(wanted, Arc::clone(&config));
        Ok(config)
    }

    /// Takes up a config that is stored under this name.
    pub(super) fn know(&self, name: &ConfigName, config: &MachineConfig) {
        self.add(name, Arc::new(config.clone()));
    }

    fn add(&self, name: &ConfigName, config: Arc<MachineConfig>) {
        let mut known = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(known, _)| known != name);
        let surplus = (known.len() + 1).saturating_sub(CONFIGS);
        known.drain(..surplus);
        known.push((name.clone(), config));
    }

    /// Digests of files that were read.
    pub const fn digests(&self) -> &Digests {
        &self.digests
    }

    /// The update is over: configs are read again when they are needed.
    pub(super) fn forget_configs(&self) {
        let mut known = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Vec::new();
    }
}
