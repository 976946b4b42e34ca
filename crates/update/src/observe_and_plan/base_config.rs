//! Finds the config with which the first config is compared.

use crate::journal::Journal;
use machinist_base::abs_path::AbsPath;
use machinist_ignition::{ClusterBaseline, MachineConfig};
use machinist_plan::BaseConfig;
use machinist_rootfs::Root;

/// The file in which OpenShift's machine-config-daemon keeps the config of the disk, and the file in which the
/// first boot finds the parts of its config that Ignition does not handle.
const MCD_CURRENT_CONFIG_PATH: &str = "/etc/machine-config-daemon/currentconfig";
const ENCAPSULATED_CONFIG_PATH: &str = "/etc/ignition-machine-config-encapsulated.json";

/// The API server limits a MachineConfig to 1.5 MiB; its JSON may be escaped.
const MAX_MACHINE_CONFIG_BYTES: u64 = 32 << 20;

/// Returns the base against which changes are judged: machinist's current config; else the config that another
/// daemon reports, on the disk or on the Node; else the config of the first boot. The second part names a file that
/// should hold such a config and does not.
pub(super) fn of(
    root: &Root,
    journal: &Journal,
    to: &MachineConfig,
) -> (BaseConfig, Option<AbsPath>) {
    if super::current(journal).is_some() {
        return (BaseConfig::Config, None);
    }
    let mut odd = None;
    let mut read = |path: &str| {
        let path = AbsPath::new(path).ok()?;
        let text = root.read(&path, MAX_MACHINE_CONFIG_BYTES);
        let declared = machinist_ignition::declared(text.as_deref().ok()?).map(Box::new);
        if declared.is_none() {
            odd.get_or_insert(path);
        }
        declared
    };
    let on_node = || match &to.before {
        ClusterBaseline::Node(declared) => declared.clone(),
        ClusterBaseline::SingleMachine => None,
    };
    let found = read(MCD_CURRENT_CONFIG_PATH)
        .or_else(on_node)
        .or_else(|| read(ENCAPSULATED_CONFIG_PATH));
    let base = found.map_or(BaseConfig::Unknown, BaseConfig::Declared);
    (base, odd)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may panic, and plays another daemon"
)]
mod tests {
    use super::*;
    use crate::journal::ConfigName;
    use machinist_base::digest::Digest;

    fn text(image: &str) -> String {
        format!(r#"{{"spec": {{"osImageURL": "{image}"}}}}"#)
    }

    /// The image of the base, if these sources exist.
    fn image(sources: &[&str], in_journal: bool) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, image: &str| {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text(image)).unwrap();
        };
        let mut to = MachineConfig {
            before: ClusterBaseline::Node(None),
            ..MachineConfig::default()
        };
        for source in sources {
            match *source {
                "currentconfig" => write(MCD_CURRENT_CONFIG_PATH, source),
                "encapsulated" => write(ENCAPSULATED_CONFIG_PATH, source),
                annotation => {
                    let declared = machinist_ignition::declared(text(annotation).as_bytes());
                    to.before = ClusterBaseline::Node(declared.map(Box::new));
                }
            }
        }
        let journal = Journal {
            base: in_journal.then(|| ConfigName::new("rendered-a", Digest::of(b"a"))),
            ..Journal::default()
        };
        let (base, odd) = of(&Root::open(dir.path()).unwrap(), &journal, &to);
        assert_eq!(odd, None);
        match base {
            BaseConfig::Config => Some("journal".to_owned()),
            BaseConfig::Declared(declared) => declared.config.os_image_url,
            BaseConfig::Unknown => None,
        }
    }

    #[test]
    fn the_base_is_journal_then_currentconfig_then_annotation_then_encapsulated_config() {
        // Of each pair, the first one is the base, in whatever order they are found.
        let order = ["currentconfig", "annotation", "encapsulated"];
        for (index, first) in order.iter().enumerate() {
            assert_eq!(image(&[first], false).as_deref(), Some(*first));
            assert_eq!(image(&[first], true).as_deref(), Some("journal"));
            for second in &order[index + 1..] {
                assert_eq!(image(&[second, first], false).as_deref(), Some(*first));
            }
        }
        assert_eq!(image(&order, false).as_deref(), Some(order[0]));
        assert_eq!(image(&order, true).as_deref(), Some("journal"));
        assert_eq!(image(&[], false), None);
    }
}
