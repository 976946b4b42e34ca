//! What stands at a path now. A look is good for the moment only: whoever hands a path out looks again.

use super::follow;
use crate::{
    device::rules,
    path::AbsPath,
    root::{Kind, Root},
    telemetry::chain,
};

/// What stands where a device node should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A device node below `/dev`.
    Device,
    /// Nothing.
    Absent,
    /// Something else, in words that follow "it is".
    Other(String),
}

impl Node {
    /// Looks at `path`, links followed.
    pub fn at(root: &Root, path: &AbsPath) -> Self {
        match follow(root, path) {
            Ok(None) => Self::Absent,
            Ok(Some((real, _))) if !real.as_str().starts_with("/dev/") => {
                Self::Other(format!("a link to {real}, outside /dev"))
            }
            Ok(Some((_, stat))) => match stat.kind {
                Kind::CharDevice | Kind::BlockDevice => Self::Device,
                kind => Self::Other(format!("a {}, not a device", kind.as_str())),
            },
            Err(error) => Self::Other(format!("unreadable ({})", chain(&error))),
        }
    }

    /// Whether a container may get what stands at `path`; says in words why not. `present` asks that it is there.
    pub fn verdict(&self, path: &AbsPath, present: bool) -> Result<(), String> {
        match self {
            Self::Other(why) => Err(format!("{path} is {why}")),
            Self::Absent if present => Err(format!("{path} does not exist")),
            Self::Absent | Self::Device => Ok(()),
        }
    }
}

/// Mount prefixes, and where they lead: on some hosts `/opt` is a link itself.
#[derive(Debug)]
pub struct Prefixes(Vec<AbsPath>);

impl Prefixes {
    /// Those for a resource of `domain`; `further` are those that the machine's owner added.
    pub fn of(root: &Root, domain: &str, further: &[AbsPath]) -> Self {
        let named = rules::mount_prefixes(domain, further);
        let leads_to = |prefix: &AbsPath| Some(follow(root, prefix).ok()??.0);
        Self(named.iter().filter_map(leads_to).collect())
    }

    /// Whether a container may get what stands at `path`, which is allowed by its name; says in words why not.
    /// `who` must not mount what lies elsewhere.
    pub fn look_at(&self, root: &Root, path: &AbsPath, who: &str) -> Result<(), String> {
        let (real, stat) = match follow(root, path) {
            Ok(Some(found)) => found,
            Ok(None) => return Err(format!("{path} does not exist")),
            Err(error) => return Err(format!("{path} cannot be looked at: {}", chain(&error))),
        };
        if !matches!(stat.kind, Kind::Directory | Kind::File | Kind::Socket) {
            return Err(format!("{path} is a {}", stat.kind.as_str()));
        }
        if self.0.iter().any(|prefix| real.is_under(prefix)) {
            return Ok(());
        }
        Err(format!(
            "{path} leads to {real}, which {who} must not mount into containers"
        ))
    }
}
