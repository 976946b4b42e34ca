//! Stores the contents of the files of kept configs, each content once, in packs.
//!
//! A pack is a file that is written once and never changed. It contains what no earlier pack contained when a
//! config was stored, so that storing a config costs only its new contents and one sync, whatever its size. Its
//! format is [`MAGIC`], the number of contents, the SHA-256 and the length of each, then the contents. Numbers have
//! 8 bytes, little-endian. The pack's name is the digest of everything before the contents.

use std::collections::{BTreeMap, BTreeSet};

use super::paths;
use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_ignition::{Content, MachineConfig, MissingContent};
use machinist_rootfs::{ChunkedReader, FileKind, Root, RootError};

const MAGIC: &[u8; 8] = b"MCpack1\n";
const HEADER_BYTES: usize = MAGIC.len() + NUMBER_BYTES;
const NUMBER_BYTES: usize = size_of::<u64>();
/// Length of an index entry.
const INDEX_ENTRY_BYTES: usize = 32 + NUMBER_BYTES;
/// Maximum length of an index: about 400,000 contents. A pack that claims more is damaged.
const MAX_INDEX_BYTES: u64 = 16 << 20;

/// With more packs than this, packs with little useful content are merged. Every reader opens all packs, and
/// obsolete contents stay until then.
const COMPACT_ABOVE_PACKS: usize = 16;
/// A pack with more useful content than this, which makes up most of it, is not worth rewriting.
const COMPACT_BELOW_BYTES: u64 = 4 << 20;

/// The contents that are stored below a root.
pub(super) struct ContentStore<'a> {
    root: &'a Root,
    packs: Vec<Pack>,
}

struct Pack {
    place: AbsPath,
    file: ChunkedReader,
    /// Offset and length of each content.
    index: BTreeMap<Digest, (u64, u64)>,
}

impl<'a> ContentStore<'a> {
    /// Reads the index of every pack. Ignores damaged packs.
    pub(super) fn open(root: &'a Root) -> Result<Self, RootError> {
        let mut packs = Vec::new();
        let listed = match root.list(&paths::contents()) {
            Err(error) if error.is_not_found() => Vec::new(),
            listed => listed?,
        };
        for entry in listed {
            let Ok(place) = paths::contents().join(&entry.name) else {
                continue;
            };
            match Pack::open(root, place) {
                Ok(pack) => packs.extend(pack),
                // It was removed after it was listed, or is not a pack.
                Err(error) if error.is_not_found() || error.is_wrong_kind() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Self { root, packs })
    }

    fn holds(&self, content: &Content) -> bool {
        let digest = content.digest();
        self.packs
            .iter()
            .any(|pack| pack.index.contains_key(&digest))
    }

    /// Stores the contents of the config's files durably, if they are not stored yet. With `read`, it verifies
    /// stored contents and rewrites damaged ones.
    pub(super) fn keep(
        &self,
        config: &MachineConfig,
        read: bool,
    ) -> Result<Result<(), MissingContent>, RootError> {
        let mut new = BTreeMap::new();
        for (path, file) in &config.files {
            let Some(content) = &file.content else {
                continue;
            };
            let held = self.holds(content);
            if held && (!read || self.read(content)?.is_some()) {
                continue;
            }
            let Some(bytes) = content.bytes() else {
                return Ok(Err(MissingContent { path: path.clone() }));
            };
            new.insert(content.digest(), bytes);
        }
        write(self.root, &new)?;
        Ok(Ok(()))
    }

    /// Reads a content; returns `None` if no pack has it undamaged.
    fn read(&self, content: &Content) -> Result<Option<Content>, RootError> {
        let digest = content.digest();
        for pack in &self.packs {
            let bytes = pack.bytes(&digest)?;
            // `with_bytes` returns `None` if the bytes do not match the digest.
            if let Some(content) = bytes.and_then(|bytes| content.with_bytes(bytes)) {
                return Ok(Some(content));
            }
        }
        Ok(None)
    }

    /// Fills in the contents of a stored config's files.
    pub(super) fn fill(
        &self,
        config: &mut MachineConfig,
    ) -> Result<Result<(), MissingContent>, RootError> {
        for (path, file) in &mut config.files {
            let Some(named) = &mut file.content else {
                continue;
            };
            match self.read(named)? {
                Some(content) => *named = content,
                None => return Ok(Err(MissingContent { path: path.clone() })),
            }
        }
        Ok(Ok(()))
    }

    pub(super) const fn are_many(&self) -> bool {
        self.packs.len() > COMPACT_ABOVE_PACKS
    }

    /// Deletes most contents outside `wanted`: it merges the packs that hold little of `wanted`, and keeps the
    /// others.
    pub(super) fn retain_only(self, wanted: &BTreeSet<Digest>) -> Result<(), RootError> {
        let held = |pack: &Pack| -> u64 {
            let wanted = pack
                .index
                .iter()
                .filter(|(digest, _)| wanted.contains(digest));
            wanted.map(|(_, (_, size))| size).sum()
        };
        let little =
            |pack: &Pack| held(pack) <= COMPACT_BELOW_BYTES || held(pack) < pack.file.size() / 2;
        let (small, large): (Vec<Pack>, _) = self.packs.into_iter().partition(little);
        let mut together = BTreeMap::new();
        for pack in &small {
            for digest in pack.index.keys().filter(|digest| wanted.contains(digest)) {
                let elsewhere = large.iter().any(|pack| pack.index.contains_key(digest));
                if !elsewhere && let Some(bytes) = pack.read(digest)? {
                    together.insert(*digest, bytes);
                }
            }
        }
        let together = together
            .iter()
            .map(|(digest, bytes)| (*digest, bytes.as_slice()));
        let made = write(self.root, &together.collect())?;
        let stays: BTreeSet<&AbsPath> = large.iter().map(|pack| &pack.place).chain(&made).collect();
        // Also removes files that are not packs, or not any more.
        for entry in self.root.list(&paths::contents())? {
            if let Ok(place) = paths::contents().join(&entry.name)
                && entry.kind != FileKind::Directory
                && !stays.contains(&place)
            {
                self.root.remove_file(&place)?;
            }
        }
        Ok(())
    }
}

impl Pack {
    fn open(root: &Root, place: AbsPath) -> Result<Option<Self>, RootError> {
        let file = root.pieces(&place)?;
        if file.size() < HEADER_BYTES as u64 {
            return Ok(None);
        }
        let head = file.at(0, HEADER_BYTES)?;
        let length = number(&head[MAGIC.len()..]).saturating_mul(INDEX_ENTRY_BYTES as u64);
        let whole = length.saturating_add(HEADER_BYTES as u64);
        if !head.starts_with(MAGIC) || length > MAX_INDEX_BYTES || file.size() < whole {
            return Ok(None);
        }
        let text = file.at(
            HEADER_BYTES as u64,
            usize::try_from(length).unwrap_or_default(),
        )?;
        let (mut index, mut offset) = (BTreeMap::new(), whole);
        for entry in text.chunks_exact(INDEX_ENTRY_BYTES) {
            let (digest, size) = (raw(entry), number(&entry[32..]));
            index.insert(digest, (offset, size));
            offset = offset.saturating_add(size);
        }
        let named = name_of(&[&head, &text]) == place.file_name();
        Ok((named && offset == file.size()).then_some(Self { place, file, index }))
    }

