//! Equal machines have equal digests, in whatever form and order they were written.

use std::{collections::BTreeMap, io::Write as _};

use machinist_ignition::{
    ConfigDocument, ConfigRules, MachineConfig, MergeOrder, NoLocalFiles, digest,
    documents_from_files, from_canonical_json, from_portable_json, merge, parse, to_canonical_json,
    to_machine_config_yaml, to_portable_json,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// One MachineConfig in which every field is set.
#[derive(Clone, Debug)]
struct Model {
    role: &'static str,
    files: BTreeMap<String, ModelFile>,
    units: BTreeMap<String, ModelUnit>,
    keys: Vec<String>,
    kernel_arguments: Vec<String>,
    extensions: Vec<String>,
}

#[derive(Clone, Debug)]
struct ModelFile {
    bytes: Vec<u8>,
    mode: u32,
    owner: (Value, Value),
}

#[derive(Clone, Debug)]
struct ModelUnit {
    contents: String,
    drop_ins: BTreeMap<String, String>,
    enabled: bool,
    mask: bool,
}

fn owner() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"id": 0})),
        (1_u32..2000).prop_map(|id| json!({"id": id})),
        prop_oneof!["daemon", "yes", "0644", "null"].prop_map(|name| json!({"name": name})),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..60),
        "[ -~\n\t]{0,60}".prop_map(String::into_bytes),
        any::<String>().prop_map(String::into_bytes),
    ]
}

fn file() -> impl Strategy<Value = ModelFile> {
    let mode = prop_oneof![Just(0o644), Just(0o600), Just(0o4755), 0_u32..0o4000].prop_filter(
        "looks like octal",
        |mode| {
            // Digits that could be read in the other base; 420 and the like could not.
            let octal = mode.to_string().bytes().all(|digit| digit < b'8');
            *mode < 10 || !octal || [420, 416, 511, 2541].contains(mode)
        },
    );
    (bytes(), mode, owner(), owner()).prop_map(|(bytes, mode, user, group)| ModelFile {
        bytes,
        mode,
        owner: (user, group),
    })
}

fn unit() -> impl Strategy<Value = ModelUnit> {
    // Leading blanks, trailing blanks, continuations and letters beyond ASCII: what a manifest's
    // literal blocks could lose.
    let text = "( ?\n| )?(# [ -~]{0,12}\n){0,2}\\[Unit\\]\n\
                (Description=[ -~]{0,12}[a-z\u{e4}]\n| \n|\n|Before=a \t?\n|Before=a\\\\\n  b\n){0,4}";
    let drop_ins = prop::collection::btree_map("[a-c]\\.conf", text, 0..3);
    (text, drop_ins, any::<bool>(), any::<bool>()).prop_map(
        |(contents, drop_ins, enabled, mask)| ModelUnit {
            contents,
            drop_ins,
            enabled,
            mask,
        },
    )
}

fn model() -> impl Strategy<Value = Model> {
    (
        prop_oneof![Just("worker"), Just("infra")],
        prop::collection::btree_map("/etc/[a-d]{1,2}\\.conf", file(), 0..4),
        prop::collection::btree_map("[a-c]\\.(socket|timer)", unit(), 0..3),
        prop::collection::vec("ssh-ed25519 [A-D]{2}", 0..4),
        prop::collection::vec("[a-z]{1,4}(=[a-z0-9]{0,3})?x", 0..3),
        prop::collection::vec("(usbguard|kerberos|sysstat)", 0..3),
    )
        .prop_map(
            |(role, files, units, keys, kernel_arguments, extensions)| Model {
                role,
                files,
                units,
                keys,
                kernel_arguments,
                extensions,
            },
        )
}

/// Choices between equivalent spellings, consumed bit by bit.
struct Choices {
    seed: u64,
    /// Whether a default may be omitted. It may not where another document sets the field, because
    /// an omitted field keeps that value.
    terse: bool,
}

