//! Mistakes of users and accidents on a machine, seen from outside: the real command on a root of
//! its own.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests run the program, look at its tree from outside and fail by panicking"
)]

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
};

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir(place.at("")).unwrap();
        place
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir
            .path()
            .join("root")
            .join(path.trim_start_matches('/'))
    }

    /// Applies a config with this `storage` section.
    fn apply(&self, storage: &str) -> Output {
        let config = self.dir.path().join("config.yaml");
        let text = format!(
            "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\n\
             metadata: {{name: test}}\n\
             spec: {{config: {{ignition: {{version: 3.4.0}}, storage: {storage}}}}}\n"
        );
        fs::write(&config, text).unwrap();
        self.run(&["apply", "--yes"], Some(&config))
    }

    fn applied(&self, storage: &str) {
        let output = self.apply(storage);
        assert!(output.status.success(), "{output:?}");
    }

    fn run(&self, words: &[&str], file: Option<&Path>) -> Output {
        Command::new(env!("CARGO_BIN_EXE_machinist"))
            .args(words)
            .arg("--root")
            .arg(self.at(""))
            .args(file)
            .output()
            .unwrap()
    }

    fn mode(&self, path: &str) -> u32 {
        fs::metadata(self.at(path)).unwrap().mode() & 0o7777
    }
}

const NOTHING: &str = "{}";
const TREE: &str = "{directories: [{path: /srv/d, mode: 448}], \
                    files: [{path: /srv/d/in, mode: 420, contents: {source: 'data:,x'}}]}";
const FILE: &str =
    "{files: [{path: /srv/d, overwrite: true, mode: 420, contents: {source: 'data:,y'}}]}";

#[test]
fn a_directory_created_by_us_is_never_restored_as_an_original() {
    let place = Place::new();
    place.applied(TREE);
    place.applied(FILE);
    assert!(place.at("/srv/d").is_file());
    place.applied(TREE);
    place.applied(FILE);
    place.applied(NOTHING);
    assert!(!place.at("/srv/d").exists());
    assert!(!place.at("/var/lib/machinist/originals").exists());
}

#[test]
fn a_foreign_file_in_a_managed_directory_is_restored() {
    let place = Place::new();
    place.applied(TREE);
    place.applied(NOTHING);
    assert!(!place.at("/srv").exists());
    fs::create_dir_all(place.at("/srv/d")).unwrap();
    fs::write(place.at("/srv/d/in"), "somebody else's").unwrap();
    place.applied(
        "{files: [{path: /srv/d/in, overwrite: true, mode: 420, contents: {source: 'data:,x'}}]}",
    );
    assert_eq!(fs::read_to_string(place.at("/srv/d/in")).unwrap(), "x");
    place.applied(NOTHING);
    assert_eq!(
        fs::read_to_string(place.at("/srv/d/in")).unwrap(),
        "somebody else's"
    );
}

#[test]
fn a_pre_existing_directory_is_kept_and_its_mode_restored() {
    let place = Place::new();
    fs::create_dir_all(place.at("/srv/d")).unwrap();
    fs::set_permissions(place.at("/srv/d"), fs::Permissions::from_mode(0o1777)).unwrap();
    place.applied("{directories: [{path: /srv/d, mode: 448}]}");
    assert_eq!(place.mode("/srv/d"), 0o700);
    place.applied("{directories: [{path: /srv/d, mode: 493}]}");
    assert_eq!(place.mode("/srv/d"), 0o755);
    place.applied(NOTHING);
    assert_eq!(place.mode("/srv/d"), 0o1777);
}

#[test]
fn paths_are_escaped_in_terminal_output() {
    let place = Place::new();
    place.applied(NOTHING);
    let config = place.dir.path().join("config.yaml");
    let text = fs::read_to_string(&config).unwrap().replace(
        NOTHING,
        "{files: [{path: \"/etc/a\\nb\\e[31m\", contents: {source: 'data:,x'}}]}",
    );
    fs::write(&config, text).unwrap();
    let output = place.run(&["plan"], Some(&config));
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(!output.stdout.contains(&0x1b), "{output:?}");
}

#[test]
fn parent_directories_of_the_state_directory_are_world_readable() {
    let place = Place::new();
    place.applied(NOTHING);
    assert_eq!(place.mode("/var"), 0o755);
    assert_eq!(place.mode("/var/lib"), 0o755);
    assert_eq!(place.mode("/var/lib/machinist"), 0o700);
}

#[test]
fn files_without_a_config_remove_nothing() {
    let place = Place::new();
    place.applied(FILE);
    let without_ending = place.dir.path().join("config");
    fs::copy(place.dir.path().join("config.yaml"), &without_ending).unwrap();
    let empty = place.dir.path().join("empty.yaml");
    fs::write(&empty, "").unwrap();
    for file in [&without_ending, &empty] {
        let output = place.run(&["apply", "--yes"], Some(file));
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(place.at("/srv/d").exists());
    }
}

#[test]
fn a_dangling_config_link_removes_nothing() {
    let place = Place::new();
    let source = place.at("/etc/machinist/machine.d");
    fs::create_dir_all(&source).unwrap();
    place.applied(FILE);
    fs::rename(place.dir.path().join("config.yaml"), source.join("10.yaml")).unwrap();
    std::os::unix::fs::symlink("/away/20.yaml", source.join("20.yaml")).unwrap();
    let output = place.run(&["apply", "--yes"], None);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(place.at("/srv/d").exists());
    fs::remove_file(source.join("20.yaml")).unwrap();
    let output = place.run(&["apply", "--yes"], None);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
