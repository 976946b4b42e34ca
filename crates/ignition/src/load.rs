//! Reads the documents of many files and merges them into one config.

use super::{
    ConfigDocument, ConfigRules, LocalFileSource, MachineConfig, MergeOrder, Refusal,
    content_source, merge, parser, rejected_texts::RejectedTexts, role_selection, yaml_tree,
};
use machinist_base::reason::Reason;

/// The extensions of machine-config files.
pub const CONFIG_EXTENSIONS: [&str; 5] = [".yaml", ".yml", ".json", ".ign", ".bu"];

/// Whether a file of that name is read as machine config; hidden files (for example editors'
/// temporary files) are not.
pub fn is_config_name(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    let with_ending = |ending: &str| name.len() > ending.len() && name.ends_with(ending);
    !name.starts_with('.') && CONFIG_EXTENSIONS.iter().any(|ending| with_ending(ending))
}

/// How the files of one machine are combined into its config.
#[derive(Clone, Copy)]
pub struct ConfigLoader<'a> {
    /// The name of the collection of files in messages.
    pub shown: &'a str,
    /// The restrictions on the config.
    pub rules: &'a ConfigRules,
    /// Access to the files beside them.
    pub local: &'a dyn LocalFileSource,
    /// The pool in the config's name.
    pub pool: &'a str,
    /// The merge order.
    pub order: MergeOrder,
    /// The roles of the machine; empty if they are not configured.
    pub roles: &'a [String],
}

impl std::fmt::Debug for ConfigLoader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gathering")
            .field("shown", &self.shown)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

/// A config that was refused.
#[derive(Debug)]
pub struct RejectedConfig {
    /// All errors.
    pub refusals: Vec<Refusal>,
    /// The readable part of the config: it can be checked against the machine, so that the user
    /// gets those refusals in the same run. Never apply it.
    pub rest: Option<Box<MachineConfig>>,
}

impl From<Vec<Refusal>> for RejectedConfig {
    fn from(refusals: Vec<Refusal>) -> Self {
        Self {
            refusals,
            rest: None,
        }
    }
}

impl ConfigLoader<'_> {
    /// Merges `files` into a config and returns it with warnings. The files have the names that the
    /// user knows and are in merge order; `missing` lists files that could not be read.
    ///
    /// One error anywhere refuses everything. All errors are returned together: those within a
    /// text, and conflicts between the texts as far as they can be parsed.
    pub fn config(
        &self,
        files: Vec<(String, Vec<u8>)>,
        missing: Vec<Refusal>,
    ) -> Result<(MachineConfig, Vec<String>), RejectedConfig> {
        let names: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
        let mut read = DocumentSet::files(files, self.rules, self.local);
        if !missing.is_empty() {
            read.unread.record_unreadable();
        }
        read.refusals.extend(missing);
        let left_out = match role_selection::select(&mut read.documents, self.roles) {
            Ok(left_out) => left_out,
            Err(mixed) => {
                // Merging documents of several roles would report conflicts that are not errors.
                read.refusals.push(mixed);
                return Err(read.refusals.into());
            }
        };
        if read.documents.is_empty() {
            if read.refusals.is_empty() {
                let message = match &left_out {
                    Some(left_out) => format!("no config for this machine: {left_out}"),
                    None => "no config found; nothing is removed from the machine".to_owned(),
                };
                let refusal = Refusal::new(Reason::SourceEmpty, message);
                read.refusals.push(refusal.file(self.shown));
            }
            return Err(read.refusals.into());
        }
        let (mut config, warnings, contradictions) =
            merge::merge_partial(read.documents, self.pool, self.order, &read.unread);
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
        Err(RejectedConfig {
            refusals: read.refusals,
            rest: Some(Box::new(config)),
        })
    }
}

/// The result of reading many files.
#[derive(Default)]
struct DocumentSet {
    documents: Vec<ConfigDocument>,
    warnings: Vec<String>,
    refusals: Vec<Refusal>,
    unread: RejectedTexts,
}

impl DocumentSet {
    fn files(
        files: Vec<(String, Vec<u8>)>,
        rules: &ConfigRules,
        local: &dyn LocalFileSource,
    ) -> Self {
        let mut read = Self::default();
        for (name, bytes) in files {
            if !is_config_name(&name) {
                let endings = CONFIG_EXTENSIONS.join(", ");
                let warning = format!("{name} is ignored: its name does not end in {endings}");
                read.warnings.push(warning);
                continue;
            }
            let text = match text_of(bytes) {
                Ok(text) => text,
                Err(refusal) => {
                    read.refusals.push(refusal.file(name));
                    read.unread.record_unreadable();
                    continue;
                }
            };
            let (documents, refusals) = parser::parse_with(&text, &name, rules, local);
            if !refusals.is_empty() {
                read.unread.add(text);
            }
            read.documents.extend(documents);
            read.refusals.extend(refusals);
        }
        read
    }
}

/// Parses the documents of many files without merging them. The second part of the result are
/// warnings about skipped files.
pub fn documents_from_files(
    files: Vec<(String, Vec<u8>)>,
    rules: &ConfigRules,
    local: &dyn LocalFileSource,
) -> Result<(Vec<ConfigDocument>, Vec<String>), Vec<Refusal>> {
    let read = DocumentSet::files(files, rules, local);
    if read.refusals.is_empty() {
        Ok((read.documents, read.warnings))
    } else {
        Err(read.refusals)
    }
}

/// The text of a file, which may be compressed: OpenShift stores compressed configs in some places.
fn text_of(bytes: Vec<u8>) -> Result<String, Refusal> {
    // The first bytes of every gzip file (RFC 1952); UTF-8 text never starts with them.
    let bytes = if bytes.starts_with(&[0x1f, 0x8b]) {
        content_source::gunzip(&bytes, yaml_tree::MAX_TEXT_BYTES).map_err(|_| {
            let message = "the file has a gzip header, but cannot be decompressed";
            let most = format!(
                "at most {} bytes when decompressed",
                yaml_tree::MAX_TEXT_BYTES
            );
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
    let message = match error.as_bytes() {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "the file is UTF-16, not UTF-8",
        _ => "the file is not valid UTF-8",
    };
    let mut refusal = Refusal::new(Reason::SyntaxInvalid, message);
    let start = good
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let before = String::from_utf8_lossy(&good[start..]).chars().count();
    refusal.line = u32::try_from(line).ok();
    refusal.column = u32::try_from(before + 1).ok();
    refusal
}
