//! Stores a held config: the config that an administrator selected instead of the desired one, with `rollback`, or
//! with `apply FILE` beside a running agent.
//!
//! The hold ends when the config source delivers a new config, or when an administrator returns to the source.
//! Without a hold, the agent would immediately apply the source's config again.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{reconciler::DesiredConfig, store::paths};
use machinist_base::{abs_path::AbsPath, digest::Digest, reason::Reason};
use machinist_ignition::MachineConfig;
use machinist_rootfs::{Root, RootError};

/// The command that returns to a config that the machine had before.
pub const ROLLBACK_COMMAND: &str = "rollback";

/// Maximum size of a config in base64.
const MAX_PINNED_CONFIG_BYTES: u64 = 768 << 20;

/// A config that an operator holds on the machine, and the source's config that is not applied
/// meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub struct PinnedConfig {
    /// The config.
    pub config: Arc<MachineConfig>,
    /// Its digest.
    pub digest: Digest,
    /// The source's config at the time of the selection; `None` if the source had no readable config.
    pub over: Option<Digest>,
    /// The command that created the hold: `rollback` or `apply`.
    pub by: String,
    /// When the hold began.
    pub since: Timestamp,
}

/// Reasons why the hold cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// A file system call failed.
    #[error(transparent)]
    Root(#[from] RootError),
    /// The file was not written by machinist.
    #[error("{path} is not a valid file of machinist")]
    Malformed {
        /// The file.
        path: AbsPath,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl PinError {
    /// Returns the stable reason code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Root(error) => error.reason(),
            Self::Malformed { .. } => Reason::Io,
        }
    }
}

/// The first line of the file; the rest is the config in its stored form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PinHeader {
    name: String,
    digest: Digest,
    over: Option<Digest>,
    by: String,
    since: Timestamp,
}

impl PinnedConfig {
    /// Returns the desired config, given the source's config: the held config while the source's config is
    /// unchanged or unreadable. `None` means that the hold has ended.
    pub fn desired(&self, said: &DesiredConfig) -> Option<DesiredConfig> {
        let ends = |digest| Some(digest) != self.over || digest == self.digest;
        let over = said.digest().is_some_and(ends);
        (!over).then(|| DesiredConfig::Config(Arc::clone(&self.config), self.digest))
    }

    /// Stores the hold durably.
    pub fn save(&self, root: &Root) -> Result<(), PinError> {
        let head = PinHeader {
            name: self.config.name.clone(),
            digest: self.digest,
            over: self.over,
            by: self.by.clone(),
            since: self.since,
        };
        let mut text = serde_json::to_vec(&head).map_err(garbled)?;
        text.push(b'\n');
        text.extend(machinist_ignition::to_portable_json(&self.config).map_err(garbled)?);
        Ok(root.replace(&paths::pinned_config(), &text, 0o600)?)
    }

    /// Loads the hold; `None` if there is none.
    pub fn load(root: &Root) -> Result<Option<Self>, PinError> {
        let text = match root.read_nofollow(&paths::pinned_config(), MAX_PINNED_CONFIG_BYTES) {
            Err(error) if error.is_not_found() => return Ok(None),
            text => text?,
        };
        let end = text.iter().position(|byte| *byte == b'\n');
        let (head, rest) = text.split_at(end.unwrap_or(text.len()));
        let head: PinHeader = serde_json::from_slice(head).map_err(garbled)?;
        let config = rest.strip_prefix(b"\n").unwrap_or_default();
        let mut config = machinist_ignition::from_portable_json(config).map_err(garbled)?;
        if machinist_ignition::digest(&config) != head.digest {
            return Err(garbled("the digest of its config does not match"));
        }
        config.name = head.name;
        if head.by == ROLLBACK_COMMAND {
            config.allow_downgrade();
        }
        Ok(Some(Self {
            config: Arc::new(config),
            digest: head.digest,
            over: head.over,
            by: head.by,
            since: head.since,
        }))
    }

    /// Deletes the hold, if there is one.
    pub fn forget(root: &Root) -> Result<(), PinError> {
        Ok(root.remove_file(&paths::pinned_config())?)
    }
}

fn garbled(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> PinError {
    PinError::Malformed {
        path: paths::pinned_config(),
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str) -> (Arc<MachineConfig>, Digest) {
        let mut config = MachineConfig::default();
        let at = AbsPath::new(format!("/etc/{name}")).unwrap();
        config.links.insert(
            at,
            machinist_ignition::Link {
                hard: false,
                target: name.to_owned(),
                user: machinist_ignition::Owner::Id(0),
                group: machinist_ignition::Owner::Id(0),
                origin: Default::default(),
            },
        );
        config.name = name.to_owned();
        let digest = machinist_ignition::digest(&config);
        (Arc::new(config), digest)
    }

    fn hold() -> PinnedConfig {
        let (mut config, digest) = config("earlier");
        Arc::make_mut(&mut config).allow_downgrade();
        PinnedConfig {
            config,
            digest,
            over: Some(self::config("later").1),
            by: ROLLBACK_COMMAND.to_owned(),
            since: Timestamp::from_second(1_800_000_000).unwrap(),
        }
    }

    #[test]
    fn a_pinned_config_is_released_when_the_source_changes() {
        let hold = hold();
        let source = |name| {
            let (config, digest) = config(name);
            DesiredConfig::Config(config, digest)
        };
        let held = DesiredConfig::Config(Arc::clone(&hold.config), hold.digest);
        for said in [
            DesiredConfig::Unknown,
            DesiredConfig::Refused(Arc::default()),
            source("later"),
        ] {
            assert!(
                hold.desired(&said).unwrap().is_equal_for_readers(&held),
                "{said:?}"
            );
        }
        assert!(hold.desired(&source("newest")).is_none());
        assert!(
            hold.desired(&source("earlier")).is_none(),
            "both are equal: nothing to pin"
        );
    }

    #[test]
    fn a_pinned_config_survives_a_restart_and_a_corrupt_one_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        assert_eq!(PinnedConfig::load(&root).unwrap(), None);
        root.make_dirs(&paths::state_dir(), 0o700).unwrap();
        let hold = hold();
        hold.save(&root).unwrap();
        assert_eq!(PinnedConfig::load(&root).unwrap(), Some(hold));
        let text = root
            .read(&paths::pinned_config(), MAX_PINNED_CONFIG_BYTES)
            .unwrap();
        root.replace(&paths::pinned_config(), &text[..text.len() - 1], 0o600)
            .unwrap();
        assert!(matches!(
            PinnedConfig::load(&root),
            Err(PinError::Malformed { .. })
        ));
        PinnedConfig::forget(&root).unwrap();
        assert_eq!(PinnedConfig::load(&root).unwrap(), None);
    }
}
