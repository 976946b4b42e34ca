//! The kernel arguments that a kept deployment has from machinist, in comments of the file that selects it.

use machinist_ignition::{KernelArgument, KernelCommandLine};

const HOST: &str = "# Host: ";
const CURRENT: &str = "# Current: ";
const PREVIOUS: &str = "# Previous: ";
const EARLIER: &str = "# Earlier: ";

/// The arguments of the kept deployment and of those before it, without those of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptArguments {
    /// The arguments of the host when the file was written.
    pub(super) host: KernelCommandLine,
    pub(super) current: KernelCommandLine,
    /// `None` if there was no earlier deployment.
    pub(super) previous: Option<KernelCommandLine>,
    /// Those before the previous ones, in case that the file was written and the new grub.cfg was not.
    pub(super) earlier: Option<KernelCommandLine>,
}

impl KeptArguments {
    /// Reads the comments of a file that only machinist writes.
    pub(super) fn parse(text: &str) -> Self {
        let line = |prefix: &str| {
            let mut lines = text.lines();
            let line = lines.find_map(|line| line.strip_prefix(prefix))?;
            Some(KernelCommandLine::parse(line))
        };
        Self {
            host: line(HOST).unwrap_or_default(),
            current: line(CURRENT).unwrap_or_default(),
            previous: line(PREVIOUS),
            earlier: line(EARLIER),
        }
    }

    /// Formats the comments.
    pub(super) fn to_comments(&self) -> String {
        let mut text = String::new();
        for (prefix, arguments) in [
            (HOST, Some(&self.host)),
            (CURRENT, Some(&self.current)),
            (PREVIOUS, self.previous.as_ref()),
            (EARLIER, self.earlier.as_ref()),
        ] {
            if let Some(arguments) = arguments {
                text.push_str(&format!("{prefix}{arguments}\n"));
            }
        }
        text
    }

    /// These arguments, to be followed by `current`.
    pub(super) fn followed_by(&self, host: KernelCommandLine, current: KernelCommandLine) -> Self {
        Self {
            host,
            current,
            previous: Some(self.current.clone()),
            earlier: self.previous.clone(),
        }
    }

    /// Returns a record without arguments of machinist that follows this one: another kernel became the default, and has
    /// only those of the host.
    pub(super) fn of_host_alone(&self, host: &KernelCommandLine) -> Self {
        Self {
            host: host.clone(),
            previous: Some(self.current.clone()),
            ..Self::default()
        }
    }

    /// What the file held before its last change.
    pub(super) fn before(&self) -> Option<Self> {
        Some(Self {
            host: self.host.clone(),
            current: self.previous.clone()?,
            previous: self.earlier.clone(),
            earlier: None,
        })
    }

    /// As [`Self::in_config`]. Other programs may have appended arguments to those of machinist.
    pub(super) fn among(&self, all: &KernelCommandLine) -> Option<(Self, KernelCommandLine)> {
        let is_known = |(kept, _): &(Self, KernelCommandLine)| kept.current == self.current;
        let found = self.in_config(all, true);
        if found.as_ref().is_some_and(is_known) || self.current.iter().next().is_none() {
            return found;
        }
        let is_host_same = joined(&self.host, &self.previous.clone().unwrap_or_default()) == *all;
        if let Some(host) = self.host_around(all).filter(|_| !is_host_same) {
            return Some((self.clone(), host));
        }
        found.or_else(|| {
            let before = self.before()?;
            let host = before.host_around(all)?;
            Some((before, host))
        })
    }

    /// The arguments without the current ones, wherever these are; `None` if one is missing.
    fn host_around(&self, all: &KernelCommandLine) -> Option<KernelCommandLine> {
        let mut host = all.clone();
        for own in self.current.iter().rev() {
            host.remove_last(own);
        }
        let has_all = host.iter().len() + self.current.iter().len() == all.iter().len();
        has_all.then_some(host)
    }

