//! Tests of custom gates.

use super::*;
use crate::settings::{Fragment, Settings};

fn read(text: &str) -> Result<Vec<CustomGate>, String> {
    let text = format!("readiness:\n  customGates:\n{text}");
    let fragment = Fragment::parse("machinist.yaml", &text).unwrap();
    match Settings::from_fragments([fragment]) {
        Ok(settings) => Ok(settings.readiness.policy.custom_gates),
        Err(error) => Err(error.problems[0].to_string()),
    }
}

#[test]
fn each_custom_gate_kind_round_trips_through_yaml() {
    let gates = read(
        "  - {name: Storage, unit: iscsid.service, effect: hold}\n\
         \x20 - {name: Exporter, http: 'http://localhost:9100/healthz?full', effect: warn}\n\
         \x20 - {name: V6, http: 'http://[::1]', effect: off}\n\
         \x20 - {name: Licence, file: /etc/acme/licence, effect: warn}\n\
         \x20 - {name: Network, taintAbsent: 'node.cilium.io/agent-not-ready', effect: hold}\n\
         \x20 - {name: Storage2, taintAbsent: 'a:NoExecute', effect: hold}\n",
    )
    .unwrap();
    let shown: Vec<_> = gates.iter().map(|gate| gate.show().to_string()).collect();
    assert_eq!(
        shown[0],
        r#"{"effect":"hold","name":"Storage","unit":"iscsid.service"}"#
    );
    assert!(shown[1].contains("http://127.0.0.1:9100/healthz?full"));
    assert!(shown[2].contains("http://[::1]:80/"));
    assert_eq!(gates[3].effect, GateEffect::Warn);
    assert_eq!(gates.len(), 6);
}

#[test]
fn custom_gate_errors_name_their_location() {
    let cases = [
        ("{name: a, unit: a.service}", "a mapping with name, effect"),
        ("{name: DiskSpace, file: /a, effect: warn}", ".name"),
        ("{name: diskspace, file: /a, effect: warn}", ".name"),
        ("{name: 1a, file: /a, effect: warn}", ".name"),
        ("{name: a, file: a, effect: warn}", ".file"),
        (
            "{name: a, file: /a, effect: never}",
            "one of hold, warn, off",
        ),
        ("{name: a, unit: a, effect: warn}", ".unit"),
        ("{name: a, unit: a@.service, effect: warn}", ".unit"),
        (
            "{name: a, http: 'https://127.0.0.1', effect: warn}",
            ".http",
        ),
        ("{name: a, http: 'http://10.0.0.1', effect: warn}", ".http"),
        (
            "{name: a, http: 'http://127.0.0.1:0/', effect: warn}",
            ".http",
        ),
        (
            "{name: a, http: \"http://127.0.0.1/ HTTP/1.0\\r\\nX\", effect: warn}",
            ".http",
        ),
        (
            "{name: a, taintAbsent: 'a/b/c', effect: warn}",
            ".taintAbsent",
        ),
        (
            "{name: a, taintAbsent: 'a:Never', effect: warn}",
            ".taintAbsent",
        ),
        (
            "{name: a, unit: a.service, file: /a, effect: warn}",
            "only one of unit",
        ),
        (
            "{name: a, dns: a, effect: warn}",
            "expected only name, effect and one of unit",
        ),
    ];
    for (gate, expected) in cases {
        let shown = read(&format!("  - {gate}\n")).unwrap_err();
        assert!(shown.starts_with("machinist.yaml:3:"), "{gate}: {shown}");
        assert!(shown.contains("readiness.customGates"), "{gate}: {shown}");
        assert!(shown.contains(expected), "{gate}: {shown}");
    }
    let twice = "  - {name: a, file: /a, effect: warn}\n".repeat(2);
    assert!(read(&twice).unwrap_err().contains("each name once"));
}
