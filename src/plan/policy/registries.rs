//! Whether a change of `registries.conf` can alter which image a name means.
//!
//! OpenShift's rule (machine-config-operator, `isSafeContainerRegistryConfChanges`): only what cannot may be
//! taken up without a drain. The file's form is containers-registries.conf(5), version 2.

use std::collections::BTreeMap;

use toml_edit::{DocumentMut, Item, TableLike};

/// What an image name goes through, as far as the rule asks.
#[derive(Debug, PartialEq)]
struct Registries {
    /// Where short names are looked for, in this order.
    search: Vec<String>,
    /// By prefix, or by location where there is none.
    registries: BTreeMap<String, Registry>,
    /// All that the rule does not know, as it is written.
    rest: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq)]
struct Registry {
    location: String,
    blocked: bool,
    insecure: bool,
    /// By location.
    mirrors: BTreeMap<String, Mirror>,
    /// Mirrors are asked in this order.
    order: Vec<String>,
    rest: BTreeMap<String, String>,
}

#[derive(Debug, PartialEq)]
struct Mirror {
    /// Only names with a digest go there, and a digest is one content wherever it lies.
    digest_only: bool,
    rest: BTreeMap<String, String>,
}

/// Whether every name means the same image after the change. What cannot be read may mean anything.
pub fn same_images(old: &str, new: &str) -> bool {
    match (read(old), read(new)) {
        (Some(old), Some(new)) => new.means_the_same_as(&old),
        _ => false,
    }
}

impl Registries {
    fn means_the_same_as(&self, old: &Self) -> bool {
        let kept = |(name, registry): (&String, &Registry)| {
            let now = self.registries.get(name);
            now.is_some_and(|now| now.means_the_same_as(registry))
        };
        let new = |(name, registry): (&String, &Registry)| {
            old.registries.contains_key(name) || registry.is_harmless_under(name)
        };
        self.search.starts_with(&old.search)
            && self.rest == old.rest
            && old.registries.iter().all(kept)
            && self.registries.iter().all(new)
    }
}

impl Registry {
    fn means_the_same_as(&self, old: &Self) -> bool {
        let same = |(location, mirror): (&String, &Mirror)| {
            let now = self.mirrors.get(location);
            // Fewer names may go there, never more.
            now.is_some_and(|now| {
                now.rest == mirror.rest && (now.digest_only || !mirror.digest_only)
            })
        };
        let new = |(location, mirror): (&String, &Mirror)| {
            old.mirrors.contains_key(location) || mirror.digest_only
        };
        let (mut now, known) = (self.order.iter(), &old.order);
        let in_order = known.iter().all(|known| now.any(|one| one == known));
        self.location == old.location
            && self.blocked == old.blocked
            && self.insecure == old.insecure
            && self.rest == old.rest
            && in_order
            && old.mirrors.iter().all(same)
            && self.mirrors.iter().all(new)
    }

    /// A registry that nobody spoke of before, and of which only mirrors for digests are said.
    fn is_harmless_under(&self, name: &str) -> bool {
        self.location == name
            && !self.blocked
            && !self.insecure
            && self.rest.is_empty()
            && !self.mirrors.is_empty()
            && self.mirrors.values().all(|mirror| mirror.digest_only)
    }
}

fn read(text: &str) -> Option<Registries> {
    let document: DocumentMut = text.parse().ok()?;
    let mut all = Registries {
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
                    // Said twice, nobody can tell which one counts.
                    if all.registries.insert(name, registry).is_some() {
                        return None;
                    }
                }
            }
            _ => {
                all.rest.insert(key.to_owned(), written(item));
            }
        }
    }
    Some(all)
}

fn registry(table: &dyn TableLike) -> Option<(String, Registry)> {
    let (mut prefix, mut location) = (None, None);
    let (mut blocked, mut insecure, mut by_digest) = (false, false, false);
    let (mut mirrors, mut rest) = (None, BTreeMap::new());
    for (key, item) in table.iter() {
        match key {
            "prefix" => prefix = Some(item.as_str()?.to_owned()),
            "location" => location = Some(item.as_str()?.to_owned()),
            "blocked" => blocked = item.as_bool()?,
            "insecure" => insecure = item.as_bool()?,
            "mirror-by-digest-only" => by_digest = item.as_bool()?,
            "mirror" => mirrors = Some(tables(item)?),
            _ => {
                rest.insert(key.to_owned(), written(item));
            }
        }
    }
    let name = prefix.clone().or_else(|| location.clone())?;
    let mut registry = Registry {
        location: location.unwrap_or_else(|| name.clone()),
        blocked,
        insecure,
        mirrors: BTreeMap::new(),
        order: Vec::new(),
        rest,
    };
    for table in mirrors.into_iter().flatten() {
        let (location, mirror) = mirror(table, by_digest)?;
        registry.order.push(location.clone());
        if registry.mirrors.insert(location, mirror).is_some() {
            return None;
        }
    }
    Some((name, registry))
}

