//! Many files, each with its documents.

use super::{Document, Refusal, Rules, parse};
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
/// they are to be merged. The second part of the answer warns of files that are left out.
pub fn documents_from_files(
    files: Vec<(String, Vec<u8>)>,
    rules: &Rules,
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
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                refusals.push(not_utf8(name, &error));
                continue;
            }
        };
        match parse(&text, &name, rules) {
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

fn not_utf8(name: String, error: &std::string::FromUtf8Error) -> Refusal {
    let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
    let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
    let mut refusal = Refusal::new(Reason::SyntaxInvalid, "this is no UTF-8 text");
    refusal.file = Some(name);
    refusal.line = u32::try_from(line).ok();
    refusal
}
