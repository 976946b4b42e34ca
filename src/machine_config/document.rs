//! Documents: MachineConfig v1, bare Ignition and Butane, one or many to a text.

use std::collections::BTreeSet;

use super::{
    EntryKind, KernelCommandLine, Local, NoLocal, Origin, Refusal, Release, butane, ignition,
    parts::Parts,
    problems::Problems,
    reader::{Field, Object},
    source, tree,
    warning::Warning,
};
use crate::reason::Reason;

/// The label that says which pool a MachineConfig belongs to.
const ROLE_LABEL: &str = "machineconfiguration.openshift.io/role";

/// The annotation of what OpenShift's controller made itself.
const GENERATED: &str = "machineconfiguration.openshift.io/generated-by-controller-version";

/// The annotation that says for which release OpenShift's controller rendered a config.
pub(super) const RELEASE: &str = "machineconfiguration.openshift.io/release-image-version";

/// The annotation by which a person allows a release that is lower than the installed one.
pub(super) const MAY_BE_LOWER: &str = "machinist.dev/allow-downgrade";

/// What may be asked for, beyond what the formats themselves say.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The users that a config may manage.
    pub users: BTreeSet<String>,
    /// The groups that a config may make, change or remove.
    pub groups: BTreeSet<String>,
    /// Where the texts come from.
    pub source: TextSource,
}

/// Where a text comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TextSource {
    /// A file that a person wrote: a key that is not known is a mistake.
    #[default]
    File,
    /// An object that the API server accepted: a key that is not known has no effect there, and is a warning
    /// here.
    ApiServer,
}

/// OpenShift's rule: the one user `core`, and no group.
impl Default for Rules {
    fn default() -> Self {
        Self {
            users: BTreeSet::from(["core".to_owned()]),
            groups: BTreeSet::new(),
            source: TextSource::File,
        }
    }
}

/// One config as it was written: valid in itself, not yet merged with others.
///
/// Fields keep whether they were said at all, since a later document changes only what it says.
#[derive(Clone, Debug)]
pub struct Document {
    /// The MachineConfig's name; the file's name without ending for bare Ignition and Butane. Empty
    /// where a name is missing, which is refused.
    pub name: String,
    /// Whether the name is its own, and not the file's.
    pub(super) named: bool,
    /// The value of the role label.
    pub role: Option<String>,
    /// Whether a controller made it: the OS image in it is but the default.
    pub(super) generated: bool,
    /// Where it begins.
    pub origin: Origin,
    pub(super) parts: Parts,
    /// What is odd in it.
    pub(super) warnings: Vec<Warning>,
}

/// What reading one text needs at hand.
pub(super) struct Reading<'a> {
    pub(super) problems: Problems,
    pub(super) rules: &'a Rules,
    /// How many decoded bytes the rest of the text may still have.
    pub(super) budget: usize,
    /// What the text is called.
    pub(super) text: &'a str,
    /// What lies beside it.
    pub(super) local: &'a dyn Local,
    /// What documents without a name of their own are called.
    stem: &'a str,
    /// Whether a file for which `overwrite` is absent replaces what exists, as in a MachineConfig.
    pub(super) overwrites: bool,
}

/// Reads every document of a text: YAML or JSON, one or several, `kind: List` too.
///
/// `origin_file` is the file's name as the user knows it. All that is wrong is told, with its place;
/// one refusal anywhere refuses the whole text. What Butane would read from other files is refused.
pub fn parse(text: &str, origin_file: &str, rules: &Rules) -> Result<Vec<Document>, Vec<Refusal>> {
    match parse_with(text, origin_file, rules, &NoLocal) {
        (documents, refusals) if refusals.is_empty() => Ok(documents),
        (_, refusals) => Err(refusals),
    }
}

/// Like [`parse`], with the files that Butane may read. Beside refusals stand the documents as far as
/// they could be read: good enough to see what contradicts them, and for nothing else.
pub(super) fn parse_with(
    text: &str,
    origin_file: &str,
    rules: &Rules,
    local: &dyn Local,
) -> (Vec<Document>, Vec<Refusal>) {
    let file_name = origin_file.rsplit('/').next().unwrap_or_default();
    let mut reading = Reading {
        problems: Problems::new(origin_file, rules.source),
        rules,
        budget: source::MOST_DECODED,
        text: origin_file,
        local,
        stem: file_name
            .rsplit_once('.')
            .map_or(file_name, |(stem, _)| stem),
        overwrites: false,
    };
    // Cut off by a full disk or a slip of the hand; everything it brought would leave the machine.
    if text.trim().is_empty() {
        let refusal = Refusal::new(Reason::SourceEmpty, "the file is empty").file(origin_file);
        let refusal = refusal.expected("a config; without the file what it brought goes");
        return (Vec::new(), vec![refusal]);
    }
    let (roots, faults) = tree::read(text);
    for fault in faults {
        reading.problems.syntax(fault);
    }
    let mut documents = Vec::new();
    for root in &roots {
        if let Some(field) = Field::root(root) {
            documents.extend(read_document(&field, &mut reading));
        }
    }
    // Those of what is no document, such as a list around some.
    if let Some(first) = documents.first_mut() {
        first.warnings.extend(reading.problems.take_warnings());
    }
    (documents, reading.problems.into_refusals())
}

