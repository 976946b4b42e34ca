//! The one spelling of a config: what its digest is taken of, and what the journal keeps.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use serde::{Deserialize, Serialize};

use super::{Content, MachineConfig, NoContent, Overwrite, source};
use crate::{
    digest::{Digest, Digester},
    path::AbsPath,
};

/// The version of the form. Another one means other digests for the same machines, so it changes
/// only when a config can say something new.
const SCHEMA: u32 = 1;

/// How many digits of the digest a rendered config's name carries; as many as OpenShift's has.
const DIGITS_IN_NAMES: usize = 32;

/// The form: maps in the order of their keys, every field there, contents by digest and length. Neither
/// the config's name nor any origin is part of it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form<C> {
    schema: u32,
    config: C,
    /// In the portable form alone: each content once, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contents: Option<BTreeMap<Digest, String>>,
    /// In the portable form alone: entries that must not replace an object of another kind; none where every
    /// entry may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    no_overwrite: Option<BTreeSet<AbsPath>>,
}

/// Why a canonical form cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum CanonicalError {
    /// It is no canonical form.
    #[error("cannot read the stored machine config")]
    Syntax(#[source] serde_json::Error),
    /// A newer version wrote it.
    #[error("the stored machine config has schema {0}; schema {SCHEMA} is read")]
    SchemaUnknown(u32),
    /// What one of the files holds is missing, or is there where it does not belong.
    #[error("cannot read the stored machine config")]
    Content(#[source] NoContent),
}

/// The canonical form of `config`. Its SHA-256 is [`digest`].
pub fn to_canonical_json(config: &MachineConfig) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(config, None, &mut bytes);
    bytes
}

/// Reads a canonical form back. The config's name is empty: who keeps the form knows the name. Its
/// contents come without their bytes.
pub fn from_canonical_json(bytes: &[u8]) -> Result<MachineConfig, CanonicalError> {
    read(bytes).map(|form| form.config)
}

/// The canonical form with the contents: what one process hands to another, or keeps by itself.
///
/// # Errors
/// The config comes from the store, without the contents.
pub fn to_portable_json(config: &MachineConfig) -> Result<Vec<u8>, NoContent> {
    let mut contents = BTreeMap::new();
    for (path, file) in &config.files {
        let Some(content) = &file.content else {
            continue;
        };
        let bytes = content.bytes();
        let bytes = bytes.ok_or_else(|| NoContent { path: path.clone() })?;
        let encoded = || source::base64(bytes);
        contents.entry(content.digest()).or_insert_with(encoded);
    }
    let mut bytes = Vec::new();
    write(config, Some(contents), &mut bytes);
    Ok(bytes)
}

/// Reads a portable form back. The config's name is empty, as with [`from_canonical_json`].
pub fn from_portable_json(bytes: &[u8]) -> Result<MachineConfig, CanonicalError> {
    let form = read(bytes)?;
    let decode = |text: &String| data_url::forgiving_base64::decode_to_vec(text.as_bytes()).ok();
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
        let missing = || CanonicalError::Content(NoContent { path: path.clone() });
        *named = content.cloned().ok_or_else(missing)?;
    }
    Ok(config)
}

fn read(bytes: &[u8]) -> Result<Form<MachineConfig>, CanonicalError> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    let form = serde_json::from_slice::<Form<MachineConfig>>(bytes);
    match form {
        Ok(form) if form.schema == SCHEMA => Ok(form),
        // Another schema may say what this one has no words for, so that comes first.
        form => match serde_json::from_slice(bytes).map_err(CanonicalError::Syntax)? {
            Version { schema: SCHEMA } => form.map_err(CanonicalError::Syntax),
            Version { schema } => Err(CanonicalError::SchemaUnknown(schema)),
        },
    }
}

/// The digest of what `config` asks for: equal for equal machines, however they were written.
pub fn digest(config: &MachineConfig) -> Digest {
    let mut hasher = Hasher(Digester::new());
    // It is written in pieces of a few bytes.
    write(config, None, io::BufWriter::new(&mut hasher));
    hasher.0.finish()
}

/// What a merged config is called: `rendered-<pool>-` and the beginning of its digest.
pub fn rendered_name(pool: &str, digest: &Digest) -> String {
    format!("rendered-{pool}-{}", digest.short(DIGITS_IN_NAMES))
}

fn write(config: &MachineConfig, contents: Option<BTreeMap<Digest, String>>, to: impl io::Write) {
    let no_overwrite = match (&contents, &config.overwrite) {
        (Some(_), Overwrite::Except(paths)) => Some(paths.clone()),
        _ => None,
    };
    let form = Form {
        schema: SCHEMA,
        config,
        contents,
        no_overwrite,
    };
    // Keys are texts and no writer here fails, so there is no error to hand on.
    let written = serde_json::to_writer(to, &form);
    debug_assert!(written.is_ok(), "{written:?}");
}

/// Takes the digest while the form is written, so that it is never in memory as a whole.
struct Hasher(Digester);

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
