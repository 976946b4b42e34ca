//! Tests the rule with the cases of OpenShift's tests.

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

/// The cases of OpenShift's `TestIsDrainRequired`, and other cases that the file format allows.
#[test]
fn only_registry_changes_that_cannot_change_an_image_skip_the_drain() {
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
        "the earlier meaning is unknown"
    );
}

/// The file that OpenShift's controller writes for an ImageDigestMirrorSet: fields without effect
/// are present and empty.
const BY_CONTROLLER: &str = r#"
    unqualified-search-registries = ["registry.one"]
    short-name-mode = ""
    additional-layer-store-auth-helper = ""
    [[registry]]
      prefix = ""
      location = "quay.io/one"
      mirror-by-digest-only = true
      [[registry.mirror]]
        location = "mirror.local/one"
"#;

#[test]
fn empty_and_duplicate_registry_entries_are_ignored() {
    let another = BY_CONTROLLER.split_once("[[registry]]").unwrap().1;
    let another = format!("[[registry]]{}", another.replace("/one", "/two"));
    let bare = BY_CONTROLLER.replace("prefix = \"\"", "");
    let bare = bare.replace("short-name-mode = \"\"", "credential-helpers = []");
    let twice = |text: &str| {
        text.replace("[[registry.mirror]]\n        location = \"mirror.local/one\"\n", "[[registry.mirror]]\nlocation = \"mirror.local/one\"\n[[registry.mirror]]\nlocation = \"mirror.local/one\"\n")
    };
    let safe = [
        (
            BY_CONTROLLER.to_owned(),
            format!("{BY_CONTROLLER}{another}"),
        ),
        (
            format!("{BY_CONTROLLER}{another}{another}"),
            format!("{BY_CONTROLLER}{another}"),
        ),
        (BY_CONTROLLER.to_owned(), format!("{bare}{another}")),
        (BY_CONTROLLER.to_owned(), twice(BY_CONTROLLER)),
        (bare, BY_CONTROLLER.to_owned()),
        (
            "short-name-mode = \"enforcing\"  # a word".to_owned(),
            "short-name-mode = 'enforcing'".to_owned(),
        ),
    ];
    for (old, new) in safe {
        assert!(same_images(&old, &new), "{old}\nto\n{new}");
    }
    let blocked = another.replace("prefix = \"\"", "blocked = true");
    let drains = [
        // The runtime decides which of two entries is effective, so neither may change.
        (
            format!("{BY_CONTROLLER}{another}"),
            format!("{BY_CONTROLLER}{blocked}{another}"),
        ),
        (
            format!("{BY_CONTROLLER}{another}"),
            format!("{BY_CONTROLLER}{another}{blocked}"),
        ),
        (
            format!("{BY_CONTROLLER}{another}"),
            BY_CONTROLLER.to_owned(),
        ),
    ];
    for (old, new) in drains {
        assert!(!same_images(&old, &new), "{old}\nto\n{new}");
    }
}

#[test]
fn a_new_registry_below_another_one_takes_its_names() {
    let digests = |name: &str| {
        format!(
            "[[registry]]\nlocation = \"{name}\"\nmirror-by-digest-only = true\n[[registry.mirror]]\nlocation = \"m\"\n"
        )
    };
    let new = digests("quay.io/a/sub");
    for (old, taken) in [
        (
            "[[registry]]\nlocation = \"quay.io/a\"\nblocked = true\n",
            Some("quay.io/a"),
        ),
        (
            "[[registry]]\nlocation = \"quay.io/a\"\ninsecure = true\n",
            Some("quay.io/a"),
        ),
        (
            "[[registry]]\nlocation = \"quay.io/a\"\n[[registry.mirror]]\nlocation = \"m\"\n",
            Some("quay.io/a"),
        ),
        (
            "[[registry]]\nprefix = \"*.io\"\nlocation = \"other.org\"\n",
            Some("*.io"),
        ),
        // The same images, or other names.
        (&digests("quay.io/a"), None),
        (
            "[[registry]]\nlocation = \"quay.io/a/s\"\nblocked = true\n",
            None,
        ),
        (
            "[[registry]]\nprefix = \"*.org\"\nlocation = \"other.org\"\n",
            None,
        ),
    ] {
        let all = format!("{old}{new}");
        // OpenShift's rule has no drain here.
        assert!(same_images(old, &all), "{old}");
        let expected: Vec<_> = taken
            .map(|one| ("quay.io/a/sub".to_owned(), one.to_owned()))
            .into_iter()
            .collect();
        assert_eq!(taken_names(old, &all), expected, "{old}");
    }
}

#[test]
fn a_text_that_is_not_toml_has_a_fault_with_its_line() {
    assert_eq!(fault("a = 1\n"), None);
    let (line, why) = fault("a = 1\n[[registry\n").unwrap();
    assert_eq!(line, 2, "{why}");
}
