//! Determines whether a change of `registries.conf` can alter which image a name resolves to.
//!
//! OpenShift's rule (machine-config-operator, `isSafeContainerRegistryConfChanges`): only changes
//! that cannot do so are made effective without a drain. docs/policies.md lists the cases that
//! drain here and not with OpenShift's daemon. The file format is containers-registries.conf(5),
//! version 2.

use std::collections::{BTreeMap, btree_map::Entry};

use toml_edit::{DocumentMut, Item, TableLike};

/// The file that the rule is about.
pub(in super::super) const PATH: &str = "/etc/containers/registries.conf";

/// The settings that affect image names, as far as the rule needs them.
#[derive(Debug, PartialEq)]
struct RegistriesConf {
    /// The registries to search for short names, in this order.
    search: Vec<String>,
    /// By prefix, or by location if there is no prefix. A name that occurs twice has a first and a
    /// last entry: which of them a runtime uses depends on whether it reads drop-ins.
    registries: BTreeMap<String, [RegistryEntry; 2]>,
    /// All settings that the rule does not evaluate, normalised.
    rest: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq)]
struct RegistryEntry {
    location: String,
    blocked: bool,
    insecure: bool,
    digest_only: bool,
    /// By location.
    mirrors: BTreeMap<String, Mirror>,
    /// Mirrors are tried in this order.
    order: Vec<String>,
    rest: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Mirror {
    /// The mirror is used only for names with a digest, which have the same content in every
    /// location.
    digest_only: bool,
    rest: BTreeMap<String, String>,
}

/// Whether every name resolves to the same image after the change. Returns false if a file cannot
/// be parsed.
pub fn same_images(old: &str, new: &str) -> bool {
    match (read(old), read(new)) {
        (Some(old), Some(new)) => new.means_the_same_as(&old),
        _ => false,
    }
}

/// Why the text is not valid TOML, and the line, from 1; none if it is valid.
pub(in super::super) fn fault(text: &str) -> Option<(usize, String)> {
    let error = text.parse::<DocumentMut>().err()?;
    let start = error.span().map_or(0, |span| span.start);
    let before = text.bytes().take(start);
    let line = before.filter(|byte| *byte == b'\n').count() + 1;
    Some((line, error.message().replace('\n', ", ")))
}

/// The new registries that take names from a more general one, which has other settings than to pull the same images
/// from the place of the name: the new name, and the old one. The longest prefix wins.
pub(in super::super) fn taken_names(old: &str, new: &str) -> Vec<(String, String)> {
    let (Some(old), Some(new)) = (read(old), read(new)) else {
        return Vec::new();
    };
    let added = new.registries.keys();
    let added = added.filter(|name| !old.registries.contains_key(*name));
    let taken = added.filter_map(|name| {
        let general = old.registries.iter().filter(|(one, _)| covers(one, name));
        let (one, both) = general.max_by_key(|(one, _)| one.len())?;
        let differs = |entry: &RegistryEntry| {
            let by_tag = entry.mirrors.values().any(|mirror| !mirror.digest_only);
            let elsewhere = entry.location != *one || entry.blocked || entry.insecure;
            elsewhere || by_tag || !entry.rest.is_empty()
        };
        let differs = both.iter().any(differs);
        differs.then(|| (name.clone(), one.clone()))
    });
    taken.collect()
}

/// Whether a registry of this prefix also has the images of `name`, which is longer.
fn covers(prefix: &str, name: &str) -> bool {
    if let Some(domain) = prefix.strip_prefix('*') {
        let host = name.split('/').next().unwrap_or_default();
        return name != prefix && host.ends_with(domain);
    }
    let rest = name.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.starts_with(['/', ':', '@']))
}

impl RegistriesConf {
    fn means_the_same_as(&self, old: &Self) -> bool {
        let kept = |(name, [first, last]): (&String, &[RegistryEntry; 2])| {
            let now = self.registries.get(name);
            now.is_some_and(|[now_first, now_last]| {
                now_first.means_the_same_as(first) && now_last.means_the_same_as(last)
            })
        };
        let new = |(name, both): (&String, &[RegistryEntry; 2])| {
            old.registries.contains_key(name) || both.iter().all(|one| one.is_harmless_under(name))
        };
        self.search.starts_with(&old.search)
            && self.rest == old.rest
            && old.registries.iter().all(kept)
            && self.registries.iter().all(new)
    }
}

impl RegistryEntry {
    fn means_the_same_as(&self, old: &Self) -> bool {
        let same = |(location, mirror): (&String, &Mirror)| {
            let now = self.mirrors.get(location);
            // A change may restrict the names that use a mirror, but not extend them.
            now.is_some_and(|now| match mirror.digest_only {
                true => now.digest_only,
                false => now.rest == mirror.rest,
            })
        };
        let new = |(location, mirror): (&String, &Mirror)| {
            old.mirrors.contains_key(location) || mirror.digest_only
        };
        self.location == old.location
            && self.blocked == old.blocked
            && self.insecure == old.insecure
            && self.rest == old.rest
            && old.mirrors.iter().all(same)
            && self.mirrors.iter().all(new)
            && self.is_asked_in_the_order_of(old)
    }

    /// The order of mirrors for digests does not matter: all of them have the same content.
    fn is_asked_in_the_order_of(&self, old: &Self) -> bool {
        let by_tag = |location: &&String| !self.mirrors[*location].digest_only;
        let now = self.order.iter().filter(by_tag);
        now.eq(old.order.iter().filter(by_tag))
    }

    /// Whether a registry is new and has only mirrors for digests.
    fn is_harmless_under(&self, name: &str) -> bool {
        self.location == name
            && !self.blocked
            && !self.insecure
            && self.rest.is_empty()
            && (self.digest_only || !self.mirrors.is_empty())
            && self.mirrors.values().all(|mirror| mirror.digest_only)
    }
}

