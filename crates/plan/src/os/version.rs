//! Compares two versions.

use std::cmp::Ordering;

/// Whether `wanted` is certainly lower than `installed`.
///
/// Both must be numbers separated by dots, optionally followed by `-` and more text, like
/// OpenShift's releases (`4.16.0-rc.1`) and the images of Fedora CoreOS and its derivatives
/// (`416.94.202405291527-0`). Only the components that both have are compared, because os-release
/// contains `4.16` on a host with 4.16.3; a pre-release (`-rc.1`) is lower than its release. For
/// texts of another form the result is false.
pub fn is_lower(wanted: &str, installed: &str) -> bool {
    let (Some(wanted), Some(installed)) =
        (ParsedVersion::read(wanted), ParsedVersion::read(installed))
    else {
        return false;
    };
    wanted.compare(&installed) == Ordering::Less
}

struct ParsedVersion<'a> {
    numbers: Vec<u64>,
    rest: Vec<&'a str>,
}

impl<'a> ParsedVersion<'a> {
    fn read(text: &'a str) -> Option<Self> {
        let text = text.trim();
        let text = text.strip_prefix('v').unwrap_or(text);
        // Build metadata does not affect precedence (semver 2.0, 10).
        let text = text.split_once('+').map_or(text, |(version, _)| version);
        let (numbers, rest) = text.split_once('-').unwrap_or((text, ""));
        let number = |part: &str| part.parse().ok();
        Some(Self {
            numbers: numbers.split('.').map(number).collect::<Option<_>>()?,
            rest: rest.split(['.', '-']).filter(|p| !p.is_empty()).collect(),
        })
    }

    fn compare(&self, other: &Self) -> Ordering {
        for (one, two) in self.numbers.iter().zip(&other.numbers) {
            if one != two {
                return one.cmp(two);
            }
        }
        if self.numbers.len() != other.numbers.len() {
            return Ordering::Equal;
        }
        match (self.rest.is_empty(), other.rest.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => self.compare_rest(other),
        }
    }

    fn compare_rest(&self, other: &Self) -> Ordering {
        for (one, two) in self.rest.iter().zip(&other.rest) {
            let order = match (one.parse::<u64>(), two.parse::<u64>()) {
                (Ok(one), Ok(two)) => one.cmp(&two),
                _ => one.cmp(two),
            };
            if order.is_ne() {
                return order;
            }
        }
        self.rest.len().cmp(&other.rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_common_components() {
        for (wanted, installed, lower) in [
            ("4.15.9", "4.16", true),
            ("4.16.3", "4.16", false),
            ("4.9.50", "4.16.1", true),
            ("4.16.2", "4.16.10", true),
            ("4.16.10", "4.16.2", false),
            ("4.16.0-rc.1", "4.16.0", true),
            ("4.16.0", "4.16.0-rc.1", false),
            ("4.16.0-rc.2", "4.16.0-rc.10", true),
            ("416.94.202405291527-0", "416.94.202406250000-0", true),
            ("416.94.202405291527-1", "416.94.202405291527-0", false),
            ("v4.15.0", "4.16.0", true),
            ("4.16.0+one", "4.16.0+two", false),
            ("stable", "4.16", false),
            ("4.15", "rawhide", false),
            ("", "4.16", false),
        ] {
            assert_eq!(is_lower(wanted, installed), lower, "{wanted} {installed}");
        }
    }
}