    /// Splits the arguments of a boot into those of machinist and those of the host: by this record, or by the one before
    /// if the boot loader does not have the new arguments yet. `None` if neither fits.
    ///
    /// A record without arguments fits every boot, so that it counts only if a keep `may_be_unfinished`.
    pub(super) fn in_config(
        &self,
        all: &KernelCommandLine,
        may_be_unfinished: bool,
    ) -> Option<(Self, KernelCommandLine)> {
        let candidates = [Some(self.clone()), self.before()];
        let candidates = candidates.into_iter().flatten().collect::<Vec<Self>>();
        let exact = candidates
            .iter()
            .find(|kept| joined(&kept.host, &kept.current) == *all)
            .map(|kept| (kept.clone(), kept.host.clone()));
        // The host's own arguments may have changed since.
        let is_empty = |kept: &Self| kept.current.iter().next().is_none();
        let changed = || {
            let mut known = candidates
                .iter()
                .filter(|kept| *kept == self || may_be_unfinished || !is_empty(kept));
            known.find_map(|kept| {
                let mut host = all.clone();
                for own in kept.current.iter().rev() {
                    host.remove_last(own);
                }
                (joined(&host, &kept.current) == *all).then(|| (kept.clone(), host))
            })
        };
        exact.or_else(changed)
    }
}

/// The arguments of the host, followed by others.
pub(super) fn joined(host: &KernelCommandLine, own: &KernelCommandLine) -> KernelCommandLine {
    let mut all = host.clone();
    all.append(own);
    all
}

/// The arguments that follow those of the host; `None` if others do.
pub(super) fn following_host(
    host: &KernelCommandLine,
    all: &KernelCommandLine,
) -> Option<KernelCommandLine> {
    let own: KernelCommandLine = all.iter().skip(host.iter().len()).cloned().collect();
    (joined(host, &own) == *all).then_some(own)
}

/// The arguments besides those of the host, in any order; `None` if one of the host is missing.
pub(super) fn besides_host(
    host: &KernelCommandLine,
    all: &KernelCommandLine,
) -> Option<KernelCommandLine> {
    let mut missing: Vec<&KernelArgument> = host.iter().collect();
    let own = all.iter().filter(|one| {
        let of_host = missing.iter().position(|other| other == one);
        of_host.map(|at| missing.remove(at)).is_none()
    });
    let own: KernelCommandLine = own.cloned().collect();
    missing.is_empty().then_some(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(host: &str, current: &str, previous: Option<&str>) -> KeptArguments {
        KeptArguments {
            host: KernelCommandLine::parse(host),
            current: KernelCommandLine::parse(current),
            previous: previous.map(KernelCommandLine::parse),
            earlier: None,
        }
    }

    /// Only arguments that the file has had prove that a keep was interrupted.
    #[test]
    fn arguments_after_those_of_machinist_are_no_interrupted_keep() {
        let first = kept("quiet", "nosmt", Some(""));
        for (all, expected) in [
            ("quiet nosmt", Some("nosmt")),
            ("quiet splash nosmt", Some("nosmt")),
            ("quiet", Some("")),
            ("quiet nosmt crashkernel=1G", None),
            ("quiet splash", None),
        ] {
            let found = first.in_config(&KernelCommandLine::parse(all), false);
            let found = found.map(|(kept, _)| kept.current.to_string());
            assert_eq!(found.as_deref(), expected, "{all}");
        }
        let second = kept("quiet", "a=1", Some("nosmt"));
        let found = second.in_config(&KernelCommandLine::parse("splash nosmt"), false);
        assert_eq!(found.unwrap().0.current.to_string(), "nosmt");
        let none = kept("quiet", "", Some("nosmt"));
        let (found, host) = none
            .in_config(&KernelCommandLine::parse("quiet splash"), false)
            .unwrap();
        assert_eq!((found, host.to_string()), (none, "quiet splash".to_owned()));
    }

    /// Other programs append to the entries of new kernels, also after a keep that did not reach the file with which these
    /// begin.
    #[test]
    fn arguments_among_those_of_the_host_are_found() {
        let kept = kept("quiet", "a=2", Some("a=1"));
        for (all, expected) in [
            ("quiet a=2", Some(("a=2", "quiet"))),
            ("quiet a=2 x=1", Some(("a=2", "quiet x=1"))),
            ("quiet a=1 x=1", Some(("a=1", "quiet x=1"))),
            ("quiet a=1", Some(("a=1", "quiet"))),
            ("quiet x=1", None),
        ] {
            let found = kept.among(&KernelCommandLine::parse(all));
            let found = found.map(|(kept, host)| (kept.current.to_string(), host.to_string()));
            let expected = expected.map(|(own, host)| (own.to_owned(), host.to_owned()));
            assert_eq!(found, expected, "{all}");
        }
    }
}