impl Choices {
    fn next(&mut self, among: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) % among
    }
    fn flip(&mut self) -> bool {
        self.next(2) == 0
    }
    fn sets_field(&mut self) -> bool {
        self.flip() || !self.terse
    }
}

fn percent(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("%{byte:02x}")).collect()
}

fn contents(bytes: &[u8], choices: &mut Choices) -> Value {
    let mut contents = Map::new();
    let packed = if choices.flip() {
        contents.insert("compression".into(), json!("gzip"));
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    } else {
        bytes.to_vec()
    };
    let source = match choices.next(3) {
        // Percent-encoding every byte of the base64 would hide errors of the decoder, so the plain
        // digits are used.
        0 => format!("data:;base64,{}", base64(&packed)),
        1 => format!("data:text/plain,{}", percent(&packed)),
        _ => format!(
            "data:application/octet-stream;charset=x,{}",
            percent(&packed)
        ),
    };
    contents.insert("source".into(), json!(source));
    Value::Object(contents)
}

/// Base64 encoder of the test's own.
fn base64(bytes: &[u8]) -> String {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let digits: Vec<char> = ('A'..='Z')
        .chain('a'..='z')
        .chain('0'..='9')
        .chain(['+', '/'])
        .collect();
    let mut text = String::new();
    for chunk in bits.as_bytes().chunks(6) {
        let word = format!("{:0<6}", std::str::from_utf8(chunk).unwrap());
        text.push(digits[usize::from_str_radix(&word, 2).unwrap()]);
    }
    text
}

fn ignition(model: &Model, choices: &mut Choices) -> Value {
    let special = model.files.values().any(|file| file.mode > 0o777);
    let two = choices.next(4) == 0 && !special;
    let mut files: Vec<Value> = Vec::new();
    for (path, file) in &model.files {
        let mut entry = json!({"path": path, "contents": contents(&file.bytes, choices)});
        let fields = entry.as_object_mut().unwrap();
        if file.mode != 0o644 || choices.sets_field() {
            fields.insert("mode".into(), json!(file.mode));
        }
        for (key, owner) in [("user", &file.owner.0), ("group", &file.owner.1)] {
            if *owner != json!({"id": 0}) || choices.sets_field() {
                fields.insert(key.into(), owner.clone());
            }
        }
        if choices.flip() {
            fields.insert("overwrite".into(), json!(choices.flip()));
        }
        if two {
            fields.insert("filesystem".into(), json!("root"));
        }
        files.push(entry);
    }
    let mut units: Vec<Value> = Vec::new();
    for (name, unit) in &model.units {
        let drop_ins: Vec<Value> = unit
            .drop_ins
            .iter()
            .map(|(name, contents)| json!({"name": name, "contents": contents}))
            .collect();
        let mut entry = json!({"name": name, "contents": unit.contents, "enabled": unit.enabled,
            "dropins": drop_ins});
        // Only in version 2 is `false` the same as an absent field.
        if unit.mask || (two && choices.flip()) {
            let fields = entry.as_object_mut().unwrap();
            fields.insert("mask".into(), json!(unit.mask));
        }
        if drop_ins.is_empty() && choices.flip() {
            entry.as_object_mut().unwrap().remove("dropins");
        }
        if two && unit.enabled && choices.flip() {
            let fields = entry.as_object_mut().unwrap();
            let output = fields.remove("enabled").unwrap();
            fields.insert("enable".into(), output);
        }
        units.push(entry);
    }
    if choices.flip() {
        files.reverse();
        units.reverse();
    }
    let version = match two {
        true => "2.2.0".to_owned(),
        false if special => "3.6.0".to_owned(),
        false => format!("3.{}.0", choices.next(7)),
    };
    json!({
        "ignition": {"version": version}, "storage": {"files": files}, "systemd": {"units": units},
        "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": model.keys}]},
    })
}

