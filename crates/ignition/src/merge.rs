//! Merges documents into one config, in the order and by the rules of the machine-config operator.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{
    ClusterBaseline, ConfigDocument, Content, CreationNotes, Directory, EntryOrigin, EntryOrigins,
    FILE_MODE, File, Group, Link, MachineConfig, Overwrite, Owner, Refusal, Release, Unit, User,
    account::overlay_user,
    canonical, disk_layout,
    partial::{FilePart, LinkPart, NodePart, PartialConfig, UnitPart},
    path_conflicts,
    rejected_texts::RejectedTexts,
    unit_check,
};
use machinist_base::{abs_path::AbsPath, reason::Reason};

/// The prefix of configs that OpenShift's controller merged for a pool.
const RENDERED_PREFIX: &str = "rendered-";

/// The merge order of documents; later ones override earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeOrder {
    /// The given order: the files of a directory by name, and the documents of a file in sequence.
    AsGiven,
    /// MachineConfigs of role `worker` by name, then all others by name, so that a custom pool
    /// overrides the workers' configs independent of the names. Documents without a name of their
    /// own keep their position.
    WorkerFirst,
}

/// Merges `documents` into the config of a machine in `pool`.
///
/// Files, directories and links are merged by path, units and drop-ins by name, field by field:
/// fields that a later document does not set stay. Keys and the groups of a user are appended
/// without duplicates; kernel arguments and extensions are appended with duplicates. Images of a
/// config that OpenShift's controller rendered for a pool are overridden by those in users'
/// configs, independent of the order; images of any other generated config are ignored. Returns
/// warnings with the config. Its name is [`rendered_name`](super::rendered_name).
pub fn merge(
    documents: Vec<ConfigDocument>,
    pool: &str,
    order: MergeOrder,
) -> Result<(MachineConfig, Vec<String>), Vec<Refusal>> {
    match merge_partial(documents, pool, order, &RejectedTexts::default()) {
        (config, warnings, refusals) if refusals.is_empty() => Ok((config, warnings)),
        (.., refusals) => Err(refusals),
    }
}

/// Like [`merge`], if some texts were refused: missing parts that may be in one of those texts are
/// not reported. Returns config, warnings and refusals.
pub(super) fn merge_partial(
    mut documents: Vec<ConfigDocument>,
    pool: &str,
    order: MergeOrder,
    unread: &RejectedTexts,
) -> (MachineConfig, Vec<String>, Vec<Refusal>) {
    let mut refusals = same_names(&documents);
    if order == MergeOrder::WorkerFirst {
        worker_first(&mut documents);
    }
    let mut parts = PartialConfig::default();
    let (mut default_images, mut notes) = ([None, None], Vec::new());
    for mut document in documents {
        if document.generated {
            let images = document.take_images();
            // The images in the sources of a rendered config do not apply to the pool, which uses
            // those of its release.
            if document.name.starts_with(RENDERED_PREFIX) {
                default_images = images;
            }
        }
        notes.extend(document.warnings.iter().map(ToString::to_string));
        notes.extend(covered(&parts, &document.parts));
        notes.extend(replaced(&mut parts, &document.parts));
        override_with(&mut parts, document.parts);
    }
    let [os_image, extensions_image] = default_images;
    parts.os_image_url = parts.os_image_url.or(os_image);
    parts.extensions_image = parts.extensions_image.or(extensions_image);
    refusals.extend(kernel_without_headers(&parts));
    refusals.extend(appended_to_nothing(&parts, unread));
    refusals.extend(odd_hard_links(&parts));
    let mut config = finish(parts);
    config.notes = CreationNotes(notes);
    refusals.extend(path_conflicts::find(&config));
    let mut warnings = Vec::new();
    config.units.retain(|name, unit| {
        let verdict = unit_check::check(unit);
        warnings.extend(verdict.warning.map(|warning| format!("{name} {warning}")));
        // The plan refuses a service that systemd would not load with all drop-ins of the machine.
        // A text that was not read may contain more of them.
        let faulty = name.kind() == "service" && !unit.mask && verdict.fault.is_some();
        !faulty || !unread.may_contain(name.as_str())
    });
    refusals.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    config.name = canonical::rendered_name(pool, &canonical::digest(&config.with_defaults()));
    (config, warnings, refusals)
}