    /// Reads a content from the pack without verifying it.
    fn bytes(&self, digest: &Digest) -> Result<Option<Vec<u8>>, RootError> {
        let Some((offset, size)) = self.index.get(digest) else {
            return Ok(None);
        };
        let size = usize::try_from(*size).unwrap_or_default();
        self.file.at(*offset, size).map(Some)
    }

    /// Reads a content from the pack if it is undamaged.
    fn read(&self, digest: &Digest) -> Result<Option<Vec<u8>>, RootError> {
        let bytes = self.bytes(digest)?;
        Ok(bytes.filter(|bytes| Digest::of(bytes) == *digest))
    }
}

/// Writes a pack with these contents; returns `None` if there are none.
fn write(root: &Root, contents: &BTreeMap<Digest, &[u8]>) -> Result<Option<AbsPath>, RootError> {
    if contents.is_empty() {
        return Ok(None);
    }
    let mut index = MAGIC.to_vec();
    index.extend((contents.len() as u64).to_le_bytes());
    for (digest, bytes) in contents {
        index.extend(digest.as_bytes());
        index.extend((bytes.len() as u64).to_le_bytes());
    }
    let place = paths::contents().join(&name_of(&[&index]));
    let place = place.unwrap_or_else(|_| paths::contents());
    let mut parts = vec![index.as_slice()];
    parts.extend(contents.values());
    root.replace_by(&place, &parts, 0o600)?;
    Ok(Some(place))
}

fn name_of(index: &[&[u8]]) -> String {
    let mut digester = machinist_base::digest::Digester::new();
    index.iter().for_each(|part| digester.add(part));
    digester.finish().hex()
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn raw(entry: &[u8]) -> Digest {
    entry
        .first_chunk()
        .map_or_else(|| Digest::of(&[]), |raw| Digest::from_raw(*raw))
}

#[cfg(test)]
mod tests;
