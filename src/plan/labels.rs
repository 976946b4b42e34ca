//! Which SELinux label a new object gets: the root's own `file_contexts`, read as selabel_file(5) does.
//!
//! Rules without a metacharacter come before all others, whatever their order; of those that are left the
//! last that matches counts. `<<none>>` means "no label is given".

use std::{collections::BTreeSet, sync::OnceLock};

use regex::bytes::{Regex, RegexBuilder};

use super::{Node, NodeKind, ObjectKind, Observed, Operation, OperationKind};
use crate::{path::AbsPath, reason::Reason};

/// What makes a path of a rule a pattern; a backslash takes the meaning from the next one.
const META: &str = ".^$?*+|[({";

/// The label that means "none is given".
const NONE: &str = "<<none>>";

/// The labelling rules of a root; empty where it has no policy.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    rules: Vec<Rule>,
    /// Paths that are labelled as if they were others: those of the administrator, then the policy's.
    substitutes: [Vec<(String, String)>; 2],
}

#[derive(Clone, Debug)]
struct Rule {
    pattern: String,
    /// The text before the first metacharacter, which every path has that matches.
    stem: String,
    literal: bool,
    kind: Option<ObjectKind>,
    label: String,
    compiled: OnceLock<Option<Regex>>,
}

/// The patterns decide, and they are never changed.
impl PartialEq for Labels {
    fn eq(&self, other: &Self) -> bool {
        let key = |rule: &Rule| (rule.pattern.clone(), rule.kind, rule.label.clone());
        self.substitutes == other.substitutes
            && self.rules.iter().map(key).eq(other.rules.iter().map(key))
    }
}

impl Labels {
    /// The rules of `texts`, in the order of precedence: `file_contexts`, `.homedirs`, `.local`; and the
    /// substitutes of `.subs` and `.subs_dist`. A line that is no rule is left out.
    pub fn read<'t>(texts: impl IntoIterator<Item = &'t str>, substitutes: [&str; 2]) -> Self {
        let lines = texts.into_iter().flat_map(str::lines);
        Self {
            rules: lines.filter_map(Rule::read).collect(),
            substitutes: substitutes.map(|text| text.lines().filter_map(substitute).collect()),
        }
    }

    /// Whether the root has a policy at all.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The label of a new object of this kind at `path`, if one is given.
    pub fn of(&self, path: &AbsPath, kind: ObjectKind) -> Option<&str> {
        if self.is_empty() {
            return None;
        }
        let [own, policys] = &self.substitutes;
        let path = substituted(own, path.as_str().to_owned());
        let path = substituted(policys, path);
        let fits = |rule: &&Rule| rule.kind.is_none_or(|of| of == kind) && rule.matches(&path);
        let literal = self.rules.iter().rev().filter(|rule| rule.literal);
        let patterns = self.rules.iter().rev().filter(|rule| !rule.literal);
        let found = literal.chain(patterns).find(fits)?;
        Some(found.label.as_str()).filter(|label| *label != NONE)
    }
}

/// `/run /var/run`: what lies below the first is labelled as below the second.
fn substitute(line: &str) -> Option<(String, String)> {
    let mut words = line.split_whitespace();
    let (from, to) = (words.next()?, words.next()?);
    let paths = from.starts_with('/') && to.starts_with('/');
    paths.then(|| (from.to_owned(), to.to_owned()))
}

