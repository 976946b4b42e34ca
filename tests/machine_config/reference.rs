//! Compared with `ignition-config`, the parser that Ignition's authors publish for Rust.

use std::collections::BTreeSet;

use ignition_config::{Config, v3_6};
use machinist_base::reason::Reason;
use machinist_ignition::{ConfigLoader, ConfigRules, MergeOrder, NoLocalFiles, Refusal, parse};
use serde_json::{Value, json};

/// A config in which every field of Ignition 3.6 is set.
fn everything(version: &str) -> Value {
    let resource = json!({"source": "data:,x", "compression": "",
        "httpHeaders": [{"name": "a", "value": "b"}], "verification": {"hash": ""}});
    let node =
        json!({"overwrite": true, "user": {"id": 1, "name": "u"}, "group": {"id": 1, "name": "g"}});
    let with = |more: Value| {
        let mut all = node.clone();
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        all
    };
    json!({
        "ignition": {"version": version, "config": {"merge": [resource], "replace": resource},
            "proxy": {"httpProxy": "a", "httpsProxy": "b", "noProxy": ["c"]},
            "security": {"tls": {"certificateAuthorities": [resource]}},
            "timeouts": {"httpResponseHeaders": 1, "httpTotal": 2}},
        "kernelArguments": {"shouldExist": ["a"], "shouldNotExist": ["b"]},
        "passwd": {
            "groups": [{"gid": 1, "name": "g", "passwordHash": "x", "shouldExist": true, "system": true}],
            "users": [{"name": "core", "gecos": "g", "groups": ["g"], "homeDir": "/h",
                "noCreateHome": true, "noLogInit": true, "noUserGroup": true, "passwordHash": "x",
                "primaryGroup": "g", "shell": "/s", "shouldExist": true, "system": true, "uid": 1,
                "sshAuthorizedKeys": ["k"]}]},
        "storage": {
            "directories": [with(json!({"path": "/d", "mode": 493}))],
            "disks": [{"device": "/dev/a", "wipeTable": true, "partitions": [{"number": 1,
                "label": "l", "sizeMiB": 1, "startMiB": 2, "typeGuid": "t", "guid": "u",
                "wipePartitionEntry": true, "shouldExist": true, "resize": true}]}],
            "files": [with(json!({"path": "/f", "mode": 420, "contents": resource, "append": [resource]}))],
            "filesystems": [{"device": "/dev/a", "format": "xfs", "mountOptions": ["ro"],
                "path": "/p", "label": "l", "uuid": "u", "options": ["o"], "wipeFilesystem": true}],
            "links": [with(json!({"path": "/l", "target": "x", "hard": false}))],
            "luks": [{"name": "l", "device": "/dev/a", "discard": true, "openOptions": ["a"],
                "label": "l", "uuid": "u", "options": ["o"], "wipeVolume": true, "keyFile": resource,
                "clevis": {"tpm2": true, "threshold": 1, "tang": [{"url": "u", "thumbprint": "t",
                    "advertisement": "a"}], "custom": {"pin": "p", "config": "c", "needsNetwork": true}},
                "cex": {"enabled": true}}],
            "raid": [{"name": "r", "level": "stripe", "devices": ["/dev/a"], "spares": 1,
                "options": ["o"]}]},
        "systemd": {"units": [{"name": "u.socket", "contents": "[Unit]", "enabled": true, "mask": false,
            "dropins": [{"name": "d.conf", "contents": "[Unit]"}]}]},
    })
}

fn refusals(config: &Value) -> Vec<Refusal> {
    parse(&config.to_string(), "a.ign", &ConfigRules::default())
        .err()
        .unwrap_or_default()
}

/// `$.storage.files.0.path` as `storage.files[0].path`.
fn our_path(theirs: &str) -> String {
    let mut path = String::new();
    for part in theirs.trim_start_matches("unused key: $.").split('.') {
        match part.parse::<usize>() {
            Ok(index) => path.push_str(&format!("[{index}]")),
            Err(_) if path.is_empty() => path.push_str(part),
            Err(_) => path.push_str(&format!(".{part}")),
        }
    }
    path
}

fn unknown_to_them(config: &Value) -> BTreeSet<String> {
    let (_, warnings) = Config::parse_str(&config.to_string()).unwrap();
    warnings
        .iter()
        .map(|warning| our_path(&warning.to_string()))
        .collect()
}

/// The fields that are accepted with a warning that contains this text.
fn noted(config: &Value, why: &str) -> BTreeSet<String> {
    let gathering = ConfigLoader {
        shown: "a.ign",
        rules: &ConfigRules::default(),
        local: &NoLocalFiles,
        pool: "worker",
        order: MergeOrder::AsGiven,
        roles: &[],
    };
    let files = vec![("a.ign".to_owned(), config.to_string().into_bytes())];
    let notes = match gathering.config(files, Vec::new()) {
        Ok((config, _)) => config.notes,
        Err(refused) => refused.rest.unwrap().notes,
    };
    let fields = notes.0.iter().filter(|note| note.contains(why));
    fields
        .map(|note| note.split(": ").nth(1).unwrap().to_owned())
        .collect()
}

