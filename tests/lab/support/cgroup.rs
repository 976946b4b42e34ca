//! Control groups of the lab's processes, on version 1, version 2 and both side by side.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{lab, wait};

/// A group below the slot's in every hierarchy, so that no process started in it can escape the
/// cleanup.
#[derive(Debug, Clone)]
pub struct Group(String);

impl Group {
    /// Makes the group in every hierarchy this host has.
    pub fn new(name: &str) -> Self {
        let group = Self(name.to_owned());
        for hierarchy in hierarchies() {
            let dir = group.dir(&hierarchy);
            fs::create_dir_all(&dir).unwrap();
            // Version 1 accepts no process in a group without CPUs and memory nodes.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let from = hierarchy.join(&lab().group).join(file);
                if from.exists() && !hierarchy.join("cgroup.controllers").exists() {
                    fs::write(dir.join(file), fs::read(from).unwrap()).unwrap();
                }
            }
        }
        group
    }

    /// A command that runs `program` in this group and in the lab's network.
    pub fn command(&self, program: &Path) -> Command {
        let enter = "for dir in $LAB_GROUPS; do echo $$ >\"$dir/cgroup.procs\" || exit 71; done; \
                     unset LAB_GROUPS; exec nsenter --net=\"$0\" -- \"$@\"";
        let dirs: Vec<_> = hierarchies()
            .iter()
            .map(|h| self.dir(h).to_string_lossy().into_owned())
            .collect();
        let mut command = Command::new("sh");
        command
            .args(["-c", enter, super::NETWORK])
            .arg(program)
            .env("LAB_GROUPS", dirs.join(" "));
        command
    }

    /// Removes the group with everything below it, once its processes have ended.
    ///
    /// Killed processes leave their groups a moment after their end, so this retries until the
    /// kernel permits the removal. A kubelet that finds the last boot's groups spends half a minute
    /// on them, and version 2 allows no process in a group that has delegated its controllers.
    pub fn remove(&self) {
        for hierarchy in hierarchies() {
            let dir = self.dir(&hierarchy);
            let what = format!("{} and the groups below to be empty", dir.display());
            wait::until(&what, wait::seconds(60), || remove(&dir));
        }
    }

    fn dir(&self, hierarchy: &Path) -> PathBuf {
        hierarchy.join(&lab().group).join(&self.0)
    }
}

/// Where groups can be made: each version 1 controller, and version 2.
fn hierarchies() -> Vec<PathBuf> {
    let top = Path::new("/sys/fs/cgroup");
    let below = fs::read_dir(top)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = std::iter::once(top.to_owned())
        .chain(below)
        .filter(|dir| dir.join(&lab().group).join("cgroup.procs").exists())
        .collect();
    found.sort();
    found
}

/// Removes `dir` and everything below it, deepest first; returns whether nothing is left.
fn remove(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else {
        return true;
    };
    let below: Vec<_> = entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .collect();
    // Tries all of them in every round, also after one that is still busy.
    let busy = below.iter().filter(|entry| !remove(&entry.path()));
    busy.count() == 0 && fs::remove_dir(dir).is_ok()
}
