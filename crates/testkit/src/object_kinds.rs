//! Configs with one file and one directory, and the objects that a machine may have there before.

use machinist_ignition::{ConfigRules, MachineConfig, Overwrite};

/// The machine's objects before any config, as lines of a golden `before.txt`.
pub const FOUND: [&str; 8] = [
    "",
    "/etc/p file 600 \"theirs\\n\"",
    "/etc/p file 644 \"\"",
    "/etc/p file 640 \"given\"",
    "/etc/p link elsewhere",
    "/srv/d dir 700",
    "/srv/d dir 755\n/etc/p file 755 \"x\"",
    "/srv/d dir 750\n/srv/d/in file 644 \"in\"",
];

/// Entries for the file `/etc/p`.
pub const FILES: [&str; 9] = [
    "",
    r#"{"path": "/etc/p"}"#,
    r#"{"path": "/etc/p", "contents": {}}"#,
    r#"{"path": "/etc/p", "mode": 384}"#,
    r#"{"path": "/etc/p", "mode": 416, "contents": {"source": null}}"#,
    r#"{"path": "/etc/p", "contents": {"source": ""}}"#,
    r#"{"path": "/etc/p", "mode": 384, "contents": {"source": "data:,"}}"#,
    r#"{"path": "/etc/p", "contents": {"source": "data:,given"}}"#,
    r#"{"path": "/etc/p", "mode": 416, "contents": {"source": "data:,given"}}"#,
];

/// Entries for the directory `/srv/d`.
pub const DIRECTORIES: [&str; 4] = [
    "",
    r#"{"path": "/srv/d"}"#,
    r#"{"path": "/srv/d", "mode": 448}"#,
    r#"{"path": "/srv/d", "mode": 493}"#,
];

/// Any entries.
pub fn any(numbers: &mut Numbers) -> (&'static str, &'static str) {
    let file = FILES[numbers.below(FILES.len())];
    (file, DIRECTORIES[numbers.below(DIRECTORIES.len())])
}

pub fn config(file: &str, directory: &str) -> MachineConfig {
    let text = format!(
        r#"{{"apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfig",
             "metadata": {{"name": "test"}},
             "spec": {{"config": {{"ignition": {{"version": "3.4.0"}},
                       "storage": {{"files": [{file}], "directories": [{directory}]}}}}}}}}"#
    );
    let documents = machinist_ignition::parse(&text, "test", &ConfigRules::default()).unwrap();
    let order = machinist_ignition::MergeOrder::AsGiven;
    let (mut config, _) = machinist_ignition::merge(documents, "worker", order).unwrap();
    // Each of the configs in between was accepted once.
    config.overwrite = Overwrite::Any;
    config
}

/// A sequence of small pseudo-random numbers, determined by its seed.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn below(&mut self, end: usize) -> usize {
        let step = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = step.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}