fn spell(name: &str, model: &Model, choices: &mut Choices) -> String {
    let manifest = json!({
        "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
        "metadata": {"name": name, "labels": {"machineconfiguration.openshift.io/role": model.role}},
        "spec": {"config": ignition(model, choices), "kernelArguments": model.kernel_arguments,
                 "extensions": model.extensions},
    });
    match choices.next(4) {
        0 => manifest.to_string(),
        1 => serde_json::to_string_pretty(&manifest).unwrap(),
        2 => json!({"apiVersion": "v1", "kind": "List", "items": [manifest]}).to_string(),
        _ => serde_saphyr::to_string(&manifest).unwrap(),
    }
}

fn spelled(number: usize, model: &Model, mut choices: Choices) -> ConfigDocument {
    let text = spell(&format!("{number:02}-x"), model, &mut choices);
    let packed = match choices.flip() {
        true => text.clone().into_bytes(),
        false => {
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            packer.write_all(text.as_bytes()).unwrap();
            packer.finish().unwrap()
        }
    };
    let files = vec![("a.yaml".to_owned(), packed)];
    let (mut documents, _) = documents_from_files(files, &ConfigRules::default(), &NoLocalFiles)
        .unwrap_or_else(|refusals| panic!("{}\n{text}", refusals[0]));
    documents.pop().unwrap()
}

fn document(number: usize, model: &Model, seed: u64) -> ConfigDocument {
    spelled(number, model, Choices { seed, terse: true })
}

fn merged(documents: Vec<ConfigDocument>, order: MergeOrder) -> MachineConfig {
    merge(documents, "infra", order).unwrap().0
}

