//! Parses a user's policies in the format of OpenShift's `MachineConfiguration`.

use serde_json::Value;

use super::{DisruptionPolicy, Policies, RequiredAction, builtin::UPDATE_CA_TRUST};
use crate::{ActionKind, enablement::unit_name};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::Refusal;

/// The maximum number of entries in OpenShift's schema.
const MAX_ENTRIES: usize = 50;
/// The maximum number of actions per entry in OpenShift's schema.
const MAX_ACTIONS: usize = 10;

impl Policies {
    /// Returns the built-in policies overridden by those of `object`, a whole
    /// `MachineConfiguration`, for the same path or unit.
    ///
    /// # Errors
    /// Every violation of the schema in `spec.nodeDisruptionPolicy`.
    pub fn from_machine_configuration(object: &Value) -> Result<Self, Vec<Refusal>> {
        let mut reader = PolicyParser {
            policies: Self::default(),
            refusals: Vec::new(),
        };
        let spec = &object["spec"]["nodeDisruptionPolicy"];
        let at = "spec.nodeDisruptionPolicy";
        reader.known(spec, at, &["files", "units", "sshkey"]);
        for (field, entry) in reader.list(&spec["files"], &format!("{at}.files"), MAX_ENTRIES) {
            reader.file(&field, entry);
        }
        for (field, entry) in reader.list(&spec["units"], &format!("{at}.units"), MAX_ENTRIES) {
            reader.unit(&field, entry);
        }
        if !spec["sshkey"].is_null() {
            let demands = reader.actions(&format!("{at}.sshkey"), &spec["sshkey"]);
            reader.policies.ssh_key = user("sshkey", demands);
        }
        if reader.refusals.is_empty() {
            Ok(reader.policies)
        } else {
            Err(reader.refusals)
        }
    }
}

fn user(name: &str, demands: Vec<RequiredAction>) -> DisruptionPolicy {
    DisruptionPolicy {
        name: format!("user:{name}"),
        demands,
        on_removal: None,
        except: None,
    }
}

struct PolicyParser {
    policies: Policies,
    refusals: Vec<Refusal>,
}

impl PolicyParser {
    fn refuse(&mut self, reason: Reason, field: &str, message: String, expected: &str) {
        let mut refusal = Refusal::new(reason, message).expected(expected);
        refusal.field = Some(field.to_owned());
        self.refusals.push(refusal);
    }

    /// Refuses unknown fields, because ignoring a misspelt `files` would cause an unnecessary
    /// reboot.
    fn known(&mut self, value: &Value, field: &str, names: &[&str]) {
        let Some(fields) = value.as_object() else {
            let message = "no policies found".to_owned();
            return self.refuse(Reason::ValueInvalid, field, message, &names.join(", "));
        };
        for name in fields.keys().filter(|name| !names.contains(&name.as_str())) {
            let field = format!("{field}.{name}");
            let expected = names.join(", ");
            self.refuse(
                Reason::FieldUnknown,
                &field,
                "unknown field".into(),
                &expected,
            );
        }
    }

