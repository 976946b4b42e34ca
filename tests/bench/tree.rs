//! A root for machinist, and its configs.

use std::{fs, path::Path, process::Command, sync::Arc};

use machinist_ignition::{ConfigRules, MachineConfig, MergeOrder};
use machinist_rootfs::Root;
use machinist_status::settings::{Fragment, Settings, SettingsLocation};
use machinist_update::reconciler::DesiredConfig;
use tokio::runtime::Runtime;

use crate::binary;

/// Twenty directories, like the `.d` directories in `/etc`.
const DIRECTORIES: usize = 20;

/// Below the tree, without the first slash.
pub(crate) fn path(n: usize) -> String {
    format!("etc/bench/{:02}.d/file-{n:04}.conf", n % DIRECTORIES)
}

/// The content of file `n` in a round: `size` bytes that differ between rounds.
pub(crate) fn content(round: usize, n: usize, size: usize) -> String {
    let mut text = format!("round{round}file{n}");
    text.extend(std::iter::repeat_n('x', size - text.len()));
    text
}

pub(crate) fn make_directories(tree: &Path) {
    for n in 0..DIRECTORIES {
        fs::create_dir_all(tree.join(path(n)).parent().unwrap()).unwrap();
    }
}

/// A config of files; `content` returns the content of each by its number.
pub(crate) fn config(files: usize, content: impl Fn(usize) -> String) -> MachineConfig {
    // One manifest of hundreds of megabytes would be too large: one document for each thousand
    // files.
    let manifest = |numbers: std::ops::Range<usize>| {
        let first = numbers.start;
        let entries = numbers.map(|n| {
            format!(
                "      - path: /{}\n        mode: 0644\n        contents:\n          source: data:,{}\n",
                path(n),
                content(n)
            )
        });
        format!(
            "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: bench-{first}\nspec:\n  config:\n    ignition:\n      version: 3.4.0\n    storage:\n      files:\n{}",
            entries.collect::<String>()
        )
    };
    let documents = (0..files).step_by(50).flat_map(|first| {
        let text = manifest(first..files.min(first + 50)).into_bytes();
        let files = vec![(format!("bench-{first:05}.yaml"), text)];
        machinist_ignition::documents_from_files(
            files,
            &ConfigRules::default(),
            &machinist_ignition::NoLocalFiles,
        )
        .unwrap()
        .0
    });
    machinist_ignition::merge(documents.collect(), "bench", MergeOrder::AsGiven)
        .unwrap()
        .0
}

/// A root that is ready for updates.
pub(crate) struct Machinist {
    pub(crate) root: Root,
    pub(crate) settings: Settings,
    pub(crate) runtime: Runtime,
}

impl Machinist {
    pub(crate) fn new(tree: &Path) -> Self {
        make_directories(tree);
        let root = Root::open(tree).unwrap();
        let place = SettingsLocation {
            root: root.clone(),
            dir: "/etc/machinist".parse().unwrap(),
            pool: None,
            environment: Vec::new(),
            flags: Fragment::default(),
            own_uid: rustix::process::geteuid().as_raw(),
            root_alone: false,
        };
        Self {
            settings: place.read().unwrap(),
            root,
            runtime: machinist::cli::daemon().unwrap(),
        }
    }

    /// Plan, intent, stage, sync, commit, sync, verify: every step of an update.
    pub(crate) fn apply(&self, config: MachineConfig) {
        let digest = machinist_ignition::digest(&config);
        let desired = DesiredConfig::Config(Arc::new(config), digest);
        let policies = machinist_plan::Policies::default();
        let (root, settings) = (&self.root, &self.settings);
        let applied =
            machinist_agent::apply_once(root, settings, policies, desired, |_| true, |_| ());
        let report = self.runtime.block_on(applied).unwrap();
        assert_eq!(report.failure, None);
    }

    /// The same as a command: with the start of the process and the reading of the manifest.
    pub(crate) fn apply_by_command(&self, manifest: &Path) {
        self.command(&["apply", "--yes", "-o", "json", manifest.to_str().unwrap()]);
    }

    /// Runs a subcommand on this root; it must succeed.
    pub(crate) fn command(&self, arguments: &[&str]) {
        let output = Command::new(binary())
            .args(arguments)
            .arg("--root")
            .arg(self.root.display())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
