//! Many files, each with its documents, and the one config they make together.

use super::{
    Document, Local, MachineConfig, Order, Refusal, Rules, document, merge, roles, source, tree,
    unread::Unread,
};
use crate::reason::Reason;

/// Endings of the files that hold machine config.
pub const ENDINGS: [&str; 5] = [".yaml", ".yml", ".json", ".ign", ".bu"];

/// Whether a file of that name is read as machine config; hidden files (editors' temporary ones
/// among them) are not.
pub fn is_config_name(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    let with_ending = |ending: &str| name.len() > ending.len() && name.ends_with(ending);
    !name.starts_with('.') && ENDINGS.iter().any(|ending| with_ending(ending))
}

/// How the files of one machine become its config.
#[derive(Clone, Copy)]
pub struct Gathering<'a> {
    /// What people call all of the files together.
    pub shown: &'a str,
    /// What may be asked for.
    pub rules: &'a Rules,
    /// What lies beside them.
    pub local: &'a dyn Local,
    /// The pool in the config's name.
    pub pool: &'a str,
    /// In which order they are merged.
    pub order: Order,
    /// The roles of the machine; none where no one has said which it has.
    pub roles: &'a [String],
}

impl std::fmt::Debug for Gathering<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gathering")
            .field("shown", &self.shown)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

/// A config that is not accepted.
#[derive(Debug)]
pub struct Refused {
    /// Everything that is wrong with it.
    pub refusals: Vec<Refusal>,
    /// What could be read of it: the machine may be asked what it would refuse of that, so that a
    /// person hears it in the same round. Never to be carried out.
    pub rest: Option<Box<MachineConfig>>,
}

impl From<Vec<Refusal>> for Refused {
    fn from(refusals: Vec<Refusal>) -> Self {
        Self {
            refusals,
            rest: None,
        }
    }
}

impl Gathering<'_> {
    /// The config of `files`, given by name as the user knows it and in the order in which they are to
    /// be merged, and warnings. `missing` says which files could not be read at all.
    ///
    /// One mistake anywhere refuses everything. All of them are told together: what is wrong with a
    /// text, and what the texts contradict one another in, so far as they can be read.
    pub fn config(
        &self,
        files: Vec<(String, Vec<u8>)>,
        missing: Vec<Refusal>,
    ) -> Result<(MachineConfig, Vec<String>), Refused> {
        let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
        let mut read = Read::files(files, self.rules, self.local);
        if !missing.is_empty() {
            read.unread.know_nothing_of_one();
        }
        read.refusals.extend(missing);
        let left_out = match roles::select(&mut read.documents, self.roles) {
            Ok(left_out) => left_out,
            Err(mixed) => {
                // Merged with one another they would contradict each other in what is no mistake.
                read.refusals.push(mixed);
                return Err(read.refusals.into());
            }
        };
        if read.documents.is_empty() {
            if read.refusals.is_empty() {
                let message = match &left_out {
                    Some(left_out) => format!("there is no config for this machine: {left_out}"),
                    None => {
                        "there is no config here; nothing is taken away because of it".to_owned()
                    }
                };
                let refusal = Refusal::new(Reason::SourceEmpty, message);
                read.refusals.push(refusal.file(self.shown));
            }
            return Err(read.refusals.into());
        }
        let (mut config, warnings, contradictions) =
            merge::together(read.documents, self.pool, self.order, &read.unread);
        read.refusals.extend(contradictions);
        config.notes.0.extend(left_out);
        if read.refusals.is_empty() {
            read.warnings.extend(warnings);
            return Ok((config, read.warnings));
        }
        let file_of = |refusal: &Refusal| {
            let file = refusal.file.as_ref()?;
            names.iter().position(|name| name == file)
        };
        read.refusals.sort_by_cached_key(|refusal| {
            let last = |number: Option<u32>| number.unwrap_or(u32::MAX);
            let file = file_of(refusal).unwrap_or(usize::MAX);
            (file, last(refusal.line), last(refusal.column))
        });
        Err(Refused {
            refusals: read.refusals,
            rest: Some(Box::new(config)),
        })
    }
}

/// What was read of many files.
#[derive(Default)]
struct Read {
    documents: Vec<Document>,
    warnings: Vec<String>,
    refusals: Vec<Refusal>,
    unread: Unread,
}

impl Read {
    fn files(files: Vec<(String, Vec<u8>)>, rules: &Rules, local: &dyn Local) -> Self {
        let mut read = Self::default();
        for (name, bytes) in files {
            if !is_config_name(&name) {
                let endings = ENDINGS.join(", ");
                let warning = format!("{name} is left out: its name does not end in {endings}");
                read.warnings.push(warning);
                continue;
            }
            let text = match text_of(bytes) {
                Ok(text) => text,
                Err(refusal) => {
                    read.refusals.push(refusal.file(name));
                    read.unread.know_nothing_of_one();
                    continue;
                }
            };
            let (documents, refusals) = document::parse_with(&text, &name, rules, local);
            if !refusals.is_empty() {
                read.unread.add(text);
            }
            read.documents.extend(documents);
            read.refusals.extend(refusals);
        }
        read
    }
}

/// Reads the documents of many files, without merging them. The second part of the answer warns of
/// files that are left out.
pub fn documents_from_files(
    files: Vec<(String, Vec<u8>)>,
    rules: &Rules,
    local: &dyn Local,
) -> Result<(Vec<Document>, Vec<String>), Vec<Refusal>> {
    let read = Read::files(files, rules, local);
    if read.refusals.is_empty() {
        Ok((read.documents, read.warnings))
    } else {
        Err(read.refusals)
    }
}

/// The text of a file, which may be packed: OpenShift keeps configs like that in some places.
fn text_of(bytes: Vec<u8>) -> Result<String, Refusal> {
    // The first bytes of every gzip file (RFC 1952), and of no text in UTF-8.
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        source::gunzip(&bytes, tree::LONGEST_TEXT).map_err(|_| {
            let message = "the file begins as gzip does, but cannot be unpacked";
            let most = format!("at most {} bytes in it", tree::LONGEST_TEXT);
            Refusal::new(Reason::SyntaxInvalid, message).expected(most)
        })?
    } else {
        bytes
    };
    String::from_utf8(bytes).map_err(|error| not_utf8(&error))
}

fn not_utf8(error: &std::string::FromUtf8Error) -> Refusal {
    let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
    let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
    let mut refusal = Refusal::new(Reason::SyntaxInvalid, "this is no UTF-8 text");
    let start = good
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let before = String::from_utf8_lossy(&good[start..]).chars().count();
    refusal.line = u32::try_from(line).ok();
    refusal.column = u32::try_from(before + 1).ok();
    refusal
}
