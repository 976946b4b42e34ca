//! Names and texts from other sources in printed and logged output.

use std::fs;

use crate::agent::harness::Place;

#[test]
fn foreign_names_are_escaped_in_terminal_and_log_output() {
    let place = Place::new();
    let name = "10-a\u{1b}[2J\u{9b}1m\nmachinist: all is well\u{202e}.yaml";
    fs::write(place.source().join(name), "kind: [").unwrap();
    let shown = place.source().join(name).display().to_string();
    let asked = [
        place.with_source(&["plan"]),
        place.with_source(&["render"]),
        place.machinist(&["render", &shown]),
        place.with_source(&["plan", "-o", "json"]),
        place.with_source(&["plan", "-o", "yaml"]),
    ];
    for output in &asked {
        for printed in [&output.stdout, &output.stderr] {
            let printed = String::from_utf8(printed.clone()).unwrap();
            let steers = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
            assert!(!printed.chars().any(steers), "{printed:?}");
            assert!(
                !printed
                    .lines()
                    .any(|line| line.starts_with("machinist: all")),
                "{printed:?}"
            );
        }
    }
    let agent = place.start();
    agent.wait_for_log("all is well");
    for line in agent.lines("all is well") {
        assert!(!line.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{line:?}");
        assert!(!line.starts_with("machinist: all"), "{line:?}");
    }
}

#[test]
fn verification_escapes_the_paths_that_differ() {
    let place = Place::new();
    let path = "/etc/a\u{1b}[31m\nmachinist: all is well";
    let config = serde_json::json!({
        "ignition": {"version": "3.4.0"},
        "storage": {"files": [{"path": path, "contents": {"source": "data:,x"}}]},
    });
    fs::write(place.source().join("a.ign"), config.to_string()).unwrap();
    let applied = place.with_source(&["apply", "--yes"]);
    assert!(applied.status.success(), "{applied:?}");
    fs::remove_file(place.at(path)).unwrap();
    let verified = place.machinist(&["verify"]);
    let printed = String::from_utf8(verified.stdout).unwrap();
    assert_eq!(printed.lines().count(), 1, "{printed:?}");
    assert!(!printed.contains('\u{1b}'), "{printed:?}");
}