    /// The items of a list, each with its field path.
    fn list<'a>(&mut self, value: &'a Value, field: &str, most: usize) -> Vec<(String, &'a Value)> {
        match value {
            Value::Null => Vec::new(),
            Value::Array(all) if all.len() <= most => all
                .iter()
                .enumerate()
                .map(|(index, entry)| (format!("{field}[{index}]"), entry))
                .collect(),
            other => {
                let message = match other.as_array() {
                    Some(all) => format!("{} entries", all.len()),
                    None => "not a list".to_owned(),
                };
                let expected = format!("a list of at most {most}");
                self.refuse(Reason::ValueInvalid, field, message, &expected);
                Vec::new()
            }
        }
    }

    fn file(&mut self, field: &str, entry: &Value) {
        self.known(entry, field, &["path", "actions"]);
        let given = entry["path"].as_str().unwrap_or_default();
        let demands = self.actions(field, entry);
        match AbsPath::new(given) {
            Ok(path) => {
                self.policies.files.insert(path, user(given, demands));
            }
            Err(bad) => self.refuse(
                Reason::PathInvalid,
                &format!("{field}.path"),
                bad.to_string(),
                "an absolute path",
            ),
        }
    }

    fn unit(&mut self, field: &str, entry: &Value) {
        self.known(entry, field, &["name", "actions"]);
        let given = entry["name"].as_str().unwrap_or_default();
        let demands = self.actions(field, entry);
        if unit_name::shape(given).is_some() {
            self.policies
                .units
                .insert(given.to_owned(), user(given, demands));
        } else {
            let message = format!("{given:?} is not a valid unit name");
            self.refuse(
                Reason::UnitNameInvalid,
                &format!("{field}.name"),
                message,
                "a name such as chronyd.service",
            );
        }
    }

    fn actions(&mut self, field: &str, entry: &Value) -> Vec<RequiredAction> {
        let field = format!("{field}.actions");
        let entries = self.list(&entry["actions"], &field, MAX_ACTIONS);
        if entries.is_empty() {
            self.refuse(
                Reason::ValueInvalid,
                &field,
                "no action given".into(),
                "at least one action, such as type: None",
            );
        }
        let alone = |entry: &Value| matches!(entry["type"].as_str(), Some("Reboot" | "None"));
        if entries.len() > 1 && entries.iter().any(|(_, entry)| alone(entry)) {
            self.refuse(
                Reason::ValueInvalid,
                &field,
                "Reboot and None cannot be combined with other actions".into(),
                "one action, or neither of the two",
            );
        }
        entries
            .into_iter()
            .filter_map(|(field, entry)| self.action(&field, entry))
            .collect()
    }

    fn action(&mut self, field: &str, entry: &Value) -> Option<RequiredAction> {
        let machine = |kind| Some(RequiredAction::Machine(kind));
        match entry["type"].as_str().unwrap_or_default() {
            "None" => None,
            "Reboot" => machine(ActionKind::Reboot),
            "Drain" => machine(ActionKind::Drain),
            "DaemonReload" => machine(ActionKind::DaemonReload),
            "Reload" => self.service(field, ActionKind::Reload, "reload", entry),
            "Restart" => self.service(field, ActionKind::Restart, "restart", entry),
            other => {
                let message = format!("{other:?} is not a known action");
                let expected = "Reboot, Drain, Reload, Restart, DaemonReload or None";
                self.refuse(
                    Reason::ValueInvalid,
                    &format!("{field}.type"),
                    message,
                    expected,
                );
                None
            }
        }
    }

    fn service(
        &mut self,
        field: &str,
        kind: ActionKind,
        key: &str,
        entry: &Value,
    ) -> Option<RequiredAction> {
        let given = entry[key]["serviceName"].as_str().unwrap_or_default();
        if unit_name::shape(given).is_none() {
            let message = format!("{given:?} is not a valid unit name");
            let field = format!("{field}.{key}.serviceName");
            self.refuse(
                Reason::UnitNameInvalid,
                &field,
                message,
                "a name such as chronyd.service",
            );
            return None;
        }
        Some(RequiredAction::Unit {
            kind,
            names: vec![given.to_owned()],
            // As in the built-in policies: an entry that repeats one of them must not have another effect.
            once: given == UPDATE_CA_TRUST,
            flexible: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_user_policy_overrides_the_built_in_one_of_the_same_path() {
        let object = json!({"spec": {"nodeDisruptionPolicy": {
            "files": [{"path": "/etc/chrony.conf", "actions": [{"type": "None"}]}],
            "units": [{"name": "a.service", "actions": [
                {"type": "DaemonReload"}, {"type": "Reload", "reload": {"serviceName": "b.service"}}]}],
        }}});
        let policies = Policies::from_machine_configuration(&object).unwrap();
        let chrony = policies
            .for_path(&"/etc/chrony.conf".parse().unwrap())
            .unwrap();
        assert_eq!(
            (chrony.name.as_str(), chrony.demands.len()),
            ("user:/etc/chrony.conf", 0)
        );
        assert_eq!(policies.for_unit("a.service").unwrap().demands.len(), 2);
        assert!(policies.unit_names().contains("b.service"));
    }

    #[test]
    fn all_policy_errors_are_reported_with_their_fields() {
        let object = json!({"spec": {"nodeDisruptionPolicy": {
            "files": [{"path": "etc/x", "actions": [{"type": "Special"}]}],
            "units": [{"name": "x", "actions": [{"type": "Reboot"}, {"type": "Drain"}]}],
            "sshkey": {"actions": []},
        }}});
        let refusals = Policies::from_machine_configuration(&object).unwrap_err();
        let fields: Vec<_> = refusals
            .iter()
            .filter_map(|one| one.field.as_deref())
            .collect();
        assert_eq!(
            fields,
            [
                "spec.nodeDisruptionPolicy.files[0].actions[0].type",
                "spec.nodeDisruptionPolicy.files[0].path",
                "spec.nodeDisruptionPolicy.units[0].actions",
                "spec.nodeDisruptionPolicy.units[0].name",
                "spec.nodeDisruptionPolicy.sshkey.actions",
            ]
        );
    }
}