fn unknown_to_us(refusals: &[Refusal]) -> BTreeSet<String> {
    let unknown = refusals
        .iter()
        .filter(|refusal| refusal.reason == Reason::FieldUnknown);
    unknown
        .filter_map(|refusal| refusal.field.clone())
        .collect()
}

#[test]
fn every_ignition_version_accepts_exactly_its_fields() {
    for minor in 0..=6 {
        let config = everything(&format!("3.{minor}.0"));
        let refusals = refusals(&config);
        let theirs = unknown_to_them(&config);
        let ignored = noted(&config, "has no effect in 3.");
        let skipped = noted(&config, "does not fetch");
        assert_eq!(unknown_to_us(&refusals), BTreeSet::new(), "3.{minor}");
        for ours in &ignored {
            assert!(theirs.contains(ours), "3.{minor}: {ours} is known");
        }
        for field in theirs {
            // A section that is refused or skipped as a whole has no further refusals inside.
            let refused = refusals
                .iter()
                .filter_map(|refusal| refusal.field.as_deref());
            let ignored = ignored.iter().chain(&skipped).map(String::as_str);
            let message = refused.chain(ignored).any(|at| field.starts_with(at));
            assert!(message, "3.{minor}: {field} is not known");
        }
    }
}

/// The positions of all maps in a config.
fn maps(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                maps(field, format!("{at}/{key}"), found);
            }
            found.push(at);
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                maps(item, format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn an_unknown_field_is_reported_at_every_position() {
    let plain = everything("3.6.0");
    let before = refusals(&plain).len();
    let mut places = Vec::new();
    maps(&plain, String::new(), &mut places);
    let mut seen = 0;
    for place in places {
        let mut config = plain.clone();
        let map = config.pointer_mut(&place).unwrap().as_object_mut().unwrap();
        map.insert("fresh".into(), json!(1));
        let theirs = unknown_to_them(&config);
        assert_eq!(theirs.len(), 1, "{place}");
        let refusals = refusals(&config);
        let ours = unknown_to_us(&refusals);
        if ours == theirs {
            seen += 1;
            continue;
        }
        // It is in a section that is refused or skipped as a whole.
        let field = theirs.first().unwrap();
        assert!(ours.is_empty() && refusals.len() == before, "{place}");
        let refused = refusals
            .iter()
            .filter_map(|refusal| refusal.field.as_deref());
        let skipped = noted(&plain, "does not fetch");
        let mut fields = refused.chain(skipped.iter().map(String::as_str));
        assert!(fields.any(|at| field.starts_with(at)), "{place}");
    }
    // Every map that is read at all: the config, its four sections, and the entries of their lists.
    assert_eq!(seen, 34);
}

#[test]
fn a_value_of_the_wrong_type_is_rejected_where_ignition_rejects_it() {
    let plain = json!({
        "ignition": {"version": "3.6.0"},
        "passwd": {"users": [{"name": "core", "sshAuthorizedKeys": ["k"]}]},
        "storage": {
            "directories": [{"path": "/d", "mode": 493, "overwrite": true, "user": {"id": 1}}],
            "files": [{"path": "/f", "mode": 420, "group": {"name": "g"},
                "contents": {"source": "data:,x", "compression": "", "verification": {"hash": ""}}}],
            "links": [{"path": "/l", "target": "x", "hard": false}]},
        "systemd": {"units": [{"name": "u.socket", "contents": "[Unit]", "enabled": true, "mask": false,
            "dropins": [{"name": "d.conf", "contents": "[Unit]"}]}]},
    });
    assert!(refusals(&plain).is_empty());
    let mut places = Vec::new();
    everywhere(&plain, String::new(), &mut places);
    let mut both = 0;
    for place in places {
        for odd in [
            json!(1.5),
            json!(7),
            json!("text"),
            json!(true),
            json!([]),
            json!({}),
        ] {
            let mut config = plain.clone();
            *config.pointer_mut(&place).unwrap() = odd.clone();
            let text = config.to_string();
            let theirs = serde_json::from_str::<v3_6::Config>(&text).is_err();
            if theirs {
                assert!(!refusals(&config).is_empty(), "{place} = {odd}");
                both += 1;
            }
        }
    }
    assert!(both > 100, "{both}");
}

fn everywhere(value: &Value, at: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                everywhere(field, format!("{at}/{key}"), found);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                everywhere(item, format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
    found.push(at);
}
