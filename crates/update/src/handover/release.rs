//! Releases a machine: what machinist manages becomes machine-config-daemon's, unchanged.

use std::collections::BTreeSet;

use super::{HandoverError, MachineConfigText, mcd_state};
use crate::{
    cache::ObservationCache,
    journal::{ConfigName, Journal},
    observe_and_plan,
    pinned_config::PinnedConfig,
    store::{self, StateStore},
    transaction,
};
use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_ignition::{ConfigRules, MachineConfig};
use machinist_plan::{Capabilities, DriftEntry, MAX_TOTAL_FILE_BYTES};
use machinist_rootfs::{FileKind, Root, Stat};

/// The daemon reads its state as root.
const STATE_FILE_MODE: u32 = 0o600;
const UNIT_DIR: &str = "/etc/systemd/system";

/// The result of a check before release.
#[derive(Debug)]
pub struct ReleasePlan {
    /// The config that the daemon will find.
    pub base: ConfigName,
    /// The drift from that config, for which the daemon would mark the node as degraded.
    pub drift: Vec<DriftEntry>,
}

/// Returns the config to release; refuses while an update is open.
fn ours(journal: &Journal) -> Result<&ConfigName, HandoverError> {
    let open = journal.top().map(|tx| &tx.to);
    let open = open.or(journal.cordon.as_ref().map(|cordon| &cordon.to));
    match (open, &journal.base) {
        (Some(open), _) => Err(HandoverError::Open(open.name.clone())),
        (None, Some(base)) => Ok(base),
        (None, None) => Err(HandoverError::NotOwned),
    }
}

/// Compares the disk with the config to release. Changes nothing. Blocks.
pub fn check_release(
    root: &Root,
    journal: &Journal,
    capabilities: Capabilities,
) -> Result<ReleasePlan, HandoverError> {
    let base = ours(journal)?.clone();
    let remembered = ObservationCache::default();
    let drift = observe_and_plan::drift(root, Some(&base), None, capabilities, &remembered)?;
    Ok(ReleasePlan { base, drift })
}

/// The daemon's state is complete on the disk, and machinist still owns the machine: the release can be restarted
/// from here.
#[derive(Debug)]
#[must_use = "the machine is ours until `Handed::forget`"]
pub struct ReleasedFiles {
    journal: Journal,
    /// Paths whose originals were passed to the daemon.
    paths: BTreeSet<AbsPath>,
}

/// Writes the daemon's state. The parameter `served` is the config from the API server, if it was
/// available: the daemon compares its own copy with that one literally, and would treat a different
/// spelling as a change.
pub fn hand_over(
    store: &StateStore,
    rules: &ConfigRules,
    served: Option<MachineConfigText>,
) -> Result<ReleasedFiles, HandoverError> {
    let root = store.root();
    let journal = store.load()?;
    let base = ours(&journal)?.clone();
    let config = store::whole_config(root, &base)?;
    // An unreadable config of the daemon is replaced.
    let before = mcd_state::read(root, rules).ok().flatten();
    let same = |found: &mcd_state::McdConfigState| {
        found.digest == base.digest && found.config.name == base.name
    };
    let stands = before.as_ref().is_some_and(same);
    let named = files_of(&config)?;
    let mut handed = BTreeSet::new();
    for path in &named {
        let at = root.canonical(path)?;
        give_original(root, &journal, path, &at, !stands)?;
        handed.insert(at);
    }
    if let Some(before) = before.filter(|_| !stands) {
        for path in files_of(&before.config)?.difference(&named) {
            root.remove_file(&mcd_state::original_of(path)?)?;
            root.remove_file(&mcd_state::stamp_of(path)?)?;
        }
    }
    if !stands {
        let text = text_of(&config, base.digest, rules, served)?;
        let path = mcd_state::current_config()?;
        if let Some(dir) = path.parent() {
            root.make_dirs(&dir, 0o755)?;
        }
        let mode = root.stat(&path)?.map_or(STATE_FILE_MODE, |stat| stat.mode);
        root.replace(&path, &text, mode)?;
    }
    Ok(ReleasedFiles {
        journal,
        paths: handed,
    })
}

impl ReleasedFiles {
    /// Ends machinist's ownership. The journal is written last, so that a machine that is still owned can be
    /// released again.
    ///
    /// Returns the originals that could not be passed to the daemon, with the paths where they stay.
    pub fn forget(self, store: &StateStore) -> Result<Vec<(AbsPath, AbsPath)>, HandoverError> {
        let Self { journal, paths } = self;
        let root = store.root();
        // The next agent that starts would resume a hold.
        PinnedConfig::forget(root)?;
        // The cached settings of the pool; the node may be in another pool when machinist manages it again.
        root.remove_file(&store::paths::pool())?;
        let originals = journal.originals.into_iter();
        let (given, left): (Vec<_>, Vec<_>) = originals.partition(|(path, _)| paths.contains(path));
        for (_, place) in given {
            root.remove_tree(&place)?;
        }
        let journal = Journal {
            machine_id: journal.machine_id,
            history: journal.history,
            ..Journal::default()
        };
        store.save(&journal)?;
        store.forget_configs(&journal)?;
        Ok(left)
    }
}

