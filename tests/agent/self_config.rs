//! Settings for machinist itself in a config, and parts of a config that would be ignored silently.

use std::{fs, os::unix::ffi::OsStrExt as _};

use crate::agent::harness::{Place, code, err, manifest, out};

/// Text, percent-encoded for a data URL.
fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn with_file(path: &str, text: &str) -> Place {
    let place = Place::with_file(path, &encoded(text));
    fs::create_dir(place.root()).unwrap();
    place
}

/// Asserts that a plan is refused with all of these messages.
fn refused(place: &Place, sayings: &[&str]) {
    for command in [&["plan"][..], &["apply", "--yes"]] {
        let refused = place.with_source(command);
        assert_eq!(code(&refused), 1, "{command:?}: {}", err(&refused));
        let output = format!("{}{}", out(&refused), err(&refused));
        let output = output.split_whitespace().collect::<Vec<_>>().join(" ");
        for saying in sayings {
            assert!(output.contains(saying), "{saying:?} in {output}");
        }
    }
    assert!(!place.at("/etc/machinist").exists(), "nothing was written");
}

#[test]
fn a_config_that_writes_invalid_agent_settings_is_rejected_by_location() {
    let text = "update:\n  reboot: auto\n  rebot: never\n";
    for path in [
        "/etc/machinist/machinist.yaml",
        "/etc/machinist/machinist.yaml.d/10-x.yaml",
    ] {
        let place = with_file(path, text);
        let at = format!("{path}:3:");
        let says = [
            "10-one.yaml:",
            "spec.config.storage.files[0]",
            &at,
            "update.rebot: unknown key",
        ];
        refused(&place, &says);
    }
    let place = with_file(
        "/etc/machinist/machinist.yaml",
        &text.replace("rebot: never", ""),
    );
    assert_eq!(code(&place.with_source(&["apply", "--yes"])), 0);
    assert_eq!(
        code(&place.with_source(&["plan"])),
        0,
        "the next agent starts"
    );
}

#[test]
fn a_config_that_makes_agent_settings_writable_by_others_is_rejected() {
    let path = "/etc/machinist/machinist.yaml";
    let written = |more: &str| {
        let place = with_file(path, "update: {reboot: auto}");
        let text = manifest("10-one", path, &encoded("update: {reboot: auto}"));
        let text = text.replace("mode: 0644", more);
        fs::write(place.source().join("10-one.yaml"), text).unwrap();
        place
    };
    refused(&written("mode: 0666"), &["would be world-writable"]);
    refused(&written("user: {id: 65534}"), &["would belong to 65534"]);
    refused(
        &written("user: {name: nobody}"),
        &["would belong to nobody"],
    );
}

#[test]
fn a_config_that_writes_invalid_policies_is_rejected_by_location() {
    let text = "kind: MachineConfiguration\nspec:\n  nodeDisruptionPolicy:\n    file: []\n";
    let path = "/etc/machinist/policies.yaml";
    let place = with_file(path, text);
    refused(&place, &["10-one.yaml:", path, "nodeDisruptionPolicy.file"]);

    let place = with_file("/etc/machinist/mine.yaml", text);
    let settings = "update: {policies: /etc/machinist/mine.yaml}";
    let other = manifest(
        "20-two",
        "/etc/machinist/machinist.yaml",
        &encoded(settings),
    );
    fs::write(place.source().join("20-two.yaml"), other).unwrap();
    refused(
        &place,
        &["/etc/machinist/mine.yaml", "nodeDisruptionPolicy.file"],
    );

    let place = with_file(path, &text.replace("file: []", "files: []"));
    assert_eq!(code(&place.with_source(&["apply", "--yes"])), 0);
    assert_eq!(
        code(&place.with_source(&["plan"])),
        0,
        "the next agent starts"
    );
}

#[test]
fn a_plan_warns_of_a_file_overridden_by_a_later_one() {
    let place = with_file("/etc/one", "first");
    let write = |content| {
        let text = manifest("20-two", "/etc/one", content);
        fs::write(place.source().join("20-two.yaml"), text).unwrap();
        let planned = out(&place.with_source(&["plan"]));
        planned.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let planned = write("second");
    let warning = planned.split("Warnings").nth(1).unwrap_or_default();
    for output in ["/etc/one", "10-one.yaml:", "20-two.yaml:", "overrides"] {
        assert!(warning.contains(output), "{output:?} in {planned}");
    }
    let planned = write("first");
    assert!(!planned.contains("overrides"), "equal content: {planned}");
}

#[test]
fn a_plan_warns_of_ignored_file_names_in_one_line() {
    let place = with_file("/etc/one", "first");
    let write = |name: &str, text: &str| fs::write(place.source().join(name), text).unwrap();
    write("30-three.yaml.bak", "");
    write("30-three.txt", "");
    write(".hidden", "");
    write("used.txt", "text");
    write(
        "40-four.bu",
        "variant: fcos\nversion: 1.5.0\nstorage:\n  files:\n  - {path: /etc/four, contents: {local: used.txt}}\n",
    );
    let planned = out(&place.with_source(&["plan"]));
    let planned = planned.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        planned.contains(
            "do not end in .yaml, .yml, .json, .ign, .bu: 30-three.txt, 30-three.yaml.bak"
        ),
        "{planned}"
    );
    let quiet = [".hidden", "used.txt", "is not UTF-8"];
    assert!(
        quiet.iter().all(|name| !planned.contains(name)),
        "{planned}"
    );
}

#[test]
fn a_plan_warns_of_objects_with_the_name_of_a_config_that_are_not_files() {
    let place = with_file("/etc/one", "first");
    let pipe = place.source().join("60-pipe.yaml");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir(place.source().join("70-directory.yaml")).unwrap();
    fs::create_dir(place.source().join("more")).unwrap();
    let name = std::ffi::OsStr::from_bytes(b"50-\xff.yaml");
    fs::write(place.source().join(name), "text").unwrap();
    let planned = out(&place.with_source(&["plan"]));
    let planned = planned.split_whitespace().collect::<Vec<_>>().join(" ");
    for warning in [
        "are ignored, because they are not files: 60-pipe.yaml, 70-directory.yaml",
        "1 name in",
        "is ignored, because it is not UTF-8",
    ] {
        assert!(planned.contains(warning), "{warning}: {planned}");
    }
}

#[test]
fn an_unreadable_journal_error_names_the_remedy() {
    let place = with_file("/etc/one", "first");
    assert_eq!(code(&place.with_source(&["apply", "--yes"])), 0);
    fs::write(place.at("/var/lib/machinist/journal"), "torn").unwrap();
    let output = err(&place.with_source(&["apply", "--yes"]));
    assert!(output.contains("machinist journal reset"), "{output}");
}

#[test]
fn rollback_by_zero_configs_is_a_usage_error() {
    let place = with_file("/etc/one", "first");
    assert_eq!(code(&place.with_source(&["apply", "--yes"])), 0);
    let refused = place.machinist(&["rollback", "--to", "0", "--yes"]);
    assert_eq!(code(&refused), 64);
    let output = err(&refused);
    assert!(
        output.contains("1 is the config before this one"),
        "{output}"
    );
}
