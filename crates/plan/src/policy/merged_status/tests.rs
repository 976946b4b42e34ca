use std::{collections::BTreeMap, env};

use super::{
    super::{DisruptionPolicy, RequiredAction},
    *,
};
use machinist_base::abs_path::AbsPath;

/// What OpenShift's operator writes without a user's policy, in its order (`oc get machineconfiguration cluster`).
#[test]
fn without_policies_of_a_user_the_merged_list_is_openshifts() {
    let merged = cluster_policies(&json!({"spec": {}})).unwrap();
    let files = merged["files"].as_array().unwrap();
    let paths: Vec<&str> = files.iter().filter_map(|it| it["path"].as_str()).collect();
    assert_eq!(
        paths[..5],
        [
            "/var/lib/kubelet/config.json",
            "/etc/machine-config-daemon/no-reboot/containers-gpg.pub",
            "/etc/containers/policy.json",
            "/etc/containers/registries.conf",
            "/etc/containers/registries.d",
        ]
    );
    assert_eq!(files.len(), 13);
    assert_eq!(files[0]["actions"], json!([{"type": "None"}]));
    assert_eq!(
        files[1]["actions"],
        json!([{"type": "Reload", "reload": {"serviceName": "crio.service"}}])
    );
    assert_eq!(files[3]["actions"], json!([{"type": "Special"}]));
    assert_eq!(
        merged["units"],
        json!([{"name": "iri-registry.service", "actions": [
            {"type": "DaemonReload"},
            {"type": "Restart", "restart": {"serviceName": "iri-registry.service"}}]}])
    );
    assert_eq!(merged["sshkey"], json!({"actions": [{"type": "None"}]}));
}

#[test]
fn an_entry_of_the_user_takes_the_place_of_the_built_in_one_or_is_added() {
    let merged = cluster_policies(&json!({"spec": {"nodeDisruptionPolicy": {
        "files": [
            {"path": "/etc/motd", "actions": [{"type": "None"}]},
            {"path": "/etc/containers/policy.json", "actions": [{"type": "Reboot"}]}],
        "units": [{"name": "iri-registry.service", "actions": [{"type": "Drain"}]}],
        "sshkey": {"actions": [{"type": "Reload", "reload": {"serviceName": "a.service"}}]},
    }}}))
    .unwrap();
    let reboot = json!({"path": "/etc/containers/policy.json", "actions": [{"type": "Reboot"}]});
    assert_eq!(merged["files"][2], reboot);
    assert_eq!(merged["files"][13]["path"], "/etc/motd");
    assert_eq!(merged["files"].as_array().unwrap().len(), 14);
    let drain = json!([{"name": "iri-registry.service", "actions": [{"type": "Drain"}]}]);
    assert_eq!(merged["units"], drain);
    assert_eq!(
        merged["sshkey"]["actions"][0]["reload"]["serviceName"],
        "a.service"
    );
}

#[test]
fn a_policy_above_the_limits_of_the_schema_is_refused() {
    let entry = |number: usize| {
        json!({"path": format!("/etc/{number}"),
            "actions": [{"type": "None"}]})
    };
    let files: Vec<Value> = (0..51).map(entry).collect();
    let object = json!({"spec": {"nodeDisruptionPolicy": {"files": files}}});
    let refused = cluster_policies(&object).unwrap_err();
    assert_eq!(
        refused[0].to_string(),
        "spec.nodeDisruptionPolicy.files: 51 entries; expected a list of at most 50 [ValueInvalid]"
    );
}

/// A generator (splitmix64), so that a seed gives the same case everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).unwrap()
    }

    fn pick<'t, T>(&mut self, from: &'t [T]) -> &'t T {
        &from[self.below(from.len())]
    }
}

/// Paths that only OpenShift's table and the user's entries concern.
const PATHS: &[&str] = &[
    "/etc/containers",
    "/etc/containers/policy.json",
    "/etc/containers/registries.conf",
    "/etc/containers/registries.d",
    "/etc/containers/registries.d/a.yaml",
    "/etc/kubernetes",
    "/etc/kubernetes/credential-providers/a",
    "/etc/kubernetes-a",
    "/etc/motd",
    "/etc/motd/a",
    "/usr/local/bin/load-registry-image.sh",
    "/usr/local",
];

/// Paths of the table for ordinary distributions, or whose rule may be in it.
const COMMON_PATHS: &[&str] = &[
    "/",
    "/etc",
    "/etc/chrony.conf",
    "/etc/chrony.d/a.conf",
    "/etc/sysctl.d",
    "/etc/systemd/network",
    "/etc/systemd/network/a.link",
    "/etc/pki/ca-trust/source/anchors",
    "/etc/pki/ca-trust/source/anchors/iri-root-ca.crt",
];

const UNITS: &[&str] = &[
    "coreos-update-ca-trust.service",
    "crio.service",
    "iri-registry.service",
    "a.timer",
];

fn any_actions(dice: &mut Dice) -> Value {
    let simple = |kind: &str| json!([{"type": kind}]);
    match dice.below(4) {
        0 => simple("None"),
        1 => simple("Reboot"),
        _ => (0..=dice.below(3))
            .map(|_| match dice.below(4) {
                0 => json!({"type": "Drain"}),
                1 => json!({"type": "DaemonReload"}),
                2 => json!({"type": "Reload", "reload": {"serviceName": dice.pick(UNITS)}}),
                _ => json!({"type": "Restart", "restart": {"serviceName": dice.pick(UNITS)}}),
            })
            .collect(),
    }
}