/// Sorts the documents with a name of their own among the positions that they occupy.
fn worker_first(documents: &mut Vec<ConfigDocument>) {
    let rank = |document: &ConfigDocument| document.role.as_deref() != Some("worker");
    let places: Vec<bool> = documents.iter().map(|document| document.named).collect();
    let (mut named, others): (Vec<_>, Vec<_>) =
        documents.drain(..).partition(|document| document.named);
    named.sort_by(|a, b| (rank(a), &a.name).cmp(&(rank(b), &b.name)));
    let (mut named, mut others) = (named.into_iter(), others.into_iter());
    documents.extend(places.iter().filter_map(|is_named| match is_named {
        true => named.next(),
        false => others.next(),
    }));
}

/// Files whose content an earlier document sets differently. That happens with intended layering,
/// and when two people overwrite each other by mistake.
fn covered<'a>(
    below: &'a PartialConfig,
    above: &'a PartialConfig,
) -> impl Iterator<Item = String> + 'a {
    above.files.iter().filter_map(|(path, later)| {
        let earlier = below.files.get(path)?;
        let (old, new) = (earlier.content.as_ref()?, later.content.as_ref()?);
        let [old_place, new_place] =
            [earlier, later].map(|part| path_conflicts::place(&part.node.origin));
        (old != new).then(|| {
            format!(
                "{path} is defined twice with different content: {new_place} overrides \
                 {old_place}"
            )
        })
    })
}

/// Removes an earlier document's object at a path where a later one has an object of another kind.
fn replaced(below: &mut PartialConfig, above: &PartialConfig) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |path: &AbsPath, what: (&str, &NodePart), by: (&str, &NodePart)| {
        let [earlier, later] = [what, by].map(|(_, part)| path_conflicts::place(&part.origin));
        let (what, by) = (what.0, by.0);
        notes.push(format!(
            "{path} is the {by} of {later}, which comes after the {what} of {earlier} and replaces it"
        ));
    };
    let files = above
        .files
        .iter()
        .map(|(path, part)| (path, ("file", &part.node)));
    let links = above
        .links
        .iter()
        .map(|(path, part)| (path, ("link", &part.node)));
    let directories = above.directories.iter();
    let directories = directories.map(|(path, part)| (path, ("directory", part)));
    for (path, by) in files.chain(links).chain(directories) {
        let kinds = [
            below.files.contains_key(path),
            below.links.contains_key(path),
            below.directories.contains_key(path),
        ];
        // An earlier document that contradicts itself is still refused.
        if kinds.iter().filter(|there| **there).count() > 1 {
            continue;
        }
        if by.0 != "file"
            && let Some(part) = below.files.remove(path)
        {
            note(path, ("file", &part.node), by);
        }
        if by.0 != "link"
            && let Some(part) = below.links.remove(path)
        {
            note(path, ("link", &part.node), by);
        }
        if by.0 != "directory"
            && let Some(part) = below.directories.remove(path)
        {
            note(path, ("directory", &part), by);
        }
    }
    notes
}

/// Refuses two documents with the same name: in a cluster the second would have replaced the first.
fn same_names(documents: &[ConfigDocument]) -> Vec<Refusal> {
    let mut seen: BTreeMap<&str, &ConfigDocument> = BTreeMap::new();
    let mut refusals = Vec::new();
    for document in documents.iter().filter(|one| !one.name.is_empty()) {
        let Some(first) = seen.insert(&document.name, document) else {
            continue;
        };
        let (name, first_place) = (&document.name, path_conflicts::place(&first.origin));
        let bare_place = || {
            path_conflicts::place(&EntryOrigin {
                config: None,
                ..first.origin.clone()
            })
        };
        let twice = |message| Refusal::new(Reason::EntryDuplicate, message).at(&document.origin);
        let nameless = !document.named && !first.named;
        refusals.push(
            match nameless && first.origin.file == document.origin.file {
                // Both got the file's name.
                true => twice(format!(
                    "this document has no name, nor does the one at {}",
                    bare_place()
                ))
                .expected("at most one document without a name per file"),
                false => twice(format!(
                    "the name {name:?} is already used by {first_place}"
                )),
            },
        );
    }
    refusals
}

