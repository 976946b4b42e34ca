//! A recorded update, and the result of recovery for every state that a power loss may leave.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    hash::{DefaultHasher, Hasher as _},
    io,
    sync::{Arc, Mutex},
};

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::{
    FsOp, FsOpKind, Root, SnapshotNode, SnapshotObject, TreeSnapshot,
    crash_replay::{self, Inodes, Model, SearchBudget},
};
use machinist_update::{
    crash_recovery::{self, RecoverError},
    journal::{Journal, OperationRecordKind, TransactionState},
    store::StateStore,
};

use machinist_testkit::{
    sandbox::{Sandbox, at, difference, without_staging},
    stepwise_update::StepwiseUpdate,
    update_case::{Case, plain},
};

/// Inode number and birth time.
type Id = (u64, Option<(i64, u32)>);

/// The log of an update, with the identities of its objects.
pub(crate) struct Recorded {
    pub(crate) case: Arc<Case>,
    pub(crate) log: Vec<FsOp>,
    start: TreeSnapshot,
    /// The identity of each path's object at the start.
    there: BTreeMap<AbsPath, Id>,
    /// The objects created since, in order.
    born: Vec<(AbsPath, Id)>,
}

/// The recovery function: the code under test, or a mutant of it.
pub(crate) type Recover = fn(&StateStore) -> Result<Journal, RecoverError>;

pub(crate) fn as_at_boot(store: &StateStore) -> Result<Journal, RecoverError> {
    crash_recovery::recover(store).map(|(journal, _)| journal)
}

/// The results over all states.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) states: usize,
    /// The distinct trees that were rebuilt, regardless of the objects' identities.
    pub(crate) trees: HashSet<u64>,
    pub(crate) results: HashSet<u64>,
    pub(crate) went_back: usize,
    pub(crate) went_on: usize,
    pub(crate) completed: usize,
    pub(crate) bad: Vec<String>,
}

impl Recorded {
    /// Runs `update` on the case's machine and records its operations.
    pub(crate) fn of(case: Case, update: impl FnOnce(&Root, &Case)) -> Self {
        Self::killed(case, usize::MAX, update).0
    }

    /// The same, killed before its `number`-th operation and then recovered; the flag is true if
    /// the update reached that operation.
    pub(crate) fn killed(
        case: Case,
        number: usize,
        update: impl FnOnce(&Root, &Case),
    ) -> (Self, bool) {
        let sandbox = case.sandbox();
        let there = identities(&sandbox.root());
        let (mut log, mut born) = written_down(&sandbox, number, |root| update(root, &case));
        let came_so_far = log.len() >= number;
        if came_so_far {
            let known: HashSet<Id> = born.iter().map(|(_, id)| *id).collect();
            let (more, later) = written_down(&sandbox, usize::MAX, |root| {
                as_at_boot(&StateStore::open(root).unwrap()).unwrap();
            });
            log.extend(more);
            born.extend(later.into_iter().filter(|(_, id)| !known.contains(id)));
        }
        let recorded = Self {
            start: case.start.clone(),
            case: Arc::new(case),
            log,
            there,
            born,
        };
        (recorded, came_so_far)
    }

