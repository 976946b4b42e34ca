//! Resolves a path link by link, so that every name on the way is known.

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;

/// Why a path cannot be resolved.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResolveError {
    /// Its links form a loop.
    Circle,
    /// This link leads out of the directory that limits the resolution.
    Outside(AbsPath),
}

/// Resolves `path` (components, separated by slashes) from the directory `from`, which contains no
/// links. Components that do not exist are kept as written. With `bounded`, no directory above
/// `from` is entered, not even in between; an absolute link is always outside.
///
/// `note` is called with every directory and the name that was looked up in it.
pub(super) fn follow(
    tree: &Root,
    from: &AbsPath,
    path: &str,
    bounded: bool,
    note: &mut dyn FnMut(&AbsPath, &str),
) -> Result<AbsPath, ResolveError> {
    let mut todo: Vec<String> = path.split('/').rev().map(str::to_owned).collect();
    let (mut at, mut links, mut last_link) = (from.clone(), 0, from.clone());
    while let Some(part) = todo.pop() {
        match part.as_str() {
            "" | "." => continue,
            ".." if bounded && at == *from => return Err(ResolveError::Outside(last_link)),
            ".." => {
                at = at.parent().unwrap_or(at);
                continue;
            }
            _ => {}
        }
        let next = at.join(&part).map_err(|_| ResolveError::Circle)?;
        note(&at, &part);
        let Ok(text) = tree.read_link(&next) else {
            at = next;
            continue;
        };
        if links == machinist_rootfs::MAX_SYMLINKS {
            return Err(ResolveError::Circle);
        }
        links += 1;
        last_link = next;
        if text.starts_with('/') {
            if bounded {
                return Err(ResolveError::Outside(last_link));
            }
            at = AbsPath::root();
        }
        todo.extend(text.split('/').rev().map(str::to_owned));
    }
    Ok(at)
}