/// The headers in `kernel-devel` are for the default kernel.
fn kernel_without_headers(parts: &PartialConfig) -> Option<Refusal> {
    let (kind, origin) = parts.kernel_type.as_ref()?;
    let devel = parts.extensions.iter().any(|name| name == "kernel-devel");
    let message = format!(
        "the extension kernel-devel cannot be combined with the kernel type \
         {kind}"
    );
    devel.then(|| Refusal::new(Reason::ValueInvalid, message).at(origin))
}

/// Refuses files that are appended to if no document sets their beginning: their content would
/// depend on the machine's existing file, and each update would append again.
fn appended_to_nothing(parts: &PartialConfig, unread: &RejectedTexts) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for (path, file) in &parts.files {
        if let (Some(origin), None) = (&file.append_origin, &file.content)
            && !unread.may_contain(path.as_str())
        {
            let message = format!("cannot append to {path}: no config defines its contents");
            let refusal = Refusal::new(Reason::FeatureUnsupported, message).at(origin);
            refusals.push(refusal.expected("contents for this path, here or in another config"));
        }
    }
    refusals
}

/// Refuses hard links without a target or with an owner: the owner belongs to the file, not to its
/// names.
fn odd_hard_links(parts: &PartialConfig) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let hard = |(_, link): &(&AbsPath, &LinkPart)| link.hard == Some(true);
    for (path, link) in parts.links.iter().filter(hard) {
        let mut refuse = |reason, message: String, expected: &str| {
            let refusal = Refusal::new(reason, message).at(&link.node.origin);
            refusals.push(refusal.expected(expected));
        };
        // An empty target was refused by the parser.
        if !link.target.is_empty()
            && let Err(error) = AbsPath::new(link.target.as_str())
        {
            let message = format!("the hard link {path}: its target {error}");
            refuse(Reason::PathInvalid, message, "the absolute path of a file");
        }
        if link.node.user.is_some() || link.node.group.is_some() {
            let message = format!("the hard link {path} cannot have an owner of its own");
            refuse(
                Reason::ValueInvalid,
                message,
                "neither user nor group: a hard link has those of its target",
            );
        }
    }
    refusals
}

fn override_with(below: &mut PartialConfig, above: PartialConfig) {
    merge_maps(&mut below.files, above.files, FilePart::override_with);
    merge_maps(
        &mut below.directories,
        above.directories,
        NodePart::override_with,
    );
    merge_maps(&mut below.links, above.links, LinkPart::override_with);
    merge_maps(&mut below.units, above.units, UnitPart::override_with);
    merge_maps(&mut below.users, above.users, overlay_user);
    merge_maps(&mut below.groups, above.groups, Group::override_with);
    below.os_origins.extend(above.os_origins);
    below.kernel_arguments.extend(above.kernel_arguments);
    below.extensions.extend(above.extensions);
    keep(&mut below.os_image_url, above.os_image_url);
    keep(&mut below.extensions_image, above.extensions_image);
    disk_layout::override_with(&mut below.disk_layout, above.disk_layout);
    below.kernel_type = above.kernel_type.or(below.kernel_type.take());
    below.fips |= above.fips;
    below.release = Release::override_with(below.release.take(), above.release);
}

fn merge_maps<K: Ord, V>(
    below: &mut BTreeMap<K, V>,
    above: BTreeMap<K, V>,
    override_with: impl Fn(&mut V, V),
) {
    for (key, value) in above {
        match below.entry(key) {
            Entry::Vacant(place) => {
                place.insert(value);
            }
            Entry::Occupied(mut place) => override_with(place.get_mut(), value),
        }
    }
}

/// Overrides a value with that of a later document, if that one sets it.
fn keep<T>(below: &mut Option<T>, above: Option<T>) {
    if above.is_some() {
        *below = above;
    }
}

impl ConfigDocument {
    /// Removes and returns the OS image and the extensions image.
    fn take_images(&mut self) -> [Option<String>; 2] {
        let parts = &mut self.parts;
        [parts.os_image_url.take(), parts.extensions_image.take()]
    }
}

impl NodePart {
    fn override_with(&mut self, above: Self) {
        keep(&mut self.mode, above.mode);
        keep(&mut self.user, above.user);
        keep(&mut self.group, above.group);
        keep(&mut self.overwrite, above.overwrite);
        self.origin = above.origin;
    }
}

