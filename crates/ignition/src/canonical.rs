//! Serialises a config to its canonical form, which its digest is computed from and which the store
//! keeps.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use serde::{Deserialize, Serialize};

use super::{Content, MachineConfig, MissingContent, Overwrite, content_source};
use machinist_base::{
    abs_path::AbsPath,
    digest::{Digest, Digester},
};

/// The version of the canonical form. A new version changes the digests of unchanged configs, so it
/// is raised only when configs gain new content.
const SCHEMA_VERSION: u32 = 1;

/// The number of digest digits in a rendered config's name, as in OpenShift.
const NAME_DIGEST_DIGITS: usize = 32;

/// The canonical form: maps sorted by key, every field present, contents by digest and length. It
/// contains neither the config's name nor any origin.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CanonicalForm<C> {
    schema: u32,
    config: C,
    /// Only in the portable form: the contents in base64, without duplicates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contents: Option<BTreeMap<Digest, String>>,
    /// Only in the portable form: the entries that must not replace an object of another kind; none
    /// if every entry may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    no_overwrite: Option<BTreeSet<AbsPath>>,
}

/// Why a canonical form cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum CanonicalError {
    /// It is not a canonical form.
    #[error("cannot read the stored machine config")]
    Syntax(#[source] serde_json::Error),
    /// It was written by a newer version.
    #[error("the stored machine config has schema {0}; only schema {SCHEMA_VERSION} is supported")]
    SchemaUnknown(u32),
    /// The content of a file is missing, or present where it does not belong.
    #[error("cannot read the stored machine config")]
    Content(#[source] MissingContent),
}

/// The canonical form of `config`. Its SHA-256 is [`digest`].
pub fn to_canonical_json(config: &MachineConfig) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(config, None, &mut bytes);
    bytes
}

/// Parses a canonical form. The config's name is empty, because the caller stores the name
/// separately. Contents have no bytes.
pub fn from_canonical_json(bytes: &[u8]) -> Result<MachineConfig, CanonicalError> {
    read(bytes).map(|form| form.config)
}

/// The canonical form with the contents, for other processes or for standalone storage.
///
/// # Errors
/// The config was read from the store without the contents.
pub fn to_portable_json(config: &MachineConfig) -> Result<Vec<u8>, MissingContent> {
    let mut contents = BTreeMap::new();
    for (path, file) in &config.files {
        let Some(content) = &file.content else {
            continue;
        };
        let bytes = content.bytes();
        let bytes = bytes.ok_or_else(|| MissingContent { path: path.clone() })?;
        let encoded = || content_source::base64(bytes);
        contents.entry(content.digest()).or_insert_with(encoded);
    }
    let mut bytes = Vec::new();
    write(config, Some(contents), &mut bytes);
    Ok(bytes)
}

/// Parses a portable form. The config's name is empty, as with [`from_canonical_json`].
pub fn from_portable_json(bytes: &[u8]) -> Result<MachineConfig, CanonicalError> {
    let form = read(bytes)?;
    let decode = |text: &String| content_source::decode_base64(text);
    let texts = form.contents.iter().flatten();
    // Equal contents share their bytes.
    let contents: BTreeMap<Digest, Content> = texts
        .filter_map(|(digest, text)| Some((*digest, Content::new(decode(text)?))))
        .collect();
    let mut config = form.config;
    config.overwrite = form.no_overwrite.map_or(Overwrite::Any, Overwrite::Except);
    for (path, file) in &mut config.files {
        let Some(named) = &mut file.content else {
            continue;
        };
        let content = contents.get(&named.digest());
        let content = content.filter(|content| *content == named);
        let missing = || CanonicalError::Content(MissingContent { path: path.clone() });
        *named = content.cloned().ok_or_else(missing)?;
    }
    Ok(config)
}

fn read(bytes: &[u8]) -> Result<CanonicalForm<MachineConfig>, CanonicalError> {
    #[derive(Deserialize)]
    struct CanonicalVersion {
        schema: u32,
    }
    let form = serde_json::from_slice::<CanonicalForm<MachineConfig>>(bytes);
    match form {
        Ok(form) if form.schema == SCHEMA_VERSION => Ok(form),
        // Another schema may have unknown fields, so check the version first.
        form => match serde_json::from_slice(bytes).map_err(CanonicalError::Syntax)? {
            CanonicalVersion {
                schema: SCHEMA_VERSION,
            } => form.map_err(CanonicalError::Syntax),
            CanonicalVersion { schema } => Err(CanonicalError::SchemaUnknown(schema)),
        },
    }
}

/// The digest of `config`: equal for configs that describe the same machine, independent of their
/// spelling.
pub fn digest(config: &MachineConfig) -> Digest {
    let mut hasher = DigestWriter(Digester::new());
    // The serialiser writes pieces of a few bytes.
    write(config, None, io::BufWriter::new(&mut hasher));
    hasher.0.finish()
}

/// The name of a merged config: `rendered-<pool>-` and the beginning of its digest.
pub fn rendered_name(pool: &str, digest: &Digest) -> String {
    format!("rendered-{pool}-{}", digest.short(NAME_DIGEST_DIGITS))
}

fn write(config: &MachineConfig, contents: Option<BTreeMap<Digest, String>>, to: impl io::Write) {
    let no_overwrite = match (&contents, &config.overwrite) {
        (Some(_), Overwrite::Except(paths)) => Some(paths.clone()),
        _ => None,
    };
    let form = CanonicalForm {
        schema: SCHEMA_VERSION,
        config,
        contents,
        no_overwrite,
    };
    // Keys are strings and no writer here fails, so there is no error to return.
    let written = serde_json::to_writer(to, &form);
    debug_assert!(written.is_ok(), "{written:?}");
}

/// Computes the digest while the form is written, so that the form is never in memory as a whole.
struct DigestWriter(Digester);

impl io::Write for DigestWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
