//! Looking at the machine: declaration files, and what stands below `/dev`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::{
    device::{
        Refusal,
        declaration::{Declaration, LARGEST},
        glob::Glob,
        ledger::Files,
        name::ResourceName,
        sighting::{Look, MOST_DEVICES, Sightings},
    },
    path::AbsPath,
    reason::Reason,
    root::{Kind, Root, RootError, Stat},
    telemetry::chain,
};

/// More declarations than any machine has; the rest is reported and left.
const MOST_FILES: usize = 256;
/// As many links in a row as the kernel follows (path_resolution(7)).
const MOST_LINKS: usize = 40;
/// sysfs attributes are one page at most.
const PAGE: u64 = 4096;

/// The nearest directory at or above `path` that exists.
pub(super) fn nearest_dir(root: &Root, path: &AbsPath) -> AbsPath {
    let mut all = std::iter::once(path.clone()).chain(path.ancestors());
    all.find(|dir| root.is_dir(dir).unwrap_or(false))
        .unwrap_or_else(AbsPath::root)
}

/// Reads all declarations in `dirs`. `user` is the user besides root who may own them.
pub fn read_files(root: &Root, dirs: &[AbsPath], user: u32) -> Files {
    let mut files = Files::new();
    for dir in dirs {
        match root.stat(dir) {
            Ok(Some(stat)) => match owner_fault(&stat, user) {
                None => read_dir(root, dir, user, &mut files),
                Some(fault) => refuse(&mut files, dir, Reason::SourceUnreadable, &fault),
            },
            Ok(None) => {}
            Err(error) => refuse(&mut files, dir, Reason::SourceUnreadable, &chain(&error)),
        }
    }
    files
}

fn refuse(files: &mut Files, path: &AbsPath, reason: Reason, message: &str) {
    let refusal = Refusal::new(reason, message).file(path.as_str());
    files.insert(path.clone(), Err(refusal));
}

fn read_dir(root: &Root, dir: &AbsPath, user: u32, files: &mut Files) {
    let entries = match root.list(dir) {
        Ok(entries) => entries,
        Err(error) => return refuse(files, dir, Reason::SourceUnreadable, &chain(&error)),
    };
    let is_ours =
        |name: &str| !name.starts_with('.') && (name.ends_with(".yaml") || name.ends_with(".yml"));
    for entry in entries.into_iter().filter(|entry| is_ours(&entry.name)) {
        let Ok(file) = dir.join(&entry.name) else {
            continue;
        };
        if files.len() >= MOST_FILES {
            let message =
                format!("there are more than {MOST_FILES} declarations; the rest is left out");
            return refuse(files, dir, Reason::ValueInvalid, &message);
        }
        match read_file(root, &file, user) {
            Ok(Some(text)) => drop(files.insert(file, Ok(text))),
            Ok(None) => {}
            Err(message) => refuse(files, &file, Reason::SourceUnreadable, &message),
        }
    }
}

/// The text of one declaration; none when it vanished meanwhile.
pub(super) fn read_file(root: &Root, file: &AbsPath, user: u32) -> Result<Option<String>, String> {
    let stat = match root.stat(file) {
        Ok(Some(stat)) => stat,
        Ok(None) => return Ok(None),
        Err(error) => return Err(chain(&error)),
    };
    if stat.kind != Kind::File {
        let kind = stat.kind.as_str();
        return Err(format!(
            "it is a {kind}; declarations are regular files and links are not followed"
        ));
    }
    if let Some(fault) = owner_fault(&stat, user) {
        return Err(fault);
    }
    // The directory belongs to a trusted owner, so nobody else can put another file in between.
    match root.read_nofollow(file, LARGEST as u64) {
        Ok(bytes) => String::from_utf8(bytes)
            .map(Some)
            .map_err(|_| "it is not UTF-8 text".into()),
        Err(error) if error.is_not_found() => Ok(None),
        Err(RootError::TooLarge { limit, .. }) => Err(format!("it is larger than {limit} bytes")),
        Err(error) => Err(chain(&error)),
    }
}

fn owner_fault(stat: &Stat, user: u32) -> Option<String> {
    if stat.uid != 0 && stat.uid != user {
        return Some(format!(
            "it belongs to user {}, not to root or the agent's user",
            stat.uid
        ));
    }
    let loose = stat.mode & 0o022 != 0 && stat.kind != Kind::Link;
    let (mode, most) = (stat.mode, stat.mode & !0o022);
    loose.then(|| format!("its mode {mode:04o} lets others write: {most:04o} at most"))
}

/// What one look brought.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// By resource.
    pub(super) sightings: BTreeMap<ResourceName, Sightings>,
    /// The directories whose names decide what is seen.
    pub(super) dirs: BTreeSet<AbsPath>,
}

/// Looks below `/dev`. Remembers where devices are, which is many small files for each.
#[derive(Debug)]
pub(super) struct Scanner {
    root: Root,
    numa: HashMap<(Kind, (u32, u32)), Vec<u32>>,
}

impl Scanner {
    pub(super) fn new(root: Root) -> Self {
        Self {
            root,
            numa: HashMap::new(),
        }
    }

    /// Forgets where devices are: numbers are used again for others.
    pub(super) fn forget(&mut self) {
        self.numa.clear();
    }

