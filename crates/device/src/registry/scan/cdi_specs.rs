//! Reads the CDI specs on disk.

use std::collections::BTreeMap;

use super::names;
use crate::{
    Refusal,
    cdi::{self, CdiFile, SPEC_DIRS},
    dra::cdi_edits::uid_of,
    registry::{
        config_files::owner_fault,
        follow_links::follow,
        watch_target::{WatchDepth, nearest_dir},
    },
};
use machinist_base::{abs_path::AbsPath, error_chain::chain, reason::Reason};
use machinist_rootfs::{FileKind, Root, RootError};

/// The maximum number of specs. Toolkits write a handful, and DRA drivers one for each claim; every
/// scan parses all of them.
const MAX_SPECS: usize = 1024;

/// All valid specs, and the errors in the others.
#[derive(Debug, Default)]
pub(super) struct CdiSpecs {
    pub(super) files: Vec<CdiFile>,
    pub(super) problems: Vec<Refusal>,
    /// Whether something could not be read: the list of devices may be incomplete then.
    pub(super) unread: bool,
}

impl CdiSpecs {
    /// Reads all specs, and adds the directories to watch to `dirs`.
    pub(super) fn read(root: &Root, dirs: &mut BTreeMap<AbsPath, WatchDepth>) -> Self {
        let mut specs = Self::default();
        for (priority, dir) in SPEC_DIRS.iter().enumerate() {
            let Ok(dir) = AbsPath::new(*dir) else {
                continue;
            };
            let dir = root.canonical(&dir).unwrap_or(dir);
            let nearest = nearest_dir(root, &dir);
            let depth = if nearest == dir {
                WatchDepth::Content
            } else {
                WatchDepth::Names
            };
            dirs.insert(nearest, depth);
            let all = names(root, &dir);
            specs.unread |= all.is_err();
            for name in all.unwrap_or_default() {
                let is_spec = name.ends_with(".json") || name.ends_with(".yaml");
                // The specs of this driver's claims define no devices to advertise.
                if !is_spec || uid_of(&name).is_some() {
                    continue;
                }
                if specs.files.len() >= MAX_SPECS {
                    specs.unread = true;
                    let message = format!(
                        "there are more than {MAX_SPECS} CDI specs: the rest are not read; devices of kinds in use are kept unchanged"
                    );
                    specs.refuse(&dir, message);
                    return specs;
                }
                if let Ok(path) = dir.join(&name) {
                    specs.take(root, (path, priority), dirs);
                }
            }
        }
        specs
    }

    fn is_unread(&mut self, path: &AbsPath, error: &RootError) {
        self.unread = true;
        self.refuse(path, chain(error));
    }

    fn refuse(&mut self, path: &AbsPath, message: String) {
        let refusal = Refusal::new(Reason::SourceUnreadable, message);
        self.problems.push(refusal.file(path.as_str()));
    }

    /// Reads one spec. A spec may run hooks as root on the host, so only root or the agent's user may
    /// be able to write it. Links are followed, as runtimes do.
    fn take(
        &mut self,
        root: &Root,
        (path, priority): (AbsPath, usize),
        dirs: &mut BTreeMap<AbsPath, WatchDepth>,
    ) {
        let (real, stat) = match follow(root, &path) {
            Ok(Some(found)) => found,
            Ok(None) => return,
            Err(error) => return self.is_unread(&path, &error),
        };
        if let Some(dir) = real.parent().filter(|_| real != path) {
            dirs.entry(dir).or_insert(WatchDepth::Content);
        }
        if stat.kind != FileKind::File {
            let kind = stat.kind.as_str();
            return self.refuse(&path, format!("it is a {kind}; specs are regular files"));
        }
        if let Some(fault) = owner_fault(&stat, nix::unistd::geteuid().as_raw()) {
            return self.refuse(&path, fault);
        }
        let text = match root.read_nofollow(&real, cdi::MAX_SPEC_BYTES as u64) {
            Ok(bytes) => String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned()),
            Err(error) if error.is_not_found() => return,
            Err(error @ RootError::TooLarge { .. }) => Err(chain(&error)),
            Err(error) => return self.is_unread(&path, &error),
        };
        match text {
            Ok(text) => match cdi::parse(path.as_str(), &text) {
                Ok(spec) => self.files.push(CdiFile {
                    path,
                    priority,
                    spec,
                }),
                Err(refusal) => self.problems.push(refusal),
            },
            Err(why) => self.refuse(&path, why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Root, path: &str, kind: &str) {
        let path: AbsPath = path.parse().unwrap();
        root.make_dirs(&path.parent().unwrap(), 0o755).unwrap();
        let text = format!(
            r#"{{"cdiVersion": "0.5.0", "kind": "{kind}", "devices": [{{"name": "g", "containerEdits": {{"env": ["A=1"]}}}}]}}"#
        );
        root.replace(&path, text.as_bytes(), 0o644).unwrap();
    }

    #[test]
    fn own_claim_specs_do_not_count_and_too_many_others_keep_the_known_devices() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        for claim in 0..=MAX_SPECS {
            let ours = format!("/var/run/cdi/dra.machinist.dev-{claim}.json");
            put(&root, &ours, "dra.machinist.dev/claim");
        }
        put(&root, "/var/run/cdi/vendor.json", "acme.dev/gpu");
        let specs = CdiSpecs::read(&root, &mut BTreeMap::new());
        let read: Vec<_> = specs.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(read, ["/var/run/cdi/vendor.json"]);
        assert!(!specs.unread && specs.problems.is_empty());

        for other in 0..MAX_SPECS {
            put(&root, &format!("/etc/cdi/other-{other}.json"), "acme.dev/x");
        }
        let specs = CdiSpecs::read(&root, &mut BTreeMap::new());
        assert!(specs.unread, "an ignored spec does not count as removed");
        let problem = specs.problems[0].to_string();
        assert!(problem.contains("more than 1024 CDI specs"), "{problem}");
    }
}
