//! Resolves symbolic links that exist where a config wants another kind of object, and the links of an ostree
//! host's layout.

use machinist_base::abs_path::AbsPath;
use machinist_plan::{LinkEnd, ObjectKind, ObservedPath, is_layout};
use machinist_rootfs::{FileKind, Root, RootError};

use super::{list_if_there, objects::ObjectObserver, parent_resolver::ParentResolver};

/// Maximum number of objects that are counted below one directory.
const MAX_COUNTED_OBJECTS: usize = 10_000;

/// A file that exists on a host that ostree has booted.
const OSTREE_BOOTED_PATH: &str = "/run/ostree-booted";

/// The directories whose children are the layout.
const LAYOUT_DIRS: [&str; 3] = ["/", "/usr", "/var"];

impl ObjectObserver<'_> {
    /// Resolves the links that exist where another kind of object is requested, and those of the layout.
    pub(super) fn kinds<'p>(
        &mut self,
        asked: impl Iterator<Item = &'p ObservedPath>,
    ) -> Result<(), RootError> {
        let (root, mut differ) = (self.root, false);
        let mut places = ParentResolver::today(root);
        for asked in asked {
            let (Some(kind), Some(facts)) = (asked.kind, self.seen.objects.get(&asked.path)) else {
                continue;
            };
            differ |= kind != facts.kind;
            let link = facts.kind == ObjectKind::Link;
            if !link || (kind == ObjectKind::Link && !is_layout(&asked.path)) {
                continue;
            }
            // Only root's links are counted below: another user's link may lead to a tree that takes forever to
            // walk.
            let count = facts.uid == 0;
            let end = places.end(&asked.path)?;
            let end = link_end(root, end, count)?;
            self.seen.link_ends.insert(asked.path.clone(), end);
        }
        let ostree = AbsPath::new(OSTREE_BOOTED_PATH).ok();
        let ostree = ostree.map(|path| root.stat(&path)).transpose()?.flatten();
        if differ && ostree.is_some() {
            for directory in LAYOUT_DIRS
                .into_iter()
                .filter_map(|path| AbsPath::new(path).ok())
            {
                for entry in list_if_there(root, &directory)? {
                    if entry.kind == FileKind::Link
                        && let Ok(path) = directory.join(&entry.name)
                    {
                        self.seen.layout_targets.insert(places.end(&path)?);
                    }
                }
            }
        }
        Ok(())
    }
}

fn link_end(root: &Root, path: AbsPath, count: bool) -> Result<LinkEnd, RootError> {
    let stat = match root.stat(&path) {
        // A link that leads below itself has no end.
        Err(error) if error.is_unreachable() || error.is_loop() => None,
        stat => stat?,
    };
    let kind = stat.map(|stat| match stat.kind {
        FileKind::File => ObjectKind::File,
        FileKind::Directory => ObjectKind::Directory,
        FileKind::Link => ObjectKind::Link,
        _ => ObjectKind::Other,
    });
    let below = match kind {
        Some(ObjectKind::Directory) if count => count_below(root, &path)?,
        _ => None,
    };
    Ok(LinkEnd { path, kind, below })
}

/// Counts the objects below a directory; returns `None` if there are too many, or too deep ones.
fn count_below(root: &Root, directory: &AbsPath) -> Result<Option<usize>, RootError> {
    let (mut todo, mut count) = (vec![directory.clone()], 0);
    while let Some(directory) = todo.pop() {
        let listing = match root.listing(&directory) {
            // It is unreachable, or another process removed or replaced it in the meantime.
            Err(error) if error.is_unreachable() || error.is_absent() => return Ok(None),
            listing => listing?,
        };
        count += listing.entries.len() + listing.unreadable_names;
        if count > MAX_COUNTED_OBJECTS {
            return Ok(None);
        }
        let below = listing.entries.iter();
        for entry in below.filter(|entry| entry.kind == FileKind::Directory) {
            match directory.join(&entry.name) {
                Ok(path) => todo.push(path),
                // Its path is too long.
                Err(_) => return Ok(None),
            }
        }
    }
    Ok(Some(count))
}
