//! Reads the manifests of MachineConfigs that a preview applies.

use std::path::PathBuf;

use crate::cli::config_context::config_text;
use machinist_base::reason::Reason;
use machinist_ignition::{ConfigDocument, ConfigRules, Refusal, parse};

/// The manifests in these files, or all refusals.
pub(super) fn manifests(
    files: &[PathBuf],
    rules: &ConfigRules,
) -> anyhow::Result<Result<Vec<ConfigDocument>, Vec<Refusal>>> {
    let (mut found, mut refusals) = (Vec::new(), Vec::new());
    for file in files {
        let shown = file.display().to_string();
        let text = match config_text(file)? {
            Ok(text) => text,
            Err(refusal) => {
                refusals.push(refusal);
                continue;
            }
        };
        match parse(&text, &shown, rules) {
            Ok(documents) => {
                let nameless = documents.iter().find(|it| !it.is_named());
                refusals.extend(nameless.map(|_| no_manifest(&shown)));
                found.extend(documents);
            }
            Err(all) => refusals.extend(all),
        }
    }
    Ok(match refusals.is_empty() {
        true => Ok(found),
        false => Err(refusals),
    })
}

fn no_manifest(file: &str) -> Refusal {
    let message = "a document without a name cannot be applied to a cluster";
    let refusal = Refusal::new(Reason::FeatureUnsupported, message).file(file);
    refusal.expected("a MachineConfig with metadata.name")
}
