//! Determines which user controls the directories of a path. Such a user may have placed any link,
//! mount or file there, so root follows a link there only within that user's own objects.

use super::{FileKind, Stat};
use machinist_base::abs_path::AbsPath;

/// Who may change the entries of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectoryControl {
    /// Only root.
    Root,
    /// All users may add names, and the sticky bit keeps them from moving or removing the names of
    /// others.
    Sticky,
    /// A user, in everything below `top`. A directory that is writable for a group or for all names
    /// no user.
    User {
        /// The user, once an object's owner shows it.
        uid: Option<u32>,
        /// The topmost directory that the user controls.
        top: AbsPath,
    },
}

/// The properties by which an object is recognised as the config's own.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedObject<'a> {
    /// The owners that its entry has or had.
    pub users: &'a [u32],
    /// The number of hard links to it that the config knows.
    pub names: u32,
}

/// The properties of one object on the path that the rule needs.
#[derive(Clone, Debug)]
pub(super) struct ComponentFacts {
    pub(super) stat: Stat,
    /// Users other than the trusted ones may add and remove names here.
    pub(super) shared: bool,
    /// The mount, if the object is the top of another mount or subvolume than its directory.
    pub(super) mount: Option<MountCrossing>,
}

/// A mount that a path enters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountCrossing {
    /// It is a FUSE file system, whose server may answer anything.
    pub(super) fuse: bool,
    /// The user who mounted a FUSE file system.
    pub(super) user: u32,
}

/// The users whose objects are trusted like root's: root, this process, and the owner of the root
/// directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrustedUsers(pub(super) [u32; 3]);

impl TrustedUsers {
    pub(super) fn has(self, uid: u32) -> bool {
        self.0.contains(&uid)
    }

    /// Determines who controls the directory `found` at `at`, whose parent `above` controls.
    pub(super) fn enter(
        self,
        above: &DirectoryControl,
        at: &AbsPath,
        found: &ComponentFacts,
    ) -> Result<DirectoryControl, String> {
        self.crossing(above, at, found)?;
        self.enter_as(above, at, (found.stat.uid, found.stat.mode), found.shared)
    }

    /// The same for a directory with this owner and mode, which is no mount.
    pub(super) fn enter_as(
        self,
        above: &DirectoryControl,
        at: &AbsPath,
        (uid, mode): (u32, u32),
        shared: bool,
    ) -> Result<DirectoryControl, String> {
        match above {
            DirectoryControl::Root | DirectoryControl::Sticky if !self.has(uid) => {
                Ok(DirectoryControl::User {
                    uid: Some(uid),
                    top: at.clone(),
                })
            }
            DirectoryControl::Root | DirectoryControl::Sticky => {
                Ok(match (shared, mode & 0o1000) {
                    (false, _) => DirectoryControl::Root,
                    (true, 0) => DirectoryControl::User {
                        uid: None,
                        top: at.clone(),
                    },
                    (true, _) => DirectoryControl::Sticky,
                })
            }
            DirectoryControl::User { uid: None, top } => Ok(DirectoryControl::User {
                uid: (!self.has(uid)).then_some(uid),
                top: top.clone(),
            }),
            DirectoryControl::User {
                uid: Some(user), ..
            } if self.has(uid) || uid == *user => Ok(above.clone()),
            DirectoryControl::User {
                uid: Some(user),
                top,
            } => Err(format!(
                "{at} belongs to user {uid}, in {top}, which user {user} controls"
            )),
        }
    }

    fn crossing(
        self,
        above: &DirectoryControl,
        at: &AbsPath,
        found: &ComponentFacts,
    ) -> Result<(), String> {
        let Some(mount) = &found.mount else {
            return Ok(());
        };
        let below = !matches!(above, DirectoryControl::Root);
        if mount.fuse && (below || !self.has(mount.user)) {
            let user = mount.user;
            return Err(format!("{at} is a FUSE file system mounted by user {user}"));
        }
        if below && !self.has(found.stat.uid) {
            let uid = found.stat.uid;
            return Err(format!(
                "{at} is a mount or a subvolume whose top belongs to user {uid}, in a directory that a user controls"
            ));
        }
        Ok(())
    }

    /// Whether root may follow the link of the user `uid` at `at`: without limits (`None`), or only
    /// through objects of the user that controls it.
    pub(super) fn follow(
        self,
        above: &DirectoryControl,
        at: &AbsPath,
        uid: u32,
        target: &str,
    ) -> Result<Option<LinkBound>, String> {
        match above {
            DirectoryControl::Root if self.has(uid) => Ok(None),
            DirectoryControl::User {
                uid: Some(user),
                top,
            } => Ok(Some(LinkBound {
                link: at.clone(),
                target: target.to_owned(),
                owner: uid,
                user: *user,
                top: top.clone(),
            })),
            DirectoryControl::Root => Err(format!("the link {at} belongs to user {uid}")),
            // The sticky bit keeps others from moving root's links out of the directory, but not
            // from moving a link of root's into it from a directory of theirs.
            DirectoryControl::Sticky => Err(format!(
                "the link {at}, which belongs to user {uid}, is in a directory to which every user may move links"
            )),
            DirectoryControl::User { uid: None, .. } => Err(format!(
                "the link {at}, which belongs to user {uid}, is in a directory that others may write"
            )),
        }
    }

    /// Whether the object at `at` itself may be replaced, read or changed.
    pub(super) fn target(
        self,
        above: &DirectoryControl,
        at: &AbsPath,
        stat: &Stat,
        own: &ExpectedObject<'_>,
    ) -> Result<(), String> {
        let uid = stat.uid;
        let known = self.has(uid) || own.users.contains(&uid);
        match above {
            DirectoryControl::Root => return Ok(()),
            DirectoryControl::User { uid: None, .. } => {}
            DirectoryControl::User {
                uid: Some(user), ..
            } if known || uid == *user => {}
            DirectoryControl::Sticky if known => {}
            DirectoryControl::User { top, .. } => {
                return Err(format!(
                    "{at} belongs to user {uid}, in {top}, which another user controls"
                ));
            }
            DirectoryControl::Sticky => {
                return Err(format!(
                    "{at} belongs to user {uid}, in a directory that everybody may write"
                ));
            }
        }
        if stat.kind == FileKind::File && stat.nlink > own.names {
            return Err(format!(
                "{at} has {} hard links, in a directory that user {uid} or another user controls",
                stat.nlink
            ));
        }
        Ok(())
    }
}

/// The limits of a link that a user controls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkBound {
    pub(super) link: AbsPath,
    /// The target as written in the link.
    pub(super) target: String,
    pub(super) owner: u32,
    pub(super) user: u32,
    pub(super) top: AbsPath,
}

impl LinkBound {
    /// Whether the link may pass the object at `at`, which belongs to `uid` (`None` if it does not
    /// exist).
    pub(super) fn passes(&self, at: &AbsPath, uid: Option<u32>) -> Result<(), String> {
        if at.is_under(&self.top) && uid.is_none_or(|uid| uid == self.user) {
            return Ok(());
        }
        Err(self.refusal(&at.to_string()))
    }

    pub(super) fn refusal(&self, to: &str) -> String {
        let Self {
            link,
            target,
            owner,
            user,
            top,
        } = self;
        let through = match to == target {
            true => String::new(),
            false => format!(" through {to}"),
        };
        format!(
            "the link {link}, which belongs to user {owner}, leads to {target}{through}; user {user} controls {top}, and \
             a link there may pass only objects of that user below it"
        )
    }
}
