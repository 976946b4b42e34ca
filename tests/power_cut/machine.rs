//! A recorded update, and what recovery makes of every state that a power cut may leave of it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{DefaultHasher, Hasher as _},
    io,
    sync::{Arc, Mutex},
};

use machinist::{
    machine_config,
    path::AbsPath,
    root::{
        Act, Object, Op, Recording, Root, Tree,
        replay::{self, Effort, Inodes, Model},
    },
    update::{
        journal::{Journal, Mark, ObjectId, OperationRecordKind},
        recover::{self, RecoverError},
        store::Store,
    },
};

use crate::{
    by_hand::ByHand,
    case::{Case, plain},
    sandbox::{Sandbox, at, difference, without_staging},
};

/// Inode number and birth time.
type Id = (u64, Option<(i64, u32)>);

/// The log of an update, and who was who in it.
pub(crate) struct Recorded {
    pub(crate) case: Arc<Case>,
    pub(crate) log: Vec<Op>,
    start: Tree,
    /// What each path held when the commit was about to begin.
    there: BTreeMap<AbsPath, Id>,
}

/// How the tests recover: by the code under test, or by a mutant of it.
pub(crate) type Recover = fn(&Store) -> Result<Journal, RecoverError>;

pub(crate) fn as_at_boot(store: &Store) -> Result<Journal, RecoverError> {
    recover::recover(store).map(|(journal, _)| journal)
}

/// What was found over all states.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) results: HashSet<u64>,
    pub(crate) went_back: usize,
    pub(crate) went_on: usize,
    pub(crate) completed: usize,
    pub(crate) bad: Vec<String>,
}

impl Recorded {
    /// Runs `update` on the case's machine and writes down what it does.
    pub(crate) fn of(case: Case, update: impl FnOnce(&Root, &Case)) -> Self {
        let sandbox = case.sandbox();
        let there = Arc::new(Mutex::new(BTreeMap::new()));
        let (root, recording) = sandbox.root().recording();
        let (plain_root, seen) = (sandbox.root(), Arc::clone(&there));
        let hook = move |op: &Op| -> Option<io::Error> {
            let mut seen = seen.lock().unwrap();
            if is_commit(op) && seen.is_empty() {
                *seen = identities(&plain_root);
            }
            None
        };
        update(&root.with_fault(Arc::new(hook)), &case);
        let there = std::mem::take(&mut *there.lock().unwrap());
        assert!(!there.is_empty(), "nothing was committed");
        let log = Recording::log(&recording);
        Self {
            start: case.start.clone(),
            case: Arc::new(case),
            log,
            there,
        }
    }

    /// The recovery from each state that may be left of the update, every `step` operations.
    pub(crate) fn recoveries(&self, step: usize, effort: Effort) -> Vec<Self> {
        let numbers = self.numbers(&self.log);
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for cut in (0..=self.log.len()).step_by(step) {
            let drawn = replay::drawn_at(cut, effort);
            let states =
                replay::states_with_inodes(&self.log, &self.start, cut, Model::Strict, drawn);
            for (tree, inodes) in states.unwrap() {
                if !seen.insert(hash(&(&tree, &inodes))) {
                    continue;
                }
                let state = State {
                    recorded: self,
                    numbers: &numbers,
                    tree: &tree,
                    inodes: &inodes,
                };
                all.push(state.recovery());
            }
        }
        all
    }

    /// The replay's number of each object that the journal may name, in this log or a mutant of it.
    fn numbers(&self, log: &[Op]) -> HashMap<Id, usize> {
        let same = self.start == self.case.start;
        // A recovery names only what was there when it began.
        let commit = log.iter().position(is_commit).filter(|_| same).unwrap_or(0);
        let mut settled = log[..commit].to_vec();
        let file_systems: HashSet<u64> = log.iter().map(|op| op.fs).collect();
        settled.extend(file_systems.into_iter().map(|fs| Op {
            fs,
            path: AbsPath::root(),
            act: Act::SyncFs,
        }));
        let effort = Effort { seed: 0, count: 2 };
        let model = Model::Ordered;
        let mut states =
            replay::states_with_inodes(&settled, &self.start, settled.len(), model, effort)
                .unwrap();
        let (_, inodes) = states.next().unwrap();
        let pairs = self
            .there
            .iter()
            .filter_map(|(path, id)| Some((*id, *inodes.get(path)?)));
        pairs.collect()
    }

