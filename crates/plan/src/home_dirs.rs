//! Plans the operations on the account databases and the home directories of new users.

use std::collections::BTreeMap;

use super::{
    ChangeKind, MachineFacts, NewObject, NodeKind, Operation, OperationKind, UserFacts,
    accounts::{Accounts, HomeDir},
    desired_tree::{DesiredTree, ObjectSpec, PathResolver},
    passwd::{Database, Edit},
    steps::{PathAction, PathSteps},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::Refusal;

/// The order in which the databases are written when entries are added: a user becomes visible only
/// when all its other entries exist. Removals use the reverse order.
const WRITE_ORDER: [Database; 6] = [
    Database::Gshadow,
    Database::Group,
    Database::Subuid,
    Database::Subgid,
    Database::Shadow,
    Database::Passwd,
];

/// The home directory is accessible only to its user.
pub(super) fn home(account: &UserFacts) -> ObjectSpec {
    ObjectSpec::Directory {
        mode: 0o700,
        uid: account.uid,
        gid: account.gid,
    }
}

impl DesiredTree {
    /// Adds the planned entries, and the homes of new users as parents of the objects in them.
    pub(super) fn add_accounts(&mut self, accounts: Accounts, place: &PathResolver<'_>) {
        self.refusals.extend(accounts.refusals.iter().cloned());
        self.warnings.extend(accounts.warnings.iter().cloned());
        for one in &accounts.homes {
            self.parents.insert(place.of(&one.path), home(&one.account));
        }
        self.accounts = accounts;
    }

    /// The homes to create, at their canonical paths.
    fn new_homes(&self, observed: &MachineFacts) -> BTreeMap<AbsPath, &HomeDir> {
        let place = |home: &HomeDir| {
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
    fn homes_in_use(&self, observed: &MachineFacts) -> Vec<String> {
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

impl PathSteps {
    /// Creates the homes of new users. They are reported with the user, not as separate changes.
    pub(super) fn make_homes(&mut self, after: &DesiredTree, observed: &MachineFacts) {
        self.warnings.extend(after.homes_in_use(observed));
        for (path, one) in after.new_homes(observed) {
            let act = PathAction::Put(home(&one.account));
            self.put(&path, &one.entry, act, ChangeKind::Create, Vec::new());
        }
    }
}

/// Adds the content of /etc/skel to the new homes.
pub(super) fn fill_new_homes(
    operations: &mut [Operation],
    after: &DesiredTree,
    observed: &MachineFacts,
) {
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
fn add_skeleton(to: &mut NewObject, from: &BTreeMap<String, NewObject>, account: &UserFacts) {
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

fn owned(node: &NewObject, account: &UserFacts) -> NewObject {
    let kind = match &node.kind {
        NodeKind::Directory(children) => {
            let own = |(name, child): (&String, &NewObject)| (name.clone(), owned(child, account));
            NodeKind::Directory(children.iter().map(own).collect())
        }
        other => other.clone(),
    };
    NewObject {
        mode: node.mode,
        uid: account.uid,
        gid: account.gid,
        kind,
        label: None,
    }
}

/// Adds one operation for each database: additions before all other operations, removals after
/// them. Returns a refusal if an entry of the config manages the whole file.
pub(super) fn add_entries(operations: &mut Vec<Operation>, after: &DesiredTree) -> Vec<Refusal> {
    let edits = &after.accounts.edits;
    let (going, coming): (Vec<&Edit>, Vec<&Edit>) =
        edits.iter().partition(|edit| edit.is_removal());
    let of = |database: Database, all: &[&Edit]| {
        let own = all.iter().filter(|edit| edit.database() == database);
        let edits: Vec<Edit> = own.map(|edit| (*edit).clone()).collect();
        (!edits.is_empty()).then(|| Operation {
            target: database.path(),
            kind: OperationKind::Entries(edits),
            shared: true,
            merged_from: None,
            homes: Vec::new(),
        })
    };
    let first: Vec<_> = WRITE_ORDER
        .iter()
        .filter_map(|one| of(*one, &coming))
        .collect();
    let last: Vec<_> = WRITE_ORDER
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
        Some(Refusal::new(Reason::DuplicateTarget, message).at(&wanted.entry.origin))
    });
    let refusals = claimed.collect();
    operations.splice(0..0, first);
    operations.extend(last);
    refusals
}