fn read_back(manifest: &str) -> ConfigDocument {
    parse(manifest, "rendered.yaml", &ConfigRules::default())
        .unwrap_or_else(|refusals| panic!("{}\n{manifest}", refusals[0]))
        .pop()
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn equivalent_spellings_give_equal_configs(model in model(), one: u64, other: u64) {
        let one = merged(vec![document(1, &model, one)], MergeOrder::AsGiven);
        let other = merged(vec![document(1, &model, other)], MergeOrder::AsGiven);
        prop_assert_eq!(digest(&one), digest(&other));
        for (path, file) in &model.files {
            let have = &one.files[&path.parse().unwrap()];
            prop_assert_eq!(have.content.as_ref().unwrap().bytes(), Some(&file.bytes[..]));
            prop_assert_eq!(have.mode, Some(file.mode));
        }
        prop_assert_eq!(one, other);
    }

    #[test]
    fn a_pools_config_does_not_depend_on_input_order_or_spelling(
        (models, shuffled) in prop::collection::vec(model(), 1..5).prop_flat_map(|models| {
            let indices: Vec<usize> = (0..models.len()).collect();
            (Just(models), Just(indices).prop_shuffle())
        }),
        seeds: [u64; 2],
    ) {
        let all = |order: &[usize], seed: u64| -> Vec<ConfigDocument> {
            let one = |&index: &usize| {
                let seed = seed.wrapping_add(index as u64);
                spelled(index, &models[index], Choices { seed, terse: false })
            };
            order.iter().map(one).collect()
        };
        let sorted: Vec<usize> = (0..models.len()).collect();
        let one = merged(all(&sorted, seeds[0]), MergeOrder::WorkerFirst);
        let other = merged(all(&shuffled, seeds[1]), MergeOrder::WorkerFirst);
        prop_assert_eq!(&one.name, &other.name);
        prop_assert_eq!(one.name.clone(), format!("rendered-infra-{}", &digest(&one).hex()[..32]));
        prop_assert_eq!(one, other);
    }

    #[test]
    fn later_configs_override_earlier_ones_per_file(models in prop::collection::vec(model(), 1..5), seed: u64) {
        let documents = (0..).zip(&models).map(|(number, model)| document(number, model, seed));
        let config = merged(documents.collect(), MergeOrder::AsGiven);
        let mut wanted = BTreeMap::new();
        for model in &models {
            wanted.extend(model.files.iter().map(|(path, file)| (path.as_str(), &file.bytes[..])));
        }
        let have: BTreeMap<_, _> = config
            .files
            .iter()
            .map(|(path, file)| (path.as_str(), file.content.as_ref().unwrap().bytes().unwrap()))
            .collect();
        prop_assert_eq!(have, wanted);
        let arguments: Vec<_> = models.iter().flat_map(|m| m.kernel_arguments.clone()).collect();
        prop_assert_eq!(config.kernel_arguments, arguments);
    }

    /// Holds where documents set every field of their entries: a rendered config contains defaults
    /// for fields that were not set.
    #[test]
    fn merging_is_associative(
        models in prop::collection::vec(model(), 3),
        seed in 0_u64..4,
    ) {
        // The mode and the owners are set or omitted at random; here they must be set.
        let full = |number: usize| {
            let one = merged(vec![document(number, &models[number], seed)], MergeOrder::AsGiven);
            read_back(&to_machine_config_yaml(&one).unwrap().replace(&one.name, &format!("full-{number}")))
        };
        let all = merged(vec![full(0), full(1), full(2)], MergeOrder::AsGiven);
        let first = merged(vec![full(0), full(1)], MergeOrder::AsGiven);
        let stepwise = merged(vec![read_back(&to_machine_config_yaml(&first).unwrap()), full(2)], MergeOrder::AsGiven);
        prop_assert_eq!(digest(&all), digest(&stepwise));
    }

    #[test]
    fn a_config_round_trips_through_its_stored_form_and_manifest(
        models in prop::collection::vec(model(), 1..4),
        seed: u64,
    ) {
        let documents = (0..).zip(&models).map(|(number, model)| document(number, model, seed));
        let config = merged(documents.collect(), MergeOrder::AsGiven);
        let stored = from_canonical_json(&to_canonical_json(&config)).unwrap();
        prop_assert_eq!(&MachineConfig { name: config.name.clone(), ..stored.clone() }, &config);
        prop_assert_eq!(to_portable_json(&stored).is_err(), !config.files.is_empty());
        let carried = from_portable_json(&to_portable_json(&config).unwrap()).unwrap();
        let bytes = |config: &MachineConfig| -> Vec<Option<Vec<u8>>> {
            config.files.values().map(|file| file.content.as_ref().unwrap().bytes().map(<[u8]>::to_vec)).collect()
        };
        prop_assert_eq!(bytes(&carried), bytes(&config));
        let rendered = merged(vec![read_back(&to_machine_config_yaml(&config).unwrap())], MergeOrder::AsGiven);
        prop_assert_eq!(rendered, config);
    }

    #[test]
    fn any_config_difference_changes_the_digest(model in model(), seed: u64) {
        let config = merged(vec![document(0, &model, seed)], MergeOrder::AsGiven);
        let mut others = vec![];
        for path in model.files.keys() {
            let mut more = model.clone();
            more.files.get_mut(path).unwrap().bytes.push(b'!');
            others.push(more);
            let mut mode = model.clone();
            let file = mode.files.get_mut(path).unwrap();
            file.mode = if file.mode == 0o640 { 0o600 } else { 0o640 };
            others.push(mode);
        }
        let mut argument = model.clone();
        argument.kernel_arguments.push("quiet".into());
        others.push(argument);
        for other in others {
            let other = merged(vec![document(0, &other, seed)], MergeOrder::AsGiven);
            prop_assert_ne!(digest(&other), digest(&config));
        }
    }
}

#[test]
fn the_manifest_of_a_password_of_core_is_read_again() {
    let config = json!({
        "ignition": {"version": "3.5.0"},
        "passwd": {"users": [{"name": "core", "passwordHash": "$6$salt$hash"}]},
    });
    let read = |name: &str, text: String| {
        let files = vec![(name.to_owned(), text.into_bytes())];
        let documents = documents_from_files(files, &ConfigRules::default(), &NoLocalFiles);
        merge(documents.unwrap().0, "a", MergeOrder::AsGiven)
            .unwrap()
            .0
    };
    let config = read("a.ign", config.to_string());
    let manifest = to_machine_config_yaml(&config).unwrap();
    assert_eq!(digest(&read("b.yaml", manifest)), digest(&config));
}