    pub(super) fn scan<'a>(&mut self, all: impl Iterator<Item = &'a Declaration>) -> Scan {
        let mut scan = Scan::default();
        for declaration in all {
            let mut seen = Sightings::default();
            let mut whole = true;
            for glob in &declaration.paths {
                whole &= self.expand(glob, &mut seen, &mut scan.dirs);
            }
            if whole {
                scan.sightings.insert(declaration.resource.clone(), seen);
            }
        }
        scan
    }

    /// Looks at everything that matches; false when a directory could not be read, and then nothing is
    /// known: what is lent stays as it is.
    fn expand(&mut self, glob: &Glob, seen: &mut Sightings, dirs: &mut BTreeSet<AbsPath>) -> bool {
        let root = &self.root;
        let mut whole = true;
        let (paths, cut) = glob.expand(MOST_DEVICES, |dir| {
            dirs.insert(nearest_dir(root, dir));
            let entries = match root.list(dir) {
                Ok(entries) => entries,
                Err(error) if error.is_not_found() => Vec::new(),
                Err(error) => {
                    tracing::warn!("cannot look for devices: {}", chain(&error));
                    whole = false;
                    Vec::new()
                }
            };
            entries.into_iter().map(|entry| entry.name).collect()
        });
        seen.cut |= cut;
        for path in paths {
            if let Some(parent) = path.parent() {
                dirs.insert(nearest_dir(&self.root, &parent));
            }
            if seen.looks.len() >= MOST_DEVICES {
                seen.cut = true;
                return whole;
            }
            let look = self.look(&path);
            seen.looks.insert(path, look);
        }
        whole
    }

    /// What stands at `path`, links followed.
    pub(super) fn look(&mut self, path: &AbsPath) -> Look {
        let (target, stat) = match follow(&self.root, path) {
            Ok(Some(found)) => found,
            Ok(None) => return Look::Absent,
            Err(error) => return Look::Other(format!("unreadable ({})", chain(&error))),
        };
        if !target.as_str().starts_with("/dev/") {
            return Look::Other(format!("a link to {target}, outside /dev"));
        }
        match (stat.kind, stat.rdev) {
            (kind @ (Kind::CharDevice | Kind::BlockDevice), Some(number)) => {
                let numa = self.numa.entry((kind, number));
                let root = &self.root;
                let numa = numa.or_insert_with(|| numa_of(root, kind, number)).clone();
                Look::Device { numa }
            }
            (kind, _) => Look::Other(format!("a {}", kind.as_str())),
        }
    }
}

/// Whether a device node stands at `path`, links followed.
pub(super) fn is_device(root: &Root, path: &AbsPath) -> bool {
    let found = follow(root, path).ok().flatten();
    found.is_some_and(|(_, stat)| matches!(stat.kind, Kind::CharDevice | Kind::BlockDevice))
}

/// The object that `path` leads to, and where it is.
pub fn follow(root: &Root, path: &AbsPath) -> Result<Option<(AbsPath, Stat)>, RootError> {
    let mut at = root.canonical(path)?;
    for _ in 0..MOST_LINKS {
        let Some(stat) = root.stat(&at)? else {
            return Ok(None);
        };
        if stat.kind != Kind::Link {
            return Ok(Some((at, stat)));
        }
        let target = root.read_link(&at)?;
        let Some(next) = joined(&at, &target) else {
            return Ok(None);
        };
        at = root.canonical(&next)?;
    }
    Ok(None)
}

/// Where `target`, written in the link at `link`, leads. The link's directory has no links in it,
/// so that leading `..` can be taken by name.
fn joined(link: &AbsPath, target: &str) -> Option<AbsPath> {
    let mut base = link.parent()?;
    if target.starts_with('/') {
        base = AbsPath::root();
    }
    let mut rest = target.trim_start_matches('/').trim_end_matches('/');
    while let Some(up) = rest.strip_prefix("../") {
        base = base.parent().unwrap_or_else(AbsPath::root);
        rest = up;
    }
    base.join(rest.trim_start_matches("./")).ok()
}

/// The NUMA nodes of a device: its own, or that of the nearest device it hangs on. The kernel
/// writes -1 for "none", which is no node.
fn numa_of(root: &Root, kind: Kind, (major, minor): (u32, u32)) -> Vec<u32> {
    let class = if kind == Kind::BlockDevice {
        "block"
    } else {
        "char"
    };
    let inside = AbsPath::new(format!("/sys/dev/{class}/{major}:{minor}/numa_node"));
    let Some(own) = inside.ok().and_then(|path| root.canonical(&path).ok()) else {
        return Vec::new();
    };
    let hangs_on = own
        .ancestors()
        .take_while(|dir| dir.as_str().starts_with("/sys/devices/"));
    let written = hangs_on.filter_map(|dir| {
        let text = root.read_text(&dir.join("numa_node").ok()?, PAGE).ok()?;
        text.trim().parse::<i64>().ok()
    });
    // -1 of a child says nothing of its parent, which is asked next.
    written
        .filter_map(|node| u32::try_from(node).ok())
        .take(1)
        .collect()
}

#[cfg(test)]
mod tests;