fn read_document(field: &Field<'_>, reading: &mut Reading<'_>) -> Vec<Document> {
    let problems = &mut reading.problems;
    problems.enter(None);
    let Some(mut object) = field.object(problems) else {
        return Vec::new();
    };
    if object.has("ignition") && !object.has("variant") {
        return vec![bare(field, reading, ignition::read)];
    }
    if object.has("variant") {
        return vec![butane_document(field, object, reading)];
    }
    let Some(kind) = object.get("kind") else {
        field.refuse(
            problems,
            Reason::SyntaxInvalid,
            "this is none of the formats that are read",
            Some("a MachineConfig (kind:), Ignition (ignition:) or Butane (variant:)"),
        );
        return Vec::new();
    };
    match kind.text(problems) {
        Some("MachineConfig") => vec![machine_config(object, reading)],
        Some("List" | "MachineConfigList") => list(object, reading),
        Some(other) => {
            let message = format!("kind {other} is not machine config");
            let expected = Some("MachineConfig or List");
            kind.refuse(problems, Reason::FeatureUnsupported, message, expected);
            Vec::new()
        }
        None => Vec::new(),
    }
}

fn list(mut object: Object<'_>, reading: &mut Reading<'_>) -> Vec<Document> {
    object.get("apiVersion");
    object.get("kind");
    object.get("metadata");
    let mut documents = Vec::new();
    for item in object.items("items", &mut reading.problems) {
        documents.extend(read_document(&item, reading));
    }
    object.finish(&mut reading.problems);
    documents
}

/// An Ignition or Butane document without metadata.
fn bare(
    field: &Field<'_>,
    reading: &mut Reading<'_>,
    read: impl Fn(&Field<'_>, &mut Reading<'_>) -> Parts,
) -> Document {
    let name = reading.stem.to_owned();
    reading.overwrites = false;
    reading.problems.enter(Some(&name));
    Document {
        origin: field.origin(&reading.problems),
        parts: read(field, reading),
        warnings: reading.problems.take_warnings(),
        name,
        named: false,
        role: None,
        generated: false,
    }
}

fn butane_document(
    field: &Field<'_>,
    mut object: Object<'_>,
    reading: &mut Reading<'_>,
) -> Document {
    let Some(metadata) = object.get("metadata") else {
        return bare(field, reading, butane::read);
    };
    let metadata = read_metadata(&metadata, reading);
    reading.overwrites = true;
    Document {
        origin: field.origin(&reading.problems),
        parts: butane::read(field, reading),
        warnings: reading.problems.take_warnings(),
        name: metadata.name,
        named: true,
        role: metadata.role,
        generated: metadata.generated,
    }
}

fn machine_config(mut object: Object<'_>, reading: &mut Reading<'_>) -> Document {
    const VERSION: &str = "machineconfiguration.openshift.io/v1";
    object.get("kind");
    // The name first: every refusal from here on bears it.
    let metadata = match object.need("metadata", &mut reading.problems) {
        Some(metadata) => read_metadata(&metadata, reading),
        None => Metadata::nameless(),
    };
    if let Some(version) = object.need("apiVersion", &mut reading.problems)
        && version
            .text(&mut reading.problems)
            .is_some_and(|text| text != VERSION)
    {
        let message = format!("{:?} is not a version that is read", version.spelling());
        let reason = Reason::VersionUnsupported;
        version.refuse(&mut reading.problems, reason, message, Some(VERSION));
    }
    let origin = object.field.origin(&reading.problems);
    reading.overwrites = true;
    let parts = object
        .object("spec", &mut reading.problems)
        .map(|spec| read_spec(spec, reading));
    let mut parts = parts.unwrap_or_default();
    parts.release = metadata.release;
    object.get("status");
    object.finish(&mut reading.problems);
    Document {
        name: metadata.name,
        named: true,
        role: metadata.role,
        generated: metadata.generated,
        origin,
        parts,
        warnings: reading.problems.take_warnings(),
    }
}

/// What metadata says that counts.
struct Metadata {
    name: String,
    role: Option<String>,
    generated: bool,
    release: Option<Release>,
}

impl Metadata {
    fn nameless() -> Self {
        Self {
            name: String::new(),
            role: None,
            generated: false,
            release: None,
        }
    }
}