fn mirror(table: &dyn TableLike, by_digest: bool) -> Option<(String, Mirror)> {
    let (mut location, mut digest_only) = (None, by_digest);
    let mut rest = BTreeMap::new();
    for (key, item) in table.iter() {
        match key {
            "location" => location = Some(item.as_str()?.to_owned()),
            "pull-from-mirror" => digest_only = item.as_str()? == "digest-only",
            _ => {
                rest.insert(key.to_owned(), written(item));
            }
        }
    }
    Some((location?, Mirror { digest_only, rest }))
}

/// `[[x]]`, or a list of tables in one line.
fn tables(item: &Item) -> Option<Vec<&dyn TableLike>> {
    if let Some(tables) = item.as_array_of_tables() {
        return Some(tables.iter().map(|table| table as &dyn TableLike).collect());
    }
    let values = item.as_array()?.iter();
    values
        .map(|value| value.as_inline_table().map(|table| table as &dyn TableLike))
        .collect()
}

fn written(item: &Item) -> String {
    format!("{item:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = r#"
        unqualified-search-registries = ["registry.one", "registry.two"]
        short-name-mode = "enforcing"
        [[registry]]
        prefix = "example.org/team"
        location = "example.org/team"
        mirror-by-digest-only = true
        [[registry.mirror]]
        location = "mirror.one/team"
        [[registry]]
        location = "example.net"
        [[registry.mirror]]
        location = "mirror.two"
        [[registry.mirror]]
        location = "mirror.three"
        insecure = true
    "#;

    const DIGESTS: &str = "[[registry]]\nlocation = \"new.io\"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"m\"";

    /// The cases of OpenShift's `TestIsDrainRequired`, and what the form allows beside them.
    #[test]
    fn only_what_cannot_change_an_image_is_safe() {
        let search = r#"["registry.one", "registry.two"]"#;
        let more = |text: &str| format!("{OLD}\n{text}");
        let safe = [
            OLD.to_owned(),
            format!("# a word\n{OLD}"),
            OLD.replace(
                search,
                r#"["registry.one", "registry.two", "registry.three"]"#,
            ),
            more(DIGESTS),
            more("[[registry.mirror]]\nlocation = \"m\"\npull-from-mirror = \"digest-only\""),
            OLD.replace(
                "location = \"mirror.two\"",
                "location = \"mirror.two\"\npull-from-mirror = \"digest-only\"",
            ),
        ];
        for new in safe {
            assert!(same_images(OLD, &new), "{new}");
        }
        let unsafe_ones = [
            OLD.replace(search, r#"["registry.two", "registry.one"]"#),
            OLD.replace(search, r#"["registry.one"]"#),
            OLD.replace("enforcing", "permissive"),
            OLD.replace("prefix = \"example.org/team\"", "prefix = \"example.org\""),
            OLD.replace(
                "location = \"example.org/team\"",
                "location = \"example.org/other\"",
            ),
            OLD.replace("mirror-by-digest-only = true", ""),
            OLD.replace("location = \"mirror.two\"", "location = \"mirror.four\""),
            OLD.replace("insecure = true", ""),
            OLD.replace(
                "location = \"example.net\"",
                "location = \"example.net\"\nblocked = true",
            ),
            OLD.replace(
                "location = \"example.net\"",
                "location = \"example.net\"\ninsecure = true",
            ),
            more("[[registry.mirror]]\nlocation = \"m\""),
            more("[[registry]]\nlocation = \"new.io\""),
            more(&DIGESTS.replace("mirror-by-digest-only = true", "")),
            more(&DIGESTS.replace(
                "mirror-by-digest-only = true",
                "mirror-by-digest-only = true\nblocked = true",
            )),
            OLD.replace("mirror.two", "x")
                .replace("mirror.three", "mirror.two")
                .replace("\"x\"", "\"mirror.three\""),
            more("[[registry]]\nlocation = \"example.net\""),
            String::new(),
            "no = = toml".to_owned(),
        ];
        for new in unsafe_ones {
            assert!(!same_images(OLD, &new), "{new}");
        }
        assert!(
            !same_images("no = = toml", OLD),
            "nobody knows what it meant"
        );
    }
}
