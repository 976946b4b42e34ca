//! Validates settings and policies of machinist that a config contains. A config is rejected before
//! it is written if the next agent could not start with it, because no agent would be left to roll
//! it back.

use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{Content, FILE_MODE, File, MachineConfig, Owner, Refusal};
use machinist_status::settings::{self, SettingOrigin, SettingsFile, SettingsInputs};

/// All reasons why the next agent would not start. `policies` is the file that the current settings
/// name.
pub(super) fn refusals(config: &MachineConfig, policies: &AbsPath) -> Vec<Refusal> {
    let settings: Vec<_> = config
        .files
        .iter()
        .filter(|(path, _)| is_settings(path))
        .collect();
    let mut refusals = Vec::new();
    let mut inputs = SettingsInputs::default();
    for (path, file) in &settings {
        refusals.extend(not_roots(path, file));
        inputs.files.extend(as_found(path, file));
    }
    let (settings, problems) = match settings::load(inputs) {
        Ok(settings) => (Some(settings), Vec::new()),
        Err(error) => (None, error.problems),
    };
    for problem in problems {
        let at = match &problem.at {
            SettingOrigin::File { name, .. } => AbsPath::new(name.as_str()).ok(),
            _ => None,
        };
        let file = at.and_then(|path| config.files.get(&path));
        refusals.push(refusal(problem.reason, problem.to_string(), file));
    }
    let chosen = settings.filter(|settings| settings.update.policies_chosen);
    let path = chosen.map_or_else(|| policies.clone(), |settings| settings.update.policies);
    if let Some(file) = config.files.get(&path) {
        refusals.extend(not_roots(&path, file));
        let text = file.content.as_ref().and_then(Content::bytes);
        let text = text.unwrap_or_default();
        let wrong = super::disruption_policies::parse(text)
            .err()
            .unwrap_or_default();
        refusals.extend(wrong.into_iter().map(|wrong| {
            let field = wrong.field.map(|field| format!("{field}: "));
            let field = field.unwrap_or_default();
            let expected = wrong.expected.map(|what| format!("; expected {what}"));
            let expected = expected.unwrap_or_default();
            let place = wrong.line.zip(wrong.column);
            let place = place.map(|(line, column)| format!(":{line}:{column}"));
            let place = place.unwrap_or_default();
            let message = format!("{path}{place}: {field}{}{expected}", wrong.message);
            refusal(wrong.reason, message, Some(file))
        }));
    }
    refusals
}

fn refusal(reason: Reason, message: String, file: Option<&File>) -> Refusal {
    let message = format!("{message} – the agent would fail to start with it");
    let refusal = Refusal::new(reason, message);
    match file {
        Some(file) => refusal.at(&file.origin),
        None => refusal,
    }
}

/// Whether this is `machinist.yaml` or one of its drop-ins, as [`SettingsFile::find`] looks them
/// up.
fn is_settings(path: &AbsPath) -> bool {
    let below = path.as_str().strip_prefix(SettingsFile::DEFAULT_DIR);
    match below.and_then(|below| below.strip_prefix("/machinist.yaml")) {
        Some("") => true,
        Some(rest) => rest.strip_prefix(".d/").is_some_and(|name| {
            !name.contains('/') && name.ends_with(".yaml") && !name.starts_with('.')
        }),
        None => false,
    }
}

fn as_found(path: &AbsPath, file: &File) -> Option<SettingsFile> {
    Some(SettingsFile {
        name: path.to_string(),
        content: file.content.as_ref()?.bytes()?.to_vec(),
        owner: 0,
        mode: file.mode.unwrap_or(FILE_MODE) & !0o002,
    })
}

/// Rejects a file that is writable by users other than root.
fn not_roots(path: &AbsPath, file: &File) -> Option<Refusal> {
    let others = file.user.as_ref().filter(|user| match user {
        Owner::Id(id) => *id != 0,
        Owner::Name(name) => name != "root",
    });
    let message = match (others, file.mode.unwrap_or(FILE_MODE) & 0o002) {
        (None, 0) => return None,
        (Some(user), _) => format!("{path} would belong to {user}"),
        (None, _) => format!("{path} would be world-writable"),
    };
    Some(refusal(Reason::SourceUnreadable, message, Some(file)))
}