impl Mirror {
    /// Merges two entries of one location: it is used for the names that either entry allows.
    fn join(&mut self, other: Self) {
        self.digest_only &= other.digest_only;
        for (key, value) in other.rest {
            let known = self.rest.entry(key).or_default();
            if *known != value {
                known.push_str(&value);
            }
        }
    }
}

fn read(text: &str) -> Option<RegistriesConf> {
    let document: DocumentMut = text.parse().ok()?;
    let mut all = RegistriesConf {
        search: Vec::new(),
        registries: BTreeMap::new(),
        rest: BTreeMap::new(),
    };
    for (key, item) in document.iter() {
        match key {
            "unqualified-search-registries" => {
                let names = item.as_array()?.iter();
                all.search = names
                    .map(|name| name.as_str().map(str::to_owned))
                    .collect::<Option<_>>()?;
            }
            "registry" => {
                for table in tables(item)? {
                    let (name, registry) = registry(table)?;
                    match all.registries.entry(name) {
                        Entry::Vacant(free) => drop(free.insert([registry.clone(), registry])),
                        Entry::Occupied(mut known) => known.get_mut()[1] = registry,
                    }
                }
            }
            _ => keep(&mut all.rest, key, item),
        }
    }
    Some(all)
}

fn registry(table: &dyn TableLike) -> Option<(String, RegistryEntry)> {
    let (mut prefix, mut location) = (None, None);
    let (mut blocked, mut insecure, mut digest_only) = (false, false, false);
    let (mut listed, mut rest) = (None, BTreeMap::new());
    for (key, item) in table.iter() {
        match key {
            "prefix" => prefix = text(item)?,
            "location" => location = text(item)?,
            "blocked" => blocked = item.as_bool()?,
            "insecure" => insecure = item.as_bool()?,
            "mirror-by-digest-only" => digest_only = item.as_bool()?,
            "mirror" => listed = Some(tables(item)?),
            _ => keep(&mut rest, key, item),
        }
    }
    let name = prefix.or_else(|| location.clone())?;
    let (mut mirrors, mut order) = (BTreeMap::new(), Vec::new());
    for table in listed.into_iter().flatten() {
        let (location, mirror) = mirror(table, digest_only)?;
        match mirrors.entry(location) {
            Entry::Vacant(free) => {
                order.push(free.key().clone());
                free.insert(mirror);
            }
            Entry::Occupied(mut known) => known.get_mut().join(mirror),
        }
    }
    let registry = RegistryEntry {
        location: location.unwrap_or_else(|| name.clone()),
        blocked,
        insecure,
        digest_only,
        mirrors,
        order,
        rest,
    };
    Some((name, registry))
}

fn mirror(table: &dyn TableLike, by_digest: bool) -> Option<(String, Mirror)> {
    let (mut location, mut digest_only) = (None, by_digest);
    let mut rest = BTreeMap::new();
    for (key, item) in table.iter() {
        match (key, item.as_str()) {
            ("location", _) => location = text(item)?,
            ("pull-from-mirror", Some("")) => {}
            ("pull-from-mirror", Some("digest-only")) => digest_only = true,
            ("pull-from-mirror", Some("all")) => digest_only = false,
            ("pull-from-mirror", _) => {
                digest_only = false;
                keep(&mut rest, key, item);
            }
            _ => keep(&mut rest, key, item),
        }
    }
    Some((location?, Mirror { digest_only, rest }))
}

/// A string value; an empty one counts as absent.
#[expect(
    clippy::option_option,
    reason = "the outer one is a value of another type"
)]
fn text(item: &Item) -> Option<Option<String>> {
    let text = item.as_str()?;
    Some((!text.is_empty()).then(|| text.to_owned()))
}

/// Stores a value in normalised form, without comments and quotes. Empty and false values have no
/// effect and are dropped.
fn keep(rest: &mut BTreeMap<String, String>, key: &str, item: &Item) {
    if let Some(value) = value(item) {
        rest.insert(key.to_owned(), value);
    }
}

fn value(item: &Item) -> Option<String> {
    if let Some(table) = item.as_table_like() {
        let fields = table.iter();
        let fields: BTreeMap<_, _> = fields
            .filter_map(|(key, item)| Some((key, value(item)?)))
            .collect();
        return (!fields.is_empty()).then(|| format!("{fields:?}"));
    }
    if let Some(items) = item.as_array() {
        let items: Vec<_> = items
            .iter()
            .map(|item| value(&Item::Value(item.clone())))
            .collect();
        return (!items.is_empty()).then(|| format!("{items:?}"));
    }
    match (item.as_str(), item.as_bool()) {
        (Some(""), _) | (_, Some(false)) => None,
        (Some(text), _) => Some(format!("{text:?}")),
        (_, Some(true)) => Some("true".to_owned()),
        _ => {
            let integer = item.as_integer().map(|number| number.to_string());
            let float = || item.as_float().map(|number| number.to_string());
            let date = || item.as_datetime().map(ToString::to_string);
            integer.or_else(float).or_else(date)
        }
    }
}

/// Parses `[[x]]`, or a list of inline tables.
fn tables(item: &Item) -> Option<Vec<&dyn TableLike>> {
    if let Some(tables) = item.as_array_of_tables() {
        return Some(tables.iter().map(|table| table as &dyn TableLike).collect());
    }
    let values = item.as_array()?.iter();
    values
        .map(|value| value.as_inline_table().map(|table| table as &dyn TableLike))
        .collect()
}

#[cfg(test)]
mod tests;
