//! Loads the user's disruption policies: a `MachineConfiguration` object in a file.

use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::Refusal;
use machinist_plan::Policies;
use machinist_rootfs::{Root, RootError};
use machinist_status::settings::{Settings, SoftReboot};
use machinist_yaml::{CoreSchema, Location, YamlError};

/// Maximum size in bytes. A hand-written file has a few KiB; more is a mistake.
const MAX_POLICIES_BYTES: u64 = 1 << 20;

/// The policies are invalid. The built-in ones must not be used instead, because units that should
/// be left alone would be restarted.
#[derive(Debug, thiserror::Error)]
pub enum PoliciesError {
    /// The file cannot be read.
    #[error("cannot read the disruption policies (update.policies)")]
    Read(#[source] RootError),
    /// The file's content is invalid.
    #[error("invalid disruption policies: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Refused(Vec<Refusal>),
}

/// The effective policies: the built-in ones, overridden by those of the file that the settings
/// name. The file may be missing only if the settings do not name one. Blocks.
pub fn policies(root: &Root, settings: &Settings, own_uid: u32) -> Result<Policies, PoliciesError> {
    let update = &settings.update;
    let soft = update.soft_reboot == SoftReboot::Auto;
    if root.accepts_only_root() {
        root.check_trusted(&update.policies)
            .map_err(PoliciesError::Read)?;
    }
    let (text, stat) = match root.read_with_stat(&update.policies, MAX_POLICIES_BYTES) {
        Err(error) if error.is_not_found() && !update.policies_chosen => {
            return Ok(Policies::default().with_soft_reboots(soft));
        }
        read => read.map_err(PoliciesError::Read)?,
    };
    if (stat.uid != 0 && stat.uid != own_uid) || stat.mode & 0o002 != 0 {
        let message = "the file is not owned by root, or it is writable by other users";
        let refusal = Refusal::new(Reason::SourceUnreadable, message);
        return Err(refused(root, &update.policies, vec![refusal]));
    }
    let policies = parse(&text).map_err(|refusals| refused(root, &update.policies, refusals))?;
    Ok(policies.with_soft_reboots(soft))
}

pub(super) fn parse(text: &[u8]) -> Result<Policies, Vec<Refusal>> {
    let wrong = |reason, message: String| vec![Refusal::new(reason, message)];
    let text = str::from_utf8(text)
        .map_err(|error| wrong(Reason::SyntaxInvalid, format!("not UTF-8 text: {error}")))?;
    let document = machinist_yaml::read_only(text, CoreSchema).map_err(unreadable)?;
    let object: serde_json::Value = machinist_yaml::decode(&document).map_err(unreadable)?;
    if object["kind"] != "MachineConfiguration" {
        let message = "not a MachineConfiguration (operator.openshift.io/v1)";
        let fields = document.fields().map_err(unreadable)?;
        let kind = fields.iter().find(|(key, _)| key.scalar.as_ref() == "kind");
        let place = kind.map_or(document.place, |(_, value)| value.place);
        let refusal = Refusal::new(Reason::ValueInvalid, message);
        return Err(vec![at(refusal, place)]);
    }
    // The file may come from a cluster object that was created for other settings.
    if object["spec"].is_object() && object["spec"]["nodeDisruptionPolicy"].is_null() {
        return Ok(Policies::default());
    }
    Policies::from_machine_configuration(&object)
}

fn unreadable(error: YamlError) -> Vec<Refusal> {
    let refusal = Refusal::new(Reason::SyntaxInvalid, error.to_string());
    vec![at(refusal, error.place)]
}

fn at(refusal: Refusal, place: Location) -> Refusal {
    Refusal {
        line: Some(place.line),
        column: Some(place.column),
        ..refusal
    }
}

fn refused(root: &Root, file: &AbsPath, mut refusals: Vec<Refusal>) -> PoliciesError {
    for refusal in &mut refusals {
        refusal.file = Some(root.host_path(file).display().to_string());
    }
    PoliciesError::Refused(refusals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_policies_are_refused_with_line_and_column() {
        for (text, expected) in [
            (
                "kind: a\nkind: b\n",
                "2:1: the key \"kind\" is defined twice",
            ),
            ("kind: [\n", "1:7: "),
            (
                "kind: a\nspec: {x: .inf}\n",
                "2:11: spec.x: \".inf\" is not a finite number",
            ),
            ("kind: a\n---\n", "2:1: a second YAML document starts here"),
        ] {
            let refused = parse(text.as_bytes()).unwrap_err();
            let [one] = refused.as_slice() else {
                panic!("{refused:?}");
            };
            let (line, column) = one.line.zip(one.column).unwrap();
            let message = format!("{line}:{column}: {}", one.message);
            assert!(message.starts_with(expected), "{text:?}: {message}");
        }
        for (text, place) in [("a: 1\nkind: a\n", (2, 7)), ("a: 1\n", (1, 1))] {
            let other = parse(text.as_bytes()).unwrap_err();
            assert_eq!(other[0].reason, Reason::ValueInvalid);
            assert_eq!(other[0].line.zip(other[0].column), Some(place));
        }
    }

    #[test]
    fn refused_policies_are_named_with_the_root() {
        let dir = std::env::temp_dir();
        let root = Root::open(&dir).unwrap();
        let refusals = parse(b"kind: a\n").unwrap_err();
        let error = refused(&root, &"/etc/p.yaml".parse().unwrap(), refusals);
        let shown = format!("{}:1:7: ", dir.join("etc/p.yaml").display());
        assert!(error.to_string().contains(&shown), "{error}");
    }
}