/// The path with its beginning substituted; of several lines that fit the last one counts.
fn substituted(lines: &[(String, String)], path: String) -> String {
    let below = |from: &str| {
        let rest = path.strip_prefix(from.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then_some(rest)
    };
    let found = lines
        .iter()
        .rev()
        .find_map(|(from, to)| Some((to, below(from)?)));
    match found {
        Some((to, rest)) => format!("{}{rest}", to.trim_end_matches('/')),
        None => path,
    }
}

impl Rule {
    /// `PATTERN [KIND] LABEL`.
    fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (pattern, kind, label) = match words.as_slice() {
            [first, ..] if first.starts_with('#') => return None,
            [pattern, label] => (*pattern, None, *label),
            [pattern, kind, label] => (*pattern, Some(*kind), *label),
            _ => return None,
        };
        let kind = match kind {
            None => None,
            Some("--") => Some(ObjectKind::File),
            Some("-d") => Some(ObjectKind::Directory),
            Some("-l") => Some(ObjectKind::Link),
            Some("-b" | "-c" | "-p" | "-s") => Some(ObjectKind::Other),
            Some(_) => return None,
        };
        let (stem, literal) = stem(pattern);
        Some(Self {
            pattern: pattern.to_owned(),
            stem,
            literal,
            kind,
            label: label.to_owned(),
            compiled: OnceLock::new(),
        })
    }

    fn matches(&self, path: &str) -> bool {
        if self.literal {
            return self.stem == path;
        }
        // Most rules are about other places: a pattern that is never needed is never compiled.
        let compiled = || {
            let whole = format!("^(?:{})$", self.pattern);
            RegexBuilder::new(&whole).unicode(false).build().ok()
        };
        path.starts_with(&self.stem)
            && self
                .compiled
                .get_or_init(compiled)
                .as_ref()
                .is_some_and(|regex| regex.is_match(path.as_bytes()))
    }
}

/// The fixed beginning of a pattern, and whether that is all of it. What a quantifier makes optional is no
/// part of it, and before an alternative nothing is fixed.
fn stem(pattern: &str) -> (String, bool) {
    let mut stem = String::new();
    let mut rest = pattern.chars();
    while let Some(next) = rest.next() {
        match next {
            '\\' => match rest.next() {
                // A class such as \d, and no character.
                Some(escaped) if escaped.is_ascii_alphanumeric() => return (stem, false),
                Some(escaped) => stem.push(escaped),
                None => return (stem, false),
            },
            meta if META.contains(meta) => {
                if matches!(meta, '?' | '*' | '{') {
                    stem.pop();
                }
                return match pattern.contains('|') {
                    true => (String::new(), false),
                    false => (stem, false),
                };
            }
            plain => stem.push(plain),
        }
    }
    (stem, true)
}

/// Says which label each new object gets: the policy's for its place. One that takes the place of another of
/// its kind keeps that one's label, whoever gave it.
pub(super) fn add(operations: &mut [Operation], observed: &Observed) {
    if observed.labels.is_empty() {
        return;
    }
    for operation in operations {
        if let OperationKind::Put(node) = &mut operation.kind {
            let before = observed.objects.get(&operation.target);
            let before = before.filter(|facts| Some(facts.kind) == kind(node) && !facts.relabelled);
            let kept = before.filter(|facts| facts.kind != ObjectKind::Directory);
            match kept.and_then(|facts| facts.label.clone()) {
                Some(label) => node.label = Some(label),
                None => label(node, &operation.target, &observed.labels),
            }
        }
    }
}

/// What is to be said of objects in place whose labels could not be set.
pub(super) fn pending(paths: &BTreeSet<AbsPath>) -> Option<String> {
    let first = paths.first()?;
    let more = match paths.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "{first}{more} could not be given the label of the SELinux policy ({})",
        Reason::LabelPending
    ))
}

fn label(node: &mut Node, path: &AbsPath, labels: &Labels) {
    node.label = kind(node)
        .and_then(|kind| labels.of(path, kind))
        .map(str::to_owned);
    if let NodeKind::Directory(children) = &mut node.kind {
        for (name, child) in children {
            if let Ok(below) = path.join(name) {
                label(child, &below, labels);
            }
        }
    }
}

