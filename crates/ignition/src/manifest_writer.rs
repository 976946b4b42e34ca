//! Writes a config as an OpenShift MachineConfig manifest, for `machinist render`.

use serde_json::{Map, Value, json};

use super::{
    MachineConfig, Owner, Unit, User,
    account::CORE_USER,
    content_source,
    parser::{ALLOW_DOWNGRADE_ANNOTATION, RELEASE_ANNOTATION},
};
use machinist_base::abs_path::AbsPath;

/// The Ignition version of the manifest: the one that OpenShift translates every config to.
const IGNITION_VERSION: &str = "3.5.0";

/// The version for configs with set-id and sticky bits, which earlier versions ignore.
const SPECIAL_MODES_IGNITION_VERSION: &str = "3.6.0";

/// A config without the content of one of its files cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the content of {path} is not available")]
pub struct MissingContent {
    /// The file.
    pub path: AbsPath,
}

/// The manifest in YAML. [`parse`](super::parse) and [`merge`](super::merge) of it alone give a
/// config with the same name, and with the same digest unless the config leaves something to the
/// machine: such values are written with their defaults ([`MachineConfig::with_defaults`]).
///
/// # Errors
/// The config was read from the store without the contents.
pub fn to_machine_config_yaml(config: &MachineConfig) -> Result<String, MissingContent> {
    let mut text = String::new();
    write(&to_machine_config(config)?, 0, &mut text);
    Ok(text)
}

/// The manifest as a JSON object.
pub fn to_machine_config(config: &MachineConfig) -> Result<Value, MissingContent> {
    let config = &*config.with_defaults();
    let mut spec = Map::new();
    spec.insert("config".into(), ignition(config)?);
    insert(&mut spec, "kernelArguments", json!(config.kernel_arguments));
    insert(&mut spec, "extensions", json!(config.extensions));
    insert(&mut spec, "kernelType", json!(config.kernel_type));
    insert(&mut spec, "osImageURL", json!(config.os_image_url));
    let image = json!(config.extensions_image);
    insert(&mut spec, "baseOSExtensionsContainerImage", image);
    if config.fips {
        spec.insert("fips".into(), json!(true));
    }
    let mut metadata = Map::new();
    metadata.insert("name".into(), json!(config.name));
    insert(&mut metadata, "annotations", release(config));
    Ok(json!({
        "apiVersion": "machineconfiguration.openshift.io/v1",
        "kind": "MachineConfig",
        "metadata": metadata,
        "spec": spec,
    }))
}

fn version(config: &MachineConfig) -> &'static str {
    let files = config.files.values().map(|file| file.mode);
    let mut modes = files.chain(config.directories.values().map(|directory| directory.mode));
    match modes.any(|mode| mode.is_some_and(|mode| mode > 0o777)) {
        true => SPECIAL_MODES_IGNITION_VERSION,
        false => IGNITION_VERSION,
    }
}

/// The release of the config, and whether it may be lower than the installed one.
fn release(config: &MachineConfig) -> Value {
    let mut annotations = Map::new();
    if let Some(release) = &config.release {
        if let Some(version) = &release.version {
            annotations.insert(RELEASE_ANNOTATION.to_owned(), json!(version));
        }
        if release.may_be_lower {
            annotations.insert(ALLOW_DOWNGRADE_ANNOTATION.to_owned(), json!("true"));
        }
    }
    Value::Object(annotations)
}

/// Adds a field unless its value is empty.
fn insert(object: &mut Map<String, Value>, key: &str, value: Value) {
    let empty = match &value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    if !empty {
        object.insert(key.to_owned(), value);
    }
}

fn ignition(config: &MachineConfig) -> Result<Value, MissingContent> {
    let mut storage = Map::new();
    let files = config.files.iter().map(|(path, file)| {
        let source = file.content.as_ref().and_then(|content| content.bytes());
        let source = source.map(data_url);
        Ok(json!({
            "path": path, "mode": file.mode, "overwrite": true,
            "user": owner(file.user.as_ref()), "group": owner(file.group.as_ref()),
            "contents": {"source": source.ok_or_else(|| MissingContent { path: path.clone() })?},
        }))
    });
    insert(&mut storage, "files", files.collect::<Result<_, _>>()?);
    let directories = config.directories.iter().map(|(path, directory)| {
        json!({
            "path": path, "mode": directory.mode,
            "user": owner(directory.user.as_ref()), "group": owner(directory.group.as_ref()),
        })
    });
    insert(&mut storage, "directories", directories.collect());
    let links = config.links.iter().map(|(path, link)| match link.hard {
        true => json!({"path": path, "target": link.target, "overwrite": true, "hard": true}),
        false => json!({
            "path": path, "target": link.target, "overwrite": true,
            "user": owner(Some(&link.user)), "group": owner(Some(&link.group)),
        }),
    });
    insert(&mut storage, "links", links.collect());
    for (section, entries) in &config.disk_layout {
        insert(&mut storage, section, json!(entries));
    }
    let units: Vec<Value> = config
        .units
        .iter()
        .map(|(name, unit)| write_unit(name.as_str(), unit))
        .collect();
    let users = config
        .users
        .iter()
        .map(|(name, user)| write_user(name, user));
    let groups = config
        .groups
        .iter()
        .map(|(name, group)| named(name, json!(group)));
    let mut passwd = Map::new();
    insert(&mut passwd, "users", users.collect());
    insert(&mut passwd, "groups", groups.collect());
    let mut root = Map::new();
    root.insert("ignition".into(), json!({"version": version(config)}));
    insert(&mut root, "storage", Value::Object(storage));
    if !units.is_empty() {
        root.insert("systemd".into(), json!({"units": units}));
    }
    insert(&mut root, "passwd", Value::Object(passwd));
    Ok(Value::Object(root))
}

