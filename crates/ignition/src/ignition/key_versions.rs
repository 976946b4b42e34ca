//! Provides the Ignition versions that each key is valid in.

use super::super::ignition_dialect::IgnitionDialect;

/// One line for each key: the object it belongs to, the key, and the minor versions of Ignition 2
/// and 3 that support it. `tests/oracle/ignition` generates it from the types of the Ignition
/// library.
const KEY_TABLE: &str = include_str!("keys.txt");

/// The versions that support a key at some place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct KeyVersions {
    two: Option<(u8, u8)>,
    three: Option<(u8, u8)>,
}

/// The versions that support `key` in the object at `place`, such as `storage.files[]`.
pub(in super::super) fn versions(place: &str, key: &str) -> Option<KeyVersions> {
    let place = if place.is_empty() { "." } else { place };
    let line = KEY_TABLE.lines().find_map(|line| {
        let rest = line.strip_prefix(place)?.strip_prefix(' ')?;
        rest.strip_prefix(key)?.strip_prefix(' ')
    })?;
    let (two, three) = line.split_once(' ')?;
    let span = |text: &str| {
        let (first, last) = text.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    Some(KeyVersions {
        two: span(two),
        three: span(three),
    })
}

impl KeyVersions {
    /// Whether they contain the version of a document.
    pub(in super::super) fn contain(self, dialect: IgnitionDialect) -> bool {
        let (span, minor) = match dialect {
            IgnitionDialect::Two(minor) => (self.two, minor),
            IgnitionDialect::Three(minor) => (self.three, minor),
            IgnitionDialect::Butane(_) => return false,
        };
        span.is_some_and(|(first, last)| (first..=last).contains(&minor))
    }

    /// Whether another minor version of the same major version supports the key.
    pub(in super::super) fn of_same_major(self, dialect: IgnitionDialect) -> bool {
        match dialect {
            IgnitionDialect::Two(_) => self.two.is_some(),
            IgnitionDialect::Three(_) => self.three.is_some(),
            IgnitionDialect::Butane(_) => false,
        }
    }
}

impl std::fmt::Display for KeyVersions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let spans = [(2, self.two), (3, self.three)];
        let mut separator = "";
        for (major, span) in spans {
            if let Some((first, last)) = span {
                write!(f, "{separator}{major}.{first}.0")?;
                if first != last {
                    write!(f, " to {major}.{last}.0")?;
                }
                separator = " and ";
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_a_key_depend_on_its_location() {
        let shown = |place, key| versions(place, key).map(|known| known.to_string());
        let both = "2.1.0 to 2.4.0 and 3.0.0 to 3.6.0";
        assert_eq!(shown("storage", "links").as_deref(), Some(both));
        assert_eq!(shown("", "networkd").as_deref(), Some("2.0.0 to 2.4.0"));
        assert_eq!(shown("storage", "link"), None);
        assert_eq!(shown("storage.files", "path"), None);
        let luks = versions("storage", "luks").unwrap();
        assert!(
            !luks.contain(IgnitionDialect::Three(1)) && luks.contain(IgnitionDialect::Three(2))
        );
        assert!(
            luks.of_same_major(IgnitionDialect::Three(1))
                && !luks.of_same_major(IgnitionDialect::Two(2))
        );
    }
}
