//! Operations on the databases of users and groups, and home directories of new users.

use std::collections::BTreeMap;

use super::{
    Account, ChangeKind, Node, NodeKind, Observed, Operation, OperationKind,
    accounts::{Accounts, Home},
    databases::{Database, Edit},
    desired::{Layout, Object, Place},
    difference::{Act, Steps},
};
use crate::{machine_config::Refusal, path::AbsPath, reason::Reason};

/// The order in which databases change when something comes: a user can be seen only when everything
/// else of it is there. Backwards when something goes.
const ORDER: [Database; 6] = [
    Database::Gshadow,
    Database::Group,
    Database::Subuid,
    Database::Subgid,
    Database::Shadow,
    Database::Passwd,
];

/// Closed to everybody else: what a person keeps at home is theirs.
pub(super) fn home(account: &Account) -> Object {
    Object::Directory {
        mode: 0o700,
        uid: account.uid,
        gid: account.gid,
    }
}

impl Layout {
    /// Adds what the databases will say, and the homes of new users as parents of what lies in them.
    pub(super) fn add_accounts(&mut self, accounts: Accounts, place: &Place<'_>) {
        self.refusals.extend(accounts.refusals.iter().cloned());
        self.warnings.extend(accounts.warnings.iter().cloned());
        for one in &accounts.homes {
            self.parents.insert(place.of(&one.path), home(&one.account));
        }
        self.accounts = accounts;
    }

    /// The homes that are to be made, at their canonical paths.
    fn new_homes(&self, observed: &Observed) -> BTreeMap<AbsPath, &Home> {
        let place = |home: &Home| {
            let canonical = observed.canonical.get(&home.path);
            canonical.unwrap_or(&home.path).clone()
        };
        let all = self.accounts.homes.iter().map(|home| (place(home), home));
        let free = |path: &AbsPath| {
            !observed.objects.contains_key(path) && !self.objects.contains_key(path)
        };
        all.filter(|(path, _)| free(path)).collect()
    }

    /// A warning for each new user whose home is there already.
    fn homes_in_use(&self, observed: &Observed) -> Vec<String> {
        let new = self.new_homes(observed);
        let there = self.accounts.homes.iter().filter(|home| {
            let canonical = observed.canonical.get(&home.path).unwrap_or(&home.path);
            !new.contains_key(canonical) && !self.objects.contains_key(canonical)
        });
        let told = there.map(|home| {
            format!(
                "{} is new, but {} is there already: it is left as it is",
                home.entry, home.path
            )
        });
        told.collect()
    }
}

impl Steps {
    /// Makes the homes of new users. They are told with the user.
    pub(super) fn make_homes(&mut self, after: &Layout, observed: &Observed) {
        self.warnings.extend(after.homes_in_use(observed));
        for (path, one) in after.new_homes(observed) {
            let act = Act::Put(home(&one.account));
            self.put(&path, &one.entry, act, ChangeKind::Create, Vec::new());
        }
    }
}

/// Puts what every new user finds at home into the trees that hold a new home.
pub(super) fn furnish(operations: &mut [Operation], after: &Layout, observed: &Observed) {
    for (path, one) in after.new_homes(observed) {
        for operation in &mut *operations {
            let OperationKind::Put(node) = &mut operation.kind else {
                continue;
            };
            let Some(below) = below(&operation.target, &path) else {
                continue;
            };
            let found = below.into_iter().try_fold(node, |node, name| {
                let NodeKind::Directory(children) = &mut node.kind else {
                    return None;
                };
                children.get_mut(name)
            });
            if let Some(node) = found {
                add_skeleton(node, &observed.accounts.skeleton, &one.account);
                operation.homes.push(path.clone());
            }
        }
    }
}

/// The names that lead from `top` to `path`; none where it does not lie there.
fn below<'p>(top: &AbsPath, path: &'p AbsPath) -> Option<Vec<&'p str>> {
    let depth = top.components().count();
    path.is_under(top)
        .then(|| path.components().skip(depth).collect())
}

/// What the config itself puts there stays.
fn add_skeleton(to: &mut Node, from: &BTreeMap<String, Node>, account: &Account) {
    let NodeKind::Directory(children) = &mut to.kind else {
        return;
    };
    for (name, node) in from {
        match (children.get_mut(name), &node.kind) {
            (None, _) => drop(children.insert(name.clone(), owned(node, account))),
            (Some(there), NodeKind::Directory(inside)) => add_skeleton(there, inside, account),
            (Some(_), _) => {}
        }
    }
}

fn owned(node: &Node, account: &Account) -> Node {
    let kind = match &node.kind {
        NodeKind::Directory(children) => {
            let own = |(name, child): (&String, &Node)| (name.clone(), owned(child, account));
            NodeKind::Directory(children.iter().map(own).collect())
        }
        other => other.clone(),
    };
    Node {
        mode: node.mode,
        uid: account.uid,
        gid: account.gid,
        kind,
        label: None,
    }
}

/// Adds one operation for each database, for what comes before all others and for what goes after
/// them. Gives a refusal where an entry of the config claims the whole file.
pub(super) fn add_entries(operations: &mut Vec<Operation>, after: &Layout) -> Vec<Refusal> {
    let edits = &after.accounts.edits;
    let (going, coming): (Vec<&Edit>, Vec<&Edit>) =
        edits.iter().partition(|edit| edit.takes_away());
    let of = |database: Database, all: &[&Edit]| {
        let own = all.iter().filter(|edit| edit.database() == database);
        let edits: Vec<Edit> = own.map(|edit| (*edit).clone()).collect();
        (!edits.is_empty()).then(|| Operation {
            target: database.path(),
            kind: OperationKind::Entries(edits),
            shared: true,
            homes: Vec::new(),
        })
    };
    let first: Vec<_> = ORDER.iter().filter_map(|one| of(*one, &coming)).collect();
    let last: Vec<_> = ORDER
        .iter()
        .rev()
        .filter_map(|one| of(*one, &going))
        .collect();
    let claimed = first.iter().chain(&last).filter_map(|operation| {
        let wanted = after.objects.get(&operation.target)?;
        let message = format!(
            "{} is {} and holds users and groups of this config as well",
            operation.target, wanted.entry
        );
        Some(Refusal::new(Reason::SameObject, message).at(&wanted.entry.origin))
    });
    let refusals = claimed.collect();
    operations.splice(0..0, first);
    operations.extend(last);
    refusals
}
