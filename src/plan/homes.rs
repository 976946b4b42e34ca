//! Plans the operations on the account databases and the home directories of new users.

use std::collections::BTreeMap;

use super::{
    Account, ChangeKind, Node, NodeKind, Observed, Operation, OperationKind,
    accounts::{Accounts, Home},
    databases::{Database, Edit},
    desired::{Layout, Object, Place},
    difference::{Act, Steps},
};
use crate::{machine_config::Refusal, path::AbsPath, reason::Reason};

/// The order in which the databases are written when entries are added: a user becomes visible only
/// when all its other entries exist. Removals use the reverse order.
const ORDER: [Database; 6] = [
    Database::Gshadow,
    Database::Group,
    Database::Subuid,
    Database::Subgid,
    Database::Shadow,
    Database::Passwd,
];

/// The home directory is accessible only to its user.
pub(super) fn home(account: &Account) -> Object {
    Object::Directory {
        mode: 0o700,
        uid: account.uid,
        gid: account.gid,
    }
}

impl Layout {
    /// Adds the planned entries, and the homes of new users as parents of the objects in them.
    pub(super) fn add_accounts(&mut self, accounts: Accounts, place: &Place<'_>) {
        self.refusals.extend(accounts.refusals.iter().cloned());
        self.warnings.extend(accounts.warnings.iter().cloned());
        for one in &accounts.homes {
            self.parents.insert(place.of(&one.path), home(&one.account));
        }
        self.accounts = accounts;
    }

    /// The homes to create, at their canonical paths.
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

    /// A warning for each new user whose home already exists.
    fn homes_in_use(&self, observed: &Observed) -> Vec<String> {
        let new = self.new_homes(observed);
        let there = self.accounts.homes.iter().filter(|home| {
            let canonical = observed.canonical.get(&home.path).unwrap_or(&home.path);
            !new.contains_key(canonical) && !self.objects.contains_key(canonical)
        });
        let told = there.map(|home| {
            format!(
                "{} is new, but its home {} already exists and is not changed",
                home.entry, home.path
            )
        });
        told.collect()
    }
}

impl Steps {
    /// Creates the homes of new users. They are reported with the user, not as separate changes.
    pub(super) fn make_homes(&mut self, after: &Layout, observed: &Observed) {
        self.warnings.extend(after.homes_in_use(observed));
        for (path, one) in after.new_homes(observed) {
            let act = Act::Put(home(&one.account));
            self.put(&path, &one.entry, act, ChangeKind::Create, Vec::new());
        }
    }
}

/// Adds the content of /etc/skel to the new homes.
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

/// The path components from `top` to `path`; none if `path` is not below `top`.
fn below<'p>(top: &AbsPath, path: &'p AbsPath) -> Option<Vec<&'p str>> {
    let depth = top.components().count();
    path.is_under(top)
        .then(|| path.components().skip(depth).collect())
}

/// Objects of the config are not overwritten.
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

/// Adds one operation for each database: additions before all other operations, removals after
/// them. Returns a refusal if an entry of the config manages the whole file.
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
            "{} is {}, but machinist also writes users and groups of this config to it",
            operation.target, wanted.entry
        );
        Some(Refusal::new(Reason::SameObject, message).at(&wanted.entry.origin))
    });
    let refusals = claimed.collect();
    operations.splice(0..0, first);
    operations.extend(last);
    refusals
}