impl FilePart {
    /// Overlays the fields of a later document. Content is one field, already decoded: the
    /// compression in an earlier document does not apply to the content of a later one. Appended
    /// contents are kept, as in Ignition.
    pub(super) fn override_with(&mut self, above: Self) {
        self.node.override_with(above.node);
        keep(&mut self.content, above.content);
        self.append.extend(above.append);
        keep(&mut self.append_origin, above.append_origin);
    }

    fn whole_content(content: Option<Content>, append: &[Content]) -> Option<Content> {
        if append.is_empty() {
            return content;
        }
        // Contents that were just parsed from a document have their bytes.
        let parts = content.iter().chain(append);
        let bytes: Vec<u8> = parts
            .filter_map(Content::bytes)
            .flatten()
            .copied()
            .collect();
        Some(Content::new(bytes))
    }

    /// A file with content gets a default mode and owner. Without content, absent values are left
    /// to the machine, as in Ignition.
    fn finish(self) -> File {
        let content = Self::whole_content(self.content, &self.append);
        let given = content.is_some();
        let owner = |owner: Option<Owner>| owner.or_else(|| given.then_some(Owner::ROOT));
        File {
            mode: self.node.mode.or_else(|| given.then_some(FILE_MODE)),
            user: owner(self.node.user),
            group: owner(self.node.group),
            content,
            origin: self.node.origin,
        }
    }
}

impl LinkPart {
    fn override_with(&mut self, above: Self) {
        self.node.override_with(above.node);
        self.target = above.target;
        keep(&mut self.hard, above.hard);
    }
}

impl UnitPart {
    fn override_with(&mut self, above: Self) {
        keep(&mut self.contents, above.contents);
        keep(&mut self.enabled, above.enabled);
        keep(&mut self.mask, above.mask);
        merge_maps(&mut self.drop_ins, above.drop_ins, keep);
        self.origin = above.origin;
    }
}

/// Fills in the defaults.
fn finish(parts: PartialConfig) -> MachineConfig {
    let overwrite = overwrite(&parts);
    MachineConfig {
        name: String::new(),
        files: values(parts.files, FilePart::finish),
        directories: values(parts.directories, |part| Directory {
            mode: part.mode,
            user: part.user,
            group: part.group,
            origin: part.origin,
        }),
        links: values(parts.links, |part| Link {
            target: part.target,
            hard: part.hard.unwrap_or(false),
            user: part.node.user.unwrap_or(Owner::ROOT),
            group: part.node.group.unwrap_or(Owner::ROOT),
            origin: part.node.origin,
        }),
        units: values(parts.units, |part| Unit {
            // Exports represent absent contents by an empty text.
            contents: part.contents.filter(|text| !text.is_empty()),
            dropins: values(part.drop_ins, Option::unwrap_or_default),
            enabled: part.enabled,
            mask: part.mask == Some(true),
            unmask: part.mask == Some(false),
            origin: part.origin,
        }),
        users: values(parts.users, User::settled),
        groups: values(parts.groups, Group::settled),
        kernel_arguments: parts.kernel_arguments,
        os_image_url: parts.os_image_url,
        extensions_image: parts.extensions_image,
        disk_layout: parts.disk_layout,
        extensions: parts.extensions,
        kernel_type: parts.kernel_type.map(|(kind, _)| kind),
        fips: parts.fips,
        os_origins: EntryOrigins(parts.os_origins),
        release: parts.release,
        before: ClusterBaseline::default(),
        notes: CreationNotes::default(),
        overwrite,
    }
}

/// An entry may replace an object of another kind if `overwrite` is true. A file without contents
/// never may: it only changes an existing file.
fn overwrite(parts: &PartialConfig) -> Overwrite {
    let may = |node: &NodePart| node.overwrite == Some(true);
    let files = parts.files.iter();
    let files = files.filter(|(_, file)| file.content.is_none() || !may(&file.node));
    let links = parts.links.iter().filter(|(_, link)| !may(&link.node));
    let paths = files
        .map(|(path, _)| path)
        .chain(links.map(|(path, _)| path));
    Overwrite::Except(paths.cloned().collect())
}

fn values<K: Ord, V, W>(map: BTreeMap<K, V>, to: impl Fn(V) -> W) -> BTreeMap<K, W> {
    map.into_iter()
        .map(|(key, value)| (key, to(value)))
        .collect()
}