    /// Cuts the power at every moment of `log` and recovers from every state that may be left.
    pub(crate) fn cut(
        &self,
        log: &[Op],
        recover: Recover,
        step: usize,
        model: Model,
        effort: Effort,
    ) -> Found {
        let numbers = self.numbers(log);
        let mut found = Found::default();
        let (mut seen, mut completed) = (HashSet::new(), HashSet::new());
        for cut in (0..=log.len()).step_by(step) {
            let drawn = replay::drawn_at(cut, effort);
            let states = replay::states_with_inodes(log, &self.start, cut, model, drawn).unwrap();
            for (tree, inodes) in states {
                if !seen.insert(hash(&(&tree, &inodes))) {
                    continue;
                }
                found.states += 1;
                let state = State {
                    recorded: self,
                    numbers: &numbers,
                    tree: &tree,
                    inodes: &inodes,
                };
                if let Err(what) = state.check(recover, &mut found, &mut completed) {
                    found
                        .bad
                        .push(format!("{model:?}, cut at {cut} of {}: {what}", log.len()));
                }
            }
        }
        found
    }
}

/// The first renames of a commit are between staging and the machine.
fn is_commit(op: &Op) -> bool {
    let staged =
        |path: &AbsPath| path.as_str().contains("/tx/") || path.as_str().contains("/.machinist/");
    match &op.act {
        // The journal and its spare take turns in the same way.
        Act::Exchange(with) => !with.as_str().ends_with("/machinist/journal"),
        Act::Rename(to) => staged(&op.path) != staged(to),
        _ => false,
    }
}

fn identities(root: &Root) -> BTreeMap<AbsPath, Id> {
    let tree = Tree::capture(root).unwrap();
    let id = |path: &AbsPath| {
        let stat = root.stat(path).unwrap().unwrap();
        (stat.identity.ino, stat.identity.birth)
    };
    tree.0.keys().map(|path| (path.clone(), id(path))).collect()
}

fn hash(what: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// One state that a power cut may leave.
struct State<'a> {
    recorded: &'a Recorded,
    numbers: &'a HashMap<Id, usize>,
    tree: &'a Tree,
    inodes: &'a Inodes,
}