fn owner(owner: Option<&Owner>) -> Value {
    match owner {
        None => Value::Null,
        Some(Owner::Id(id)) => json!({"id": id}),
        Some(Owner::Name(name)) => json!({"name": name}),
    }
}

/// The canonical form uses Ignition's field names for accounts.
fn write_user(name: &str, user: &User) -> Value {
    let mut value = named(name, json!(user.account));
    if let Value::Object(fields) = &mut value {
        // OpenShift's daemon and this reader refuse everything but keys and password for this user.
        if name == CORE_USER {
            fields.remove("shouldExist");
        }
        fields.insert("sshAuthorizedKeys".into(), json!(user.ssh_authorized_keys));
    }
    value
}

/// The name and then the fields of `value`, if it has any.
fn named(name: &str, value: Value) -> Value {
    let mut fields = Map::new();
    fields.insert("name".into(), json!(name));
    if let Value::Object(more) = value {
        fields.extend(more);
    }
    Value::Object(fields)
}

fn write_unit(name: &str, unit: &Unit) -> Value {
    let mut fields = Map::new();
    fields.insert("name".into(), json!(name));
    insert(&mut fields, "contents", json!(unit.contents));
    insert(&mut fields, "enabled", json!(unit.enabled));
    if unit.mask || unit.unmask {
        fields.insert("mask".into(), json!(unit.mask));
    }
    let drop_ins = unit
        .dropins
        .iter()
        .map(|(name, contents)| json!({"name": name, "contents": contents}));
    insert(&mut fields, "dropins", drop_ins.collect());
    Value::Object(fields)
}

/// Percent-encoded if that is readable, otherwise base64.
fn data_url(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/:=,;+!*'()@&$".contains(&byte);
    let readable = |text: &&str| {
        !text
            .chars()
            .any(|c| c.is_control() && c != '\n' && c != '\t')
    };
    let Some(text) = std::str::from_utf8(bytes).ok().filter(readable) else {
        return format!("data:;base64,{}", content_source::base64(bytes));
    };
    let mut url = "data:,".to_owned();
    for byte in text.bytes() {
        if plain(byte) {
            url.push(char::from(byte));
        } else {
            let _ = write!(url, "%{byte:02X}");
        }
    }
    url
}

/// Writes a value as block YAML. Texts are quoted as in JSON, which every YAML reader understands,
/// except for texts of several plain lines, which are written as readable blocks.
fn write(value: &Value, indent: usize, to: &mut String) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                pad(indent, to);
                to.push_str(key);
                to.push(':');
                write_below(field, indent + 2, to);
            }
        }
        Value::Array(items) => {
            for item in items {
                let start = to.len();
                write(item, indent + 2, to);
                // The dash replaces the last two blanks before the first line.
                if to[start..].starts_with(&" ".repeat(indent + 2)) {
                    to.replace_range(start + indent..=start + indent, "-");
                }
            }
        }
        scalar => {
            pad(indent, to);
            write_scalar(scalar, indent, to);
        }
    }
}

fn write_below(field: &Value, indent: usize, to: &mut String) {
    match field {
        Value::Object(fields) if fields.is_empty() => to.push_str(" {}\n"),
        Value::Array(items) if items.is_empty() => to.push_str(" []\n"),
        Value::Object(_) => {
            to.push('\n');
            write(field, indent, to);
        }
        Value::Array(_) => {
            to.push('\n');
            write(field, indent - 2, to);
        }
        scalar => {
            to.push(' ');
            write_scalar(scalar, indent, to);
        }
    }
}

fn write_scalar(value: &Value, indent: usize, to: &mut String) {
    match value {
        Value::String(text) if is_block(text) => {
            to.push_str("|\n");
            for line in text.lines() {
                if !line.is_empty() {
                    pad(indent, to);
                }
                to.push_str(line);
                to.push('\n');
            }
        }
        other => {
            to.push_str(&other.to_string());
            to.push('\n');
        }
    }
}

/// Whether a text can be written as a literal block: whole lines, the first one without
/// indentation, one line break at the end, and only characters that a YAML reader keeps unchanged.
fn is_block(text: &str) -> bool {
    let tame = |c: char| c == '\n' || (' '..='~').contains(&c);
    text.ends_with('\n')
        && !text.ends_with("\n\n")
        && !text.starts_with([' ', '\n'])
        && text.chars().all(tame)
}

fn pad(indent: usize, to: &mut String) {
    to.extend(std::iter::repeat_n(' ', indent));
}