/// None for a hard link: its file has a label.
fn kind(node: &Node) -> Option<ObjectKind> {
    match node.kind {
        NodeKind::File(_) | NodeKind::Copy { .. } => Some(ObjectKind::File),
        NodeKind::Link(_) => Some(ObjectKind::Link),
        NodeKind::Directory(_) => Some(ObjectKind::Directory),
        NodeKind::Hard(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "\
# a comment
/.*	system_u:object_r:default_t:s0
/etc(/.*)?	system_u:object_r:etc_t:s0
/etc/passwd\\.lock	--	system_u:object_r:passwd_file_t:s0
/etc/.*	system_u:object_r:later_t:s0
/etc/systemd/system(/.*)?	system_u:object_r:systemd_unit_file_t:s0
/etc/motd	-l	system_u:object_r:link_t:s0
/etc/ssh/ssh_host.*key	--	system_u:object_r:sshd_key_t:s0
/mnt(/[^/]*)?	-d	system_u:object_r:mnt_t:s0
/mnt/[^/]*/.*	<<none>>
/(opt|srv)/data(/.*)?	system_u:object_r:data_t:s0
/usr/lib64?/x	system_u:object_r:lib_t:s0
/broken(	system_u:object_r:broken_t:s0
/dev/sd[^/]*	-b	system_u:object_r:disk_t:s0
too many words in this one
";
    const HOMES: &str = "/home/[^/]+/.*	unconfined_u:object_r:user_home_t:s0\n";
    const LOCAL: &str = "/etc/mine(/.*)?	system_u:object_r:mine_t:s0\n";

    fn labels() -> Labels {
        let subs = ["/data/etc /etc\n# no\n", "/var/home /home\n/new /data\n"];
        Labels::read([POLICY, HOMES, LOCAL], subs)
    }

    fn label(path: &str, kind: ObjectKind) -> Option<String> {
        let labels = labels();
        let found = labels.of(&AbsPath::new(path).unwrap(), kind)?;
        found.split(':').nth(2).map(str::to_owned)
    }

    #[test]
    fn the_last_rule_counts_and_one_without_metacharacters_before_all() {
        use ObjectKind::{Directory, File, Link};
        for (path, kind, expected) in [
            ("/etc", Directory, Some("etc_t")),
            ("/etc/hosts", File, Some("later_t")),
            ("/etc/passwd.lock", File, Some("passwd_file_t")),
            ("/etc/passwd.lock", Directory, Some("later_t")),
            ("/etc/passwdxlock", File, Some("later_t")),
            (
                "/etc/systemd/system/a.service",
                File,
                Some("systemd_unit_file_t"),
            ),
            ("/etc/motd", File, Some("later_t")),
            ("/etc/motd", Link, Some("link_t")),
            ("/etc/mine/x", File, Some("mine_t")),
            ("/etc/ssh/ssh_host_rsa_key", File, Some("sshd_key_t")),
            ("/etc/ssh/ssh_host_rsa_key.pub", File, Some("later_t")),
            ("/home/ann/.profile", File, Some("user_home_t")),
            ("/mnt/usb", Directory, Some("mnt_t")),
            ("/mnt/usb", File, Some("default_t")),
            ("/mnt/usb/x", File, None),
            ("/opt/data/x", File, Some("data_t")),
            ("/srv/data", Directory, Some("data_t")),
            ("/usr/lib/x", File, Some("default_t")),
            ("/usr/lib6/x", File, Some("lib_t")),
            ("/elsewhere", File, Some("default_t")),
        ] {
            assert_eq!(label(path, kind).as_deref(), expected, "{path} {kind:?}");
        }
    }

    #[test]
    fn substitutes_are_followed_first_the_administrators_then_the_policys() {
        use ObjectKind::File;
        assert_eq!(
            label("/var/home/ann/x", File).as_deref(),
            Some("user_home_t")
        );
        assert_eq!(
            label("/var/homes/ann/x", File).as_deref(),
            Some("default_t")
        );
        assert_eq!(label("/data/etc/hosts", File).as_deref(), Some("later_t"));
        // Only once: what the policy's lines give is not looked up in the administrator's.
        assert_eq!(label("/new/etc/hosts", File).as_deref(), Some("default_t"));
    }

    #[test]
    fn without_a_policy_nothing_is_labelled() {
        let none = Labels::default();
        assert!(none.is_empty());
        assert_eq!(none.of(&AbsPath::root(), ObjectKind::Directory), None);
        assert!(Labels::read(["", "# nothing\n"], ["", ""]).is_empty());
    }
}