/// Entries of one list: with actions of their own, or a repetition of a built-in entry.
fn any_entries(dice: &mut Dice, key: &str, names: &[&str], built_in: &Value) -> Value {
    let mut all = BTreeMap::new();
    for _ in 0..dice.below(8) {
        let repeats = dice.below(4) == 0;
        let entry = match built_in.as_array().filter(|_| repeats) {
            Some(rows) => dice.pick(rows).clone(),
            None => json!({key: *dice.pick(names), "actions": any_actions(dice)}),
        };
        let is_special = entry["actions"][0]["type"] == "Special";
        if !is_special {
            all.insert(entry[key].to_string(), entry);
        }
    }
    let mut all: Vec<Value> = all.into_values().collect();
    if dice.below(2) == 0 {
        all.reverse();
    }
    Value::Array(all)
}

fn any_object(dice: &mut Dice) -> Value {
    let built_in = cluster_policies(&json!({})).unwrap();
    let paths = [PATHS, COMMON_PATHS].concat();
    let mut policy = json!({
        "files": any_entries(dice, "path", &paths, &built_in["files"]),
        "units": any_entries(dice, "name", UNITS, &built_in["units"]),
    });
    if dice.below(2) == 0 {
        policy["sshkey"] = json!({"actions": any_actions(dice)});
    }
    json!({"spec": {"nodeDisruptionPolicy": policy}})
}

/// The policies of an agent that reads the merged list: entries that repeat OpenShift's rows are built in, the others are
/// the user's.
fn read_back(merged: &Value) -> Policies {
    let built_in = cluster_policies(&json!({})).unwrap();
    let own = |list: &str| -> Value {
        let known = built_in[list].as_array().unwrap();
        let all = merged[list].as_array().unwrap().iter();
        all.filter(|entry| !known.contains(entry))
            .cloned()
            .collect()
    };
    let mut policy = json!({"files": own("files"), "units": own("units")});
    if merged["sshkey"] != built_in["sshkey"] {
        policy["sshkey"] = merged["sshkey"].clone();
    }
    let object = json!({"spec": {"nodeDisruptionPolicy": policy}});
    Policies::from_machine_configuration(&object).unwrap()
}

/// The rules without their names: an entry that repeats a built-in one is named as the user's in a plan, or as built in.
fn rules(policies: &Policies) -> impl PartialEq + std::fmt::Debug {
    let nameless = |policy: &DisruptionPolicy| DisruptionPolicy {
        name: String::new(),
        ..policy.clone()
    };
    let files = policies.files.iter();
    let units = policies.units.iter();
    let files: BTreeMap<_, _> = files.map(|(at, it)| (at.clone(), nameless(it))).collect();
    let units: BTreeMap<_, _> = units.map(|(at, it)| (at.clone(), nameless(it))).collect();
    (files, units, nameless(&policies.ssh_key))
}

/// The actions of an entry, as the format has them.
fn shown(demands: &[RequiredAction]) -> Value {
    let action = |demand: &RequiredAction| match demand {
        RequiredAction::Unit { kind, names, .. } => match kind {
            ActionKind::Reload => json!({"type": "Reload", "reload": {"serviceName": names[0]}}),
            ActionKind::Restart => json!({"type": "Restart", "restart": {"serviceName": names[0]}}),
            other => json!({"type": format!("{other:?}")}),
        },
        RequiredAction::Machine(kind) => json!({"type": format!("{kind:?}")}),
    };
    match demands {
        [] => json!([{"type": "None"}]),
        demands => demands.iter().map(action).collect(),
    }
}

/// The actions for a path by the rule of OpenShift's daemon: the entry of the path, else of its longest parent.
fn by_openshifts_rule(merged: &Value, path: &str) -> Option<Value> {
    let covers = |entry: &&Value| {
        let at = entry["path"].as_str().unwrap();
        let below = path.strip_prefix(at.trim_end_matches('/'));
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let found = merged["files"].as_array().unwrap().iter().filter(covers);
    let longest = found.max_by_key(|entry| entry["path"].as_str().unwrap().len());
    longest.map(|entry| entry["actions"].clone())
}

/// `PLAN_ROUNDS` and `PLAN_SEED` set the number of policies and the seed.
#[test]
fn an_agent_decides_the_same_from_the_merged_list_as_from_its_tables_and_the_spec() {
    let given =
        |name: &str, default: u64| env::var(name).map_or(default, |text| text.parse().unwrap());
    let (seed, rounds) = (given("PLAN_SEED", 1), given("PLAN_ROUNDS", 300));
    for round in 0..rounds {
        let mut dice = Dice(seed.wrapping_mul(15_485_863).wrapping_add(round));
        let object = any_object(&mut dice);
        let context = format!("PLAN_SEED={seed}, round {round}: {object:#}");
        let merged = cluster_policies(&object).unwrap();
        let from_spec = Policies::from_machine_configuration(&object).unwrap();
        assert!(rules(&read_back(&merged)) == rules(&from_spec), "{context}");
        for path in PATHS {
            let at = AbsPath::new(*path).unwrap();
            let decided = from_spec.for_path(&at).map(|rule| shown(&rule.demands));
            assert_eq!(
                decided,
                by_openshifts_rule(&merged, path),
                "{path}: {context}"
            );
        }
        for list in ["files", "units"] {
            assert!(merged[list].as_array().unwrap().len() <= 100, "{context}");
        }
    }
}