    /// The recovery from each state that may be left of the update, every `step` operations.
    pub(crate) fn recoveries(&self, step: usize, effort: SearchBudget) -> Vec<Self> {
        let numbers = self.numbers(&self.log);
        let mut seen = HashSet::new();
        let mut all = Vec::new();
        for cut in (0..=self.log.len()).step_by(step) {
            let drawn = crash_replay::drawn_at(cut, effort);
            let states =
                crash_replay::states_with_inodes(&self.log, &self.start, cut, Model::Strict, drawn);
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

    /// The replay's number of each object that the journal may refer to, in this log or a mutant of
    /// it.
    fn numbers(&self, log: &[FsOp]) -> HashMap<Id, usize> {
        let effort = SearchBudget { seed: 0, count: 1 };
        let states = crash_replay::states_with_inodes(&[], &self.start, 0, Model::Ordered, effort);
        let (_, inodes) = states.unwrap().next().unwrap();
        let there = self.there.iter();
        let mut numbers: HashMap<Id, usize> = there
            .filter_map(|(path, id)| Some((*id, *inodes.get(path)?)))
            .collect();
        let mut born: HashMap<&AbsPath, VecDeque<Id>> = HashMap::new();
        for (path, id) in &self.born {
            born.entry(path).or_default().push_back(*id);
        }
        // The replay numbers the objects of the start first, then those that the log creates.
        let made = log.iter().filter(|op| makes(op));
        let objects = self.start.0.values().filter(|node| node.same.is_none());
        for (number, op) in (objects.count()..).zip(made) {
            if let Some(id) = born.get_mut(&op.path).and_then(VecDeque::pop_front) {
                numbers.insert(id, number);
            }
        }
        numbers
    }

    /// Cuts the power at every moment of `log` and recovers from every state that may be left.
    pub(crate) fn cut(
        &self,
        log: &[FsOp],
        recover: Recover,
        step: usize,
        model: Model,
        effort: SearchBudget,
    ) -> Found {
        let cuts = (0..=log.len()).step_by(step);
        self.cut_while(log, recover, cuts, (model, effort), |_| true)
    }

    /// Like [`Recorded::cut`], from where the log differs from the recorded one, until a state is
    /// left that is neither config.
    pub(crate) fn cut_until_bad(
        &self,
        log: &[FsOp],
        recover: Recover,
        model: Model,
        effort: SearchBudget,
    ) -> Found {
        let same = log.iter().zip(&self.log).take_while(|(a, b)| a == b);
        let same = Some(same.count()).filter(|same| *same < log.len());
        let cuts = same.unwrap_or_default()..=log.len();
        self.cut_while(log, recover, cuts, (model, effort), |found| {
            found.bad.is_empty()
        })
    }

    fn cut_while(
        &self,
        log: &[FsOp],
        recover: Recover,
        cuts: impl Iterator<Item = usize>,
        (model, effort): (Model, SearchBudget),
        goes_on: impl Fn(&Found) -> bool,
    ) -> Found {
        let numbers = self.numbers(log);
        let mut found = Found::default();
        let (mut seen, mut completed) = (HashSet::new(), HashSet::new());
        for cut in cuts {
            let drawn = crash_replay::drawn_at(cut, effort);
            let states =
                crash_replay::states_with_inodes(log, &self.start, cut, model, drawn).unwrap();
            for (tree, inodes) in states {
                if !goes_on(&found) {
                    return found;
                }
                if !seen.insert(hash(&(&tree, &inodes))) {
                    continue;
                }
                found.states += 1;
                found.trees.insert(hash(&tree));
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

/// The operations of `work` until it is killed before its `number`-th operation, and the objects it
/// creates.
fn written_down(
    sandbox: &Sandbox,
    number: usize,
    work: impl FnOnce(&Root),
) -> (Vec<FsOp>, Vec<(AbsPath, Id)>) {
    #[derive(Default)]
    struct Seen {
        count: usize,
        last: Option<AbsPath>,
        born: Vec<(AbsPath, Id)>,
    }
    let (root, recording) = sandbox.root().recording();
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (plain_root, seen_too) = (sandbox.root(), Arc::clone(&seen));
    let no_exchange = sandbox.no_exchange;
    let hook = move |op: &FsOp| -> Option<io::Error> {
        if no_exchange && let Some(error) = machinist_testkit::sandbox::no_exchange(op) {
            return Some(error);
        }
        let mut seen = seen_too.lock().unwrap();
        // The object of the previous operation exists now, unless that operation failed.
        if let Some(path) = seen.last.take()
            && let Some(stat) = plain_root.stat(&path).unwrap()
        {
            let id = (stat.identity.ino, stat.identity.birth);
            if !seen.born.iter().any(|(_, known)| *known == id) {
                seen.born.push((path, id));
            }
        }
        seen.last = makes(op).then(|| op.path.clone());
        seen.count += 1;
        (seen.count > number).then(|| io::Error::from_raw_os_error(nix::libc::EIO))
    };
    work(&root.with_fault(Arc::new(hook)));
    let born = std::mem::take(&mut seen.lock().unwrap().born);
    (recording.log(), born)
}

/// Whether the operation creates an object.
fn makes(op: &FsOp) -> bool {
    matches!(
        op.act,
        FsOpKind::Create(_) | FsOpKind::MakeDir(_) | FsOpKind::MakeLink(_) | FsOpKind::MakeSocket
    )
}

fn identities(root: &Root) -> BTreeMap<AbsPath, Id> {
    let tree = TreeSnapshot::capture(root).unwrap();
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

/// One state that a power loss may leave.
struct State<'a> {
    recorded: &'a Recorded,
    numbers: &'a HashMap<Id, usize>,
    tree: &'a TreeSnapshot,
    inodes: &'a Inodes,
}

impl State<'_> {
    /// The state as a machine that boots, with its inode numbers in the journal.
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
            let number = self.numbers.get(&id).copied();
            // An object that did not survive gets a number that no object has.
            let gone = || (u64::MAX - number.unwrap_or_default() as u64, Some((0, 0)));
            number
                .and_then(|number| now.get(&number).copied())
                .unwrap_or_else(gone)
        });
        std::fs::write(&path, journal.encode().unwrap()).unwrap();
        sandbox
    }

    fn recovery(&self) -> Recorded {
        let sandbox = self.boot();
        let start = TreeSnapshot::capture(&sandbox.root()).unwrap();
        let there = identities(&sandbox.root());
        let (log, born) = written_down(&sandbox, usize::MAX, |root| {
            as_at_boot(&StateStore::open(root).unwrap()).unwrap();
        });
        Recorded {
            case: Arc::clone(&self.recorded.case),
            log,
            start,
            there,
            born,
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
        let store = StateStore::open(&sandbox.root()).unwrap();
        let journal = recover(&store).map_err(|error| format!("recovery fails: {error:?}"))?;
        drop(store);
        let after = TreeSnapshot::capture(&sandbox.root()).unwrap();
        let context = || {
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
            return Err(context());
        }
        match without_staging(&after) == without_staging(&case.old) {
            true => found.went_back += 1,
            false => found.went_on += 1,
        }
        found
            .results
            .insert(hash(&machinist_testkit::sandbox::seen(&after)));
        if completed.insert(signature(&after, &journal)) {
            found.completed += 1;
            self.complete(recover, &sandbox, &journal)?;
        }
        Ok(())
    }

    /// Asserts that at no instant a reader sees anything but the old object or the new one.
    fn nothing_torn(&self) -> Result<(), String> {
        let case = &self.recorded.case;
        for (path, node) in without_staging(self.tree).0 {
            let known = [&case.old, &case.new, &case.committed];
            let mut known = known.into_iter().chain(&case.between);
            // A directory's mode and owner are two operations.
            let directory = node.object == SnapshotObject::Directory;
            // The names of a file change one after the other.
            let alone = |node: SnapshotNode| SnapshotNode { same: None, ..node };
            let node = alone(node);
            let same =
                |tree: &TreeSnapshot| tree.0.get(&path).cloned().map(alone).as_ref() == Some(&node);
            if !directory && !known.any(same) {
                return Err(format!("a reader sees {path} torn: {node:?}"));
            }
        }
        Ok(())
    }

    /// Asserts that the update can be completed from here, and rolled back while it is not
    /// verified.
    fn complete(
        &self,
        recover: Recover,
        sandbox: &Sandbox,
        journal: &Journal,
    ) -> Result<(), String> {
        let case = &self.recorded.case;
        if journal
            .top()
            .is_some_and(|tx| tx.mark == TransactionState::Committed)
        {
            let other = self.boot();
            drop(recover(&StateStore::open(&other.root()).unwrap()).unwrap());
            StepwiseUpdate::open(&other.root())
                .undo()
                .map_err(|error| format!("the undo fails: {error:?}"))?;
            let tree = plain(&other.tree());
            if tree != case.old && !case.between.contains(&tree) {
                return Err(format!("the undo gives\n{}", difference(&case.old, &tree)));
            }
        }
        let report = machinist_testkit::sandbox::apply(&sandbox.root(), &case.to)
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
        if base != Some(machinist_ignition::digest(&case.to.0)) || !journal.transactions.is_empty()
        {
            return Err(format!("the next run leaves {journal:?}"));
        }
        Ok(())
    }
}

/// Distinguishes recovered machines by everything that affects the next steps.
fn signature(tree: &TreeSnapshot, journal: &Journal) -> u64 {
    let mut journal = journal.clone();
    each_id(&mut journal, |_| (0, None));
    let mut tree = tree.clone();
    tree.0.remove(&at("/var/lib/machinist/journal"));
    // The content of the spare file is never read.
    tree.0.remove(&at("/var/lib/machinist/.journal.new"));
    hash(&(tree, format!("{journal:?}")))
}

pub(crate) fn each_id(journal: &mut Journal, with: impl Fn(Id) -> Id) {
    for tx in &mut journal.transactions {
        for record in &mut tx.operations {
            if let OperationRecordKind::Exchange { before, after, .. } = &mut record.kind {
                for id in before.iter_mut().chain(after) {
                    (id.ino, id.birth) = with((id.ino, id.birth));
                }
            }
            if let Some(parent) = &mut record.parent {
                (parent.ino, parent.birth) = with((parent.ino, parent.birth));
            }
        }
        for holder in tx.holders.values_mut() {
            (holder.ino, holder.birth) = with((holder.ino, holder.birth));
        }
    }
}
