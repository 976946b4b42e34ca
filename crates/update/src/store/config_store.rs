//! Stores applied configs under their digests. The contents of their files are in packs beside them.

use std::{collections::BTreeSet, sync::Arc};

use super::{StateStore, StoreError, content_pack::ContentStore, paths};
use crate::{
    cache::ObservationCache,
    journal::{ConfigName, Journal, UpdateRecord},
};
use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_ignition::{Content, MachineConfig};
use machinist_rootfs::{Root, RootError};

/// Maximum size of a stored config: more than a plan accepts, because file contents are stored elsewhere.
const MAX_STORED_CONFIG_BYTES: u64 = 256 << 20;

impl StateStore {
    /// Stores a config under its digest, if it is not stored yet.
    ///
    /// The contents of its files are made durable first: a stored config is always complete.
    pub fn keep_config(&self, config: &MachineConfig) -> Result<ConfigName, StoreError> {
        let text = machinist_ignition::to_canonical_json(config);
        let digest = Digest::of(&text);
        let name = ConfigName {
            tells_absent: true,
            ..ConfigName::new(config.name.clone(), digest)
        };
        let known = match config_text(&self.root, &name) {
            Ok(_) => true,
            Err(StoreError::Config { .. }) => false,
            Err(error) => return Err(error),
        };
        // A config that is supplied again is complete afterwards, whatever happened to the stored copy.
        let kept = ContentStore::open(&self.root)?.keep(config, known)?;
        kept.map_err(|error| lost(&name, error))?;
        if !known {
            self.root.replace(&config_path(&digest), &text, 0o600)?;
            // Verification of the update need not read the config back.
            self.remembered.add_config(&name, config);
        }
        Ok(name)
    }

    /// Deletes configs that are neither the base, nor part of an open transaction, nor recorded in the history as
    /// successfully applied.
    pub fn forget_configs(&self, journal: &Journal) -> Result<(), StoreError> {
        let open = journal.transactions.iter();
        let open = open.flat_map(|tx| tx.from.iter().chain([&tx.to]).map(|config| config.digest));
        let base = journal.base.iter().map(|base| base.digest);
        let was_on = |update: &&UpdateRecord| update.outcome.is_done();
        let done = journal
            .history
            .iter()
            .filter(was_on)
            .map(|update| update.digest);
        let wanted: BTreeSet<Digest> = base.chain(open).chain(done).collect();
        let names: BTreeSet<String> = wanted.iter().map(Digest::hex).collect();
        let mut forgotten = false;
        for entry in self.root.list(&paths::configs())? {
            if !names.contains(&entry.name)
                && let Ok(place) = paths::configs().join(&entry.name)
            {
                self.root.remove_file(&place)?;
                forgotten = true;
            }
        }
        self.remembered.forget_configs();
        // A failed update leaves nothing behind, because the disk may have been too small for it. Other obsolete
        // contents are collected when there are many packs.
        let last = journal.history.last();
        let undone = forgotten && last.is_some_and(|update| !update.outcome.is_done());
        let contents = ContentStore::open(&self.root)?;
        match undone || contents.are_many() {
            true => Ok(contents.retain_only(&self.contents_of(&wanted)?)?),
            false => Ok(()),
        }
    }

    /// Returns the digests of the contents of these configs' files.
    fn contents_of(&self, configs: &BTreeSet<Digest>) -> Result<BTreeSet<Digest>, StoreError> {
        let mut all = BTreeSet::new();
        for digest in configs {
            let name = ConfigName::new(digest.to_string(), *digest);
            match config(&self.root, Some(&name)) {
                // It cannot be applied any more.
                Err(StoreError::Config { .. }) => {}
                config => {
                    let config = config?;
                    let files = config.files.values();
                    let contents = files.filter_map(|file| file.content.as_ref());
                    all.extend(contents.map(Content::digest));
                }
            }
        }
        Ok(all)
    }
}

/// Returns a stored config as [`config`] does, from the cache if it is there.
pub fn cached_config(
    root: &Root,
    name: Option<&ConfigName>,
    cache: &ObservationCache,
) -> Result<Arc<MachineConfig>, StoreError> {
    match name {
        Some(wanted) => cache.config_or_read(wanted, || config(root, name)),
        None => Ok(Arc::default()),
    }
}

/// Reads a stored config, with the digests of its files' contents but without the contents. Returns an empty config
/// if `name` is `None`.
pub fn config(root: &Root, name: Option<&ConfigName>) -> Result<MachineConfig, StoreError> {
    let Some(name) = name else {
        return Ok(MachineConfig::default());
    };
    let text = config_text(root, name)?;
    let mut config =
        machinist_ignition::from_canonical_json(&text).map_err(|error| lost(name, error))?;
    config.name.clone_from(&name.name);
    Ok(config)
}

/// Reads a stored config with the contents of its files, so that it can be applied.
pub fn whole_config(root: &Root, name: &ConfigName) -> Result<MachineConfig, StoreError> {
    let mut config = config(root, Some(name))?;
    let filled = ContentStore::open(root)?.fill(&mut config)?;
    filled.map_err(|error| lost(name, error))?;
    Ok(config)
}

/// Reads the text of a stored config and checks its digest.
fn config_text(root: &Root, name: &ConfigName) -> Result<Vec<u8>, StoreError> {
    let text = match root.read_nofollow(&config_path(&name.digest), MAX_STORED_CONFIG_BYTES) {
        Ok(text) => text,
        Err(error @ (RootError::WrongKind { .. } | RootError::TooLarge { .. })) => {
            return Err(lost(name, error));
        }
        Err(error) if error.is_not_found() => return Err(lost(name, error)),
        Err(error) => return Err(error.into()),
    };
    match Digest::of(&text) == name.digest {
        true => Ok(text),
        false => Err(lost(name, ContentMismatchError(name.digest))),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{}/{} has other content", paths::configs(), .0.hex())]
struct ContentMismatchError(Digest);

fn lost(name: &ConfigName, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Config {
        name: name.name.clone(),
        source: Box::new(source),
    }
}

fn config_path(digest: &Digest) -> AbsPath {
    let name = digest.hex();
    paths::configs()
        .join(&name)
        .unwrap_or_else(|_| paths::configs())
}
