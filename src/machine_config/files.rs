//! Many files, each with its documents.

use super::{Document, Local, Refusal, Rules, document, source, tree};
use crate::reason::Reason;

/// Endings of the files that hold machine config.
const ENDINGS: [&str; 5] = [".yaml", ".yml", ".json", ".ign", ".bu"];

/// Whether a file of that name is read as machine config; hidden files (editors' temporary ones
/// among them) are not.
pub fn is_config_name(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    let with_ending = |ending: &str| name.len() > ending.len() && name.ends_with(ending);
    !name.starts_with('.') && ENDINGS.iter().any(|ending| with_ending(ending))
}

/// Reads the documents of many files, given by name as the user knows it and in the order in which
/// they are to be merged, with what lies beside them. The second part of the answer warns of files that are left out.
pub fn documents_from_files(
    files: Vec<(String, Vec<u8>)>,
    rules: &Rules,
    local: &dyn Local,
) -> Result<(Vec<Document>, Vec<String>), Vec<Refusal>> {
    let mut documents = Vec::new();
    let mut warnings = Vec::new();
    let mut refusals = Vec::new();
    for (name, bytes) in files {
        if !is_config_name(&name) {
            warnings.push(format!(
                "{name} is left out: its name does not end in {}",
                ENDINGS.join(", ")
            ));
            continue;
        }
        let text = match text_of(bytes) {
            Ok(text) => text,
            Err(refusal) => {
                refusals.push(refusal.file(name));
                continue;
            }
        };
        match document::parse_with(&text, &name, rules, local) {
            Ok(found) => documents.extend(found),
            Err(found) => refusals.extend(found),
        }
    }
    if refusals.is_empty() {
        Ok((documents, warnings))
    } else {
        Err(refusals)
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