/// Returns the paths for which the daemon keeps originals: files, units, and their drop-ins, as the config spells
/// them.
fn files_of(config: &MachineConfig) -> Result<BTreeSet<AbsPath>, HandoverError> {
    let mut all: BTreeSet<AbsPath> = config.files.keys().cloned().collect();
    for (name, unit) in &config.units {
        if unit.contents.is_some() {
            all.insert(AbsPath::new(format!("{UNIT_DIR}/{name}"))?);
        }
        for drop_in in unit.dropins.keys() {
            all.insert(AbsPath::new(format!("{UNIT_DIR}/{name}.d/{drop_in}"))?);
        }
    }
    Ok(all)
}

/// Passes the original of `path` (with the canonical path `at`) to the daemon. The last parameter
/// is true if the daemon's own copy may be outdated.
fn give_original(
    root: &Root,
    journal: &Journal,
    path: &AbsPath,
    at: &AbsPath,
    anew: bool,
) -> Result<(), HandoverError> {
    let (original, stamp) = (mcd_state::original_of(path)?, mcd_state::stamp_of(path)?);
    // A path that already matched is its own original.
    let adopted = journal.adopted.contains(at).then_some(at);
    let kept = journal.originals.get(at).or(adopted);
    let kind = |path: &AbsPath| Ok::<_, HandoverError>(root.stat(path)?.map(|stat| stat.kind));
    let kept = match kept {
        Some(kept) if matches!(kind(kept)?, Some(FileKind::File | FileKind::Link)) => Some(kept),
        _ => None,
    };
    let Some(kept) = kept else {
        if root.stat(&original)?.is_some() {
            match anew {
                true => root.remove_file(&original)?,
                false => return Ok(()),
            }
        }
        if root.stat(&stamp)?.is_none() {
            make_parent(root, &stamp)?;
            root.replace(&stamp, b"", 0o644)?;
        }
        return Ok(());
    };
    if !is_same(root, kept, &original)? {
        make_parent(root, &original)?;
        let copied = transaction::copy_original(root, kept, &original);
        copied.map_err(|source| HandoverError::Original {
            path: path.clone(),
            source,
        })?;
        root.sync_dir(&original.parent().unwrap_or_else(AbsPath::root))?;
    }
    Ok(root.remove_file(&stamp)?)
}

fn make_parent(root: &Root, path: &AbsPath) -> Result<(), HandoverError> {
    let parent = path.parent().unwrap_or_else(AbsPath::root);
    Ok(root.make_dirs(&parent, 0o755)?)
}

fn is_same(root: &Root, one: &AbsPath, other: &AbsPath) -> Result<bool, HandoverError> {
    let meta = |stat: Stat| (stat.kind, stat.mode, stat.uid, stat.gid, stat.size);
    let (Some(first), Some(second)) = (root.stat(one)?, root.stat(other)?) else {
        return Ok(false);
    };
    let kind = first.kind;
    if meta(first) != meta(second) {
        return Ok(false);
    }
    Ok(match kind {
        FileKind::File => {
            let digest = |path| root.digest_within(path, MAX_TOTAL_FILE_BYTES);
            digest(one)?.is_some_and(|found| digest(other).is_ok_and(|it| it == Some(found)))
        }
        FileKind::Link => {
            let text = root.link_text(one)?;
            text.is_some() && text == root.link_text(other)?
        }
        _ => false,
    })
}

/// Returns the config's text for the daemon: the API server's copy if it is the same config, else machinist's
/// serialisation.
fn text_of(
    config: &MachineConfig,
    digest: Digest,
    rules: &ConfigRules,
    served: Option<MachineConfigText>,
) -> Result<MachineConfigText, HandoverError> {
    if let Some(served) = served
        && mcd_state::parse(&served, "the API server's copy", rules)
            .is_ok_and(|it| it.digest == digest)
    {
        return Ok(served);
    }
    let encode = |error: Box<dyn std::error::Error + Send + Sync>| HandoverError::Encode(error);
    let manifest =
        machinist_ignition::to_machine_config(config).map_err(|e| encode(Box::new(e)))?;
    serde_json::to_vec(&manifest).map_err(|e| encode(Box::new(e)))
}