/// Name, role, who made it and for which release. Everything else that the API server keeps in metadata says nothing
/// about a machine.
fn read_metadata(metadata: &Field<'_>, reading: &mut Reading<'_>) -> Metadata {
    let mut read = Metadata::nameless();
    let problems = &mut reading.problems;
    let Some(mut object) = metadata.object(problems) else {
        return read;
    };
    if let Some(field) = object.need("name", problems)
        && let Some(name) = field.text(problems)
    {
        problems.enter(Some(name));
        name.clone_into(&mut read.name);
        if !is_object_name(name) {
            field.refuse(
                problems,
                Reason::ValueInvalid,
                format!("{name:?} is no name of a Kubernetes object"),
                Some("small letters, digits, - and . with a letter or digit at both ends"),
            );
        }
    }
    if let Some(labels) = object.object("labels", problems) {
        for (label, value) in labels.entries() {
            if label == ROLE_LABEL {
                read.role = value.text(problems).map(str::to_owned);
            }
        }
        labels.ignore_rest();
    }
    if let Some(annotations) = object.object("annotations", problems) {
        let all = || annotations.entries();
        read.generated = all().any(|(key, value)| key == GENERATED && !value.is_hollow());
        let allowed = all().find(|(key, _)| *key == MAY_BE_LOWER);
        let may_be_lower = allowed.is_some_and(|(_, value)| value.spelling() == "true");
        let release = all().find(|(key, value)| *key == RELEASE && !value.is_hollow());
        if let Some((_, field)) = release {
            read.release = Some(Release {
                version: field.spelling().to_owned(),
                may_be_lower,
                origin: field.origin(problems),
            });
        }
    }
    object.ignore_rest();
    read
}

/// RFC 1123 subdomains, which the API server demands of names.
fn is_object_name(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= 253
        && name.split('.').all(|label| {
            label.bytes().all(|b| inner(b) || b == b'-')
                && label.bytes().next().is_some_and(inner)
                && label.bytes().next_back().is_some_and(inner)
        })
}

fn read_spec(mut spec: Object<'_>, reading: &mut Reading<'_>) -> Parts {
    let mut parts = match spec.get("config") {
        // An empty config is how a MachineConfig with kernel arguments only is written.
        Some(config) if !config.is_hollow() => ignition::read(&config, reading),
        _ => Parts::default(),
    };
    parts.os_image_url = read_image(&mut spec, "osImageURL", &mut parts, reading);
    let key = "baseOSExtensionsContainerImage";
    parts.extensions_image = read_image(&mut spec, key, &mut parts, reading);
    read_kernel(
        &mut spec,
        "kernelArguments",
        "kernelType",
        &mut parts,
        reading,
    );
    spec.finish(&mut reading.problems);
    parts
}

fn read_image(
    spec: &mut Object<'_>,
    key: &'static str,
    parts: &mut Parts,
    reading: &mut Reading<'_>,
) -> Option<String> {
    let field = spec.get(key)?;
    let text = field.text(&mut reading.problems).unwrap_or_default();
    parts.note_os(EntryKind::OSImage, text, field.origin(&reading.problems));
    (!text.is_empty()).then(|| text.to_owned())
}

/// The fields on kernel and packages, which Butane's `openshift:` section spells otherwise.
pub(super) fn read_kernel(
    object: &mut Object<'_>,
    arguments_key: &'static str,
    type_key: &'static str,
    parts: &mut Parts,
    reading: &mut Reading<'_>,
) {
    let problems = &mut reading.problems;
    for field in object.items(arguments_key, problems) {
        // OpenShift makes no argument of it.
        if field.is_blank() {
            field.warn(
                problems,
                "an empty kernel argument has no effect".to_owned(),
            );
        } else if let Some(word) = read_word(&field, problems) {
            for argument in KernelCommandLine::parse(&word).iter() {
                let at = field.origin(problems);
                parts.note_os(EntryKind::KernelArgument, argument.as_str(), at);
            }
            parts.kernel_arguments.push(word);
        }
    }
    for field in object.items("extensions", problems) {
        if let Some(word) = read_word(&field, problems) {
            parts.note_os(EntryKind::Extension, &word, field.origin(problems));
            parts.extensions.push(word);
        }
    }
    if let Some(field) = object.get("fips") {
        parts.fips = field.flag(problems).unwrap_or(false);
        parts.note_os(EntryKind::KernelArgument, "fips=1", field.origin(problems));
    }
    if let Some(field) = object.get(type_key) {
        match field.text(problems) {
            None | Some("" | "default") => {}
            Some(kind @ ("realtime" | "64k-pages")) => {
                let origin = field.origin(problems);
                let name = format!("kernelType {kind}");
                parts.note_os(EntryKind::OSImage, &name, origin.clone());
                parts.kernel_type = Some((kind.to_owned(), origin));
            }
            Some(other) => {
                let message = format!("{other:?} is no kernel type");
                let expected = Some("default, realtime or 64k-pages");
                field.refuse(problems, Reason::ValueInvalid, message, expected);
            }
        }
    }
}

fn read_word(field: &Field<'_>, problems: &mut Problems) -> Option<String> {
    let word = field.text(problems)?;
    if word.trim().is_empty() || word.chars().any(char::is_control) {
        let message = "is empty or holds control characters";
        field.refuse(problems, Reason::ValueInvalid, message, None);
        return None;
    }
    Some(word.to_owned())
}
