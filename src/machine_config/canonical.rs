//! The one spelling of a config: what its digest is taken of, and what the journal keeps.

use std::io;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::MachineConfig;
use crate::digest::Digest;

/// The version of the form. Another one means other digests for the same machines, so it changes
/// only when a config can say something new.
const SCHEMA: u32 = 1;

/// How many digits of the digest a rendered config's name carries; as many as OpenShift's has.
const DIGITS_IN_NAMES: usize = 32;

/// The form: maps in the order of their keys, every field there, contents in base64. Neither the
/// config's name nor any origin is part of it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form<C> {
    schema: u32,
    config: C,
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
}

/// The canonical form of `config`. Its SHA-256 is [`digest`].
pub fn to_canonical_json(config: &MachineConfig) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(config, &mut bytes);
    bytes
}

/// Reads a canonical form back. The config's name is empty: who keeps the form knows the name.
pub fn from_canonical_json(bytes: &[u8]) -> Result<MachineConfig, CanonicalError> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    let form = serde_json::from_slice::<Form<MachineConfig>>(bytes);
    match form {
        Ok(form) if form.schema == SCHEMA => Ok(form.config),
        // Another schema may say what this one has no words for, so that comes first.
        form => match serde_json::from_slice(bytes).map_err(CanonicalError::Syntax)? {
            Version { schema: SCHEMA } => {
                form.map(|form| form.config).map_err(CanonicalError::Syntax)
            }
            Version { schema } => Err(CanonicalError::SchemaUnknown(schema)),
        },
    }
}

/// The digest of what `config` asks for: equal for equal machines, however they were written.
pub fn digest(config: &MachineConfig) -> Digest {
    let mut hasher = Hasher(Sha256::new());
    write(config, &mut hasher);
    Digest::from_raw(hasher.0.finalize().into())
}

/// What a merged config is called: `rendered-<pool>-` and the beginning of its digest.
pub fn rendered_name(pool: &str, digest: &Digest) -> String {
    format!("rendered-{pool}-{}", digest.short(DIGITS_IN_NAMES))
}

fn write(config: &MachineConfig, to: impl io::Write) {
    let form = Form {
        schema: SCHEMA,
        config,
    };
    // Keys are texts and neither writer fails, so there is no error to hand on.
    let written = serde_json::to_writer(to, &form);
    debug_assert!(written.is_ok(), "{written:?}");
}

/// Takes the digest while the form is written, so that it is never in memory as a whole.
struct Hasher(Sha256);

impl io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
