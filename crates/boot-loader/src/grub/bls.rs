//! Menu entries from files of the Boot Loader Specification, as Fedora's command `blscfg` makes them.

use std::{cmp::Ordering, collections::BTreeMap};

use super::{
    boot::{BootError, GrubFiles},
    expansion::Variables,
    menu::MenuEntry,
    script::{self, Block},
};

/// The directory of the files, unless the variable `blsdir` names another one.
const ENTRIES_DIRECTORY: &str = "/loader/entries";

const SUFFIX: &str = ".conf";

/// The entries in the order of the menu: the newest version first.
pub(super) fn entries(
    files: &dyn GrubFiles,
    variables: &Variables,
) -> Result<Vec<MenuEntry>, BootError> {
    let directory = match variables.get("blsdir") {
        "" => ENTRIES_DIRECTORY,
        directory => directory,
    };
    let mut names: Vec<String> = files.list(directory);
    names.retain(|name| name.ends_with(SUFFIX) && !name.starts_with('.'));
    let stem = |name: &str| name.strip_suffix(SUFFIX).unwrap_or(name).to_owned();
    names.sort_by(|one, other| compare_packages(&stem(other), &stem(one)));
    let mut entries = Vec::new();
    for name in names {
        let path = format!("{directory}/{name}");
        let text = files.text(&path);
        let text = text.ok_or_else(|| BootError::Missing(path.clone()))?;
        entries.extend(entry(&path, stem(&name), &text, variables)?);
    }
    Ok(entries)
}

/// Makes one entry; `None` if the file starts no kernel.
fn entry(
    path: &str,
    id: String,
    text: &str,
    variables: &Variables,
) -> Result<Option<MenuEntry>, BootError> {
    let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text
        .lines()
        .map(|line| line.trim_start_matches([' ', '\t']))
    {
        if line.starts_with('#') {
            continue;
        }
        // Versions differ in whether such a line ends the file.
        let (key, value) = line
            .split_once([' ', '\t'])
            .ok_or_else(|| BootError::BlsEntry(path.to_owned(), "a line without a value"))?;
        let value = value.trim_start_matches([' ', '\t']);
        values.entry(key).or_default().push(value);
    }
    let first = |key: &str| values.get(key).and_then(|all| all.first()).copied();
    let Some(kernel) = first("linux") else {
        return Ok(None);
    };
    if values.get("options").is_some_and(|all| all.len() > 1) {
        return Err(BootError::BlsEntry(
            path.to_owned(),
            "several lines of options",
        ));
    }
    let options = first("options").unwrap_or_else(|| variables.get("default_kernelopts"));
    let options = expanded(options, variables);
    let mut source =
        format!("load_video\nset gfxpayload=keep\ninsmod gzio\nlinux {kernel} {options}\n");
    if let Some(initrds) = values.get("initrd") {
        source.push_str(&format!("initrd {}\n", initrds.join(" ")));
    }
    let commands = script::parse(&source).map_err(|source| BootError::Script {
        path: path.to_owned(),
        source,
    })?;
    // With `$grub_users` and no such variable, everybody may boot the entry.
    let users = first("grub_users").map(|users| expanded(users, variables));
    Ok(Some(MenuEntry {
        is_restricted: users.is_some_and(|users| !users.trim().is_empty()),
        title: first("title").unwrap_or(kernel).to_owned(),
        id: Some(id),
        body: Block { commands, source },
        ..MenuEntry::default()
    }))
}

/// Replaces `$NAME` by the value of the variable, also within quotes.
fn expanded(text: &str, variables: &Variables) -> String {
    let mut parts = text.split('$');
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (name, rest) = part.split_at(end.unwrap_or(part.len()));
        all.push_str(variables.get(name));
        all.push_str(rest);
    }
    all
}

/// Compares names of the form NAME-VERSION-RELEASE.
fn compare_packages(one: &str, other: &str) -> Ordering {
    let [one, other] = [one, other].map(split_package);
    let parts = one.into_iter().zip(other);
    parts.fold(Ordering::Equal, |so_far, (one, other)| {
        so_far.then_with(|| compare_versions(one, other))
    })
}

/// Splits a name at its last two hyphens. Without them, the first parts are there and the last ones are empty.
fn split_package(text: &str) -> [&str; 3] {
    match text.rsplit_once('-') {
        None => [text, "", ""],
        Some((rest, release)) => match rest.rsplit_once('-') {
            None => [rest, release, ""],
            Some((name, version)) => [name, version, release],
        },
    }
}

/// Compares versions as rpm does: by their parts of digits and of letters.
fn compare_versions(mut one: &str, mut other: &str) -> Ordering {
    loop {
        let is_separator = |c: char| !c.is_ascii_alphanumeric() && c != '~';
        one = one.trim_start_matches(is_separator);
        other = other.trim_start_matches(is_separator);
        match (one.strip_prefix('~'), other.strip_prefix('~')) {
            (Some(rest), Some(other_rest)) => {
                (one, other) = (rest, other_rest);
                continue;
            }
            (Some(_), None) => return Ordering::Less,
            (None, Some(_)) => return Ordering::Greater,
            (None, None) => {}
        }
        if one.is_empty() || other.is_empty() {
            return one.len().cmp(&other.len());
        }
        let is_number = one.starts_with(|c: char| c.is_ascii_digit());
        let in_part = |c: char| match is_number {
            true => c.is_ascii_digit(),
            false => c.is_ascii_alphabetic(),
        };
        let split = |text: &'_ str| text.find(|c: char| !in_part(c)).unwrap_or(text.len());
        let (part, rest) = one.split_at(split(one));
        let (other_part, other_rest) = other.split_at(split(other));
        let order = match (is_number, other_part.is_empty()) {
            // A number is newer than letters.
            (true, true) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (true, false) => {
                let [part, other] = [part, other_part].map(|part| part.trim_start_matches('0'));
                part.len().cmp(&other.len()).then_with(|| part.cmp(other))
            }
            (false, false) => part.cmp(other_part),
        };
        if order != Ordering::Equal {
            return order;
        }
        (one, other) = (rest, other_rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_ordered_as_packages() {
        for (lower, higher) in [
            ("ostree-1", "ostree-2"),
            ("ostree-2", "ostree-10"),
            ("ostree-1-fedora", "ostree-2-fedora"),
            ("abc-6.1.5-201.fc40", "abc-6.1.10-1.fc40"),
            ("abc-6.1.0~rc1-1", "abc-6.1.0-1"),
            ("abc-0-rescue", "abc-6.1.0-1"),
            ("abc-a-1", "abc-1-1"),
        ] {
            assert_eq!(
                compare_packages(lower, higher),
                Ordering::Less,
                "{lower} {higher}"
            );
            assert_eq!(
                compare_packages(higher, lower),
                Ordering::Greater,
                "{higher} {lower}"
            );
        }
        assert_eq!(compare_packages("a-1-2", "a-01-2"), Ordering::Equal);
    }
}