impl State<'_> {
    /// The state as a machine that boots, with a journal that knows its inode numbers.
    fn boot(&self) -> Sandbox {
        let sandbox = self.recorded.case.holding(self.tree);
        let path = sandbox.path("/var/lib/machinist/journal");
        let Some(mut journal) = std::fs::read(&path)
            .ok()
            .and_then(|text| Journal::decode(&text).ok())
        else {
            return sandbox;
        };
        let now: HashMap<usize, Id> = identities(&sandbox.root())
            .into_iter()
            .map(|(path, id)| (self.inodes[&path], id))
            .collect();
        each_id(&mut journal, |id| {
            let number = self.numbers.get(&(id.ino, id.birth)).copied();
            // An object that did not survive keeps a number that nobody has.
            let gone = || (u64::MAX - number.unwrap_or_default() as u64, Some((0, 0)));
            (id.ino, id.birth) = number
                .and_then(|number| now.get(&number).copied())
                .unwrap_or_else(gone);
        });
        std::fs::write(&path, journal.encode().unwrap()).unwrap();
        sandbox
    }

    fn recovery(&self) -> Recorded {
        let sandbox = self.boot();
        let start = Tree::capture(&sandbox.root()).unwrap();
        let there = identities(&sandbox.root());
        let (root, recording) = sandbox.root().recording();
        as_at_boot(&Store::open(&root).unwrap()).unwrap();
        Recorded {
            case: Arc::clone(&self.recorded.case),
            log: recording.log(),
            start,
            there,
        }
    }

    fn check(
        &self,
        recover: Recover,
        found: &mut Found,
        completed: &mut HashSet<u64>,
    ) -> Result<(), String> {
        let case = &self.recorded.case;
        self.nothing_torn()?;
        let sandbox = self.boot();
        let store = Store::open(&sandbox.root()).unwrap();
        let journal = recover(&store).map_err(|error| format!("recovery fails: {error:?}"))?;
        drop(store);
        let after = Tree::capture(&sandbox.root()).unwrap();
        let told = || {
            let (old, new) = (
                difference(&without_staging(&case.old), &without_staging(&after)),
                difference(&without_staging(&case.new), &without_staging(&after)),
            );
            format!(
                "neither config\nto old:\n{old}to new:\n{new}{:#?}",
                journal.transactions
            )
        };
        if !case.is_old_or_new(&after) {
            return Err(told());
        }
        match without_staging(&after) == without_staging(&case.old) {
            true => found.went_back += 1,
            false => found.went_on += 1,
        }
        found.results.insert(hash(&crate::sandbox::seen(&after)));
        if completed.insert(signature(&after, &journal)) {
            found.completed += 1;
            self.complete(recover, &sandbox, &journal)?;
        }
        Ok(())
    }

    /// At no instant does a reader see anything but the object before or the one after.
    fn nothing_torn(&self) -> Result<(), String> {
        let case = &self.recorded.case;
        for (path, node) in without_staging(self.tree).0 {
            let known = [&case.old, &case.new].map(|tree| tree.0.get(&path));
            // A directory's mode and owner are two operations.
            let directory = node.object == Object::Directory;
            if !known.contains(&Some(&node)) && !directory {
                return Err(format!("a reader sees {path} torn: {node:?}"));
            }
        }
        Ok(())
    }

    /// From here the update can be completed; and taken back, while it is not verified.
    fn complete(
        &self,
        recover: Recover,
        sandbox: &Sandbox,
        journal: &Journal,
    ) -> Result<(), String> {
        let case = &self.recorded.case;
        if journal.top().is_some_and(|tx| tx.mark == Mark::Committed) {
            let other = self.boot();
            drop(recover(&Store::open(&other.root()).unwrap()).unwrap());
            ByHand::open(&other.root())
                .undo()
                .map_err(|error| format!("the undo fails: {error:?}"))?;
            let tree = plain(&other.tree());
            if tree != case.old {
                return Err(format!("the undo gives\n{}", difference(&case.old, &tree)));
            }
        }
        let report = crate::sandbox::apply(&sandbox.root(), &case.to)
            .map_err(|error| format!("the next run ends: {error:?}"))?;
        if let Some(failure) = &report.failure {
            return Err(format!("the next run fails: {}", failure.message));
        }
        let tree = plain(&sandbox.tree());
        if tree != case.new {
            return Err(format!(
                "the next run gives\n{}",
                difference(&case.new, &tree)
            ));
        }
        let journal = sandbox.journal();
        let base = journal.base.as_ref().map(|base| base.digest);
        if base != Some(machine_config::digest(&case.to.0)) || !journal.transactions.is_empty() {
            return Err(format!("the next run leaves {journal:?}"));
        }
        Ok(())
    }
}

/// Tells recovered machines apart by everything that decides what happens next.
fn signature(tree: &Tree, journal: &Journal) -> u64 {
    let mut journal = journal.clone();
    each_id(&mut journal, |id| (id.ino, id.birth) = (0, None));
    let mut tree = tree.clone();
    tree.0.remove(&at("/var/lib/machinist/journal"));
    hash(&(tree, format!("{journal:?}")))
}

pub(crate) fn each_id(journal: &mut Journal, mut with: impl FnMut(&mut ObjectId)) {
    let operations = journal
        .transactions
        .iter_mut()
        .flat_map(|tx| &mut tx.operations);
    for record in operations {
        if let OperationRecordKind::Exchange { before, after, .. } = &mut record.kind {
            before.iter_mut().chain(after).for_each(&mut with);
        }
    }
}
