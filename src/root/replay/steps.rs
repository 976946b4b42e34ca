//! The log as changes to inodes, each with its dependencies.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    BadLog, Inodes, Model,
    disk::{Body, Disk, Ino, Inode},
    pick::Fate,
};
use crate::{
    path::AbsPath,
    root::{Act, Op, Tree},
};

/// A directory entry.
type Slot = (Ino, String);

#[derive(Debug)]
pub(super) enum Change {
    /// Entries get new inodes, atomically.
    Entries(Vec<(Slot, Option<Ino>)>),
    Mode(Ino, u32),
    Owner(Ino, u32, u32),
    Content(Ino, Arc<[u8]>),
}

/// A thing that two operations may both affect, so that the later one depends on the earlier one.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Touched {
    Entry(Slot),
    Attributes(Ino),
    /// Moves of directories on one file system.
    Moves(u64),
    /// Everything but content on one file system.
    Journal(u64),
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) fs: u64,
    pub(super) change: Change,
    /// Indices of earlier steps without which this one cannot survive.
    pub(super) needs: Vec<usize>,
    /// A sync covers it, so it has survived.
    pub(super) durable: bool,
}

impl Step {
    /// The possible fates of the step, regardless of others.
    pub(super) fn fates(&self) -> &'static [Fate] {
        match &self.change {
            _ if self.durable => &[Fate::Whole],
            Change::Content(_, bytes) if bytes.len() > 1 => {
                &[Fate::Lost, Fate::Empty, Fate::Torn, Fate::Whole]
            }
            Change::Content(_, bytes) if bytes.len() == 1 => {
                &[Fate::Lost, Fate::Empty, Fate::Whole]
            }
            _ => &[Fate::Lost, Fate::Whole],
        }
    }
}

/// All operations before the power failed.
#[derive(Debug)]
pub(super) struct Steps {
    /// The tree before, with inodes for later objects that have no names yet.
    start: Disk,
    pub(super) list: Vec<Step>,
}

impl Steps {
    pub(super) fn of(log: &[Op], start: Disk, model: Model) -> Result<Self, BadLog> {
        let mut reader = Reader {
            live: start.clone(),
            steps: Self {
                start,
                list: Vec::new(),
            },
            last: HashMap::new(),
            model,
        };
        for (index, op) in log.iter().enumerate() {
            reader.take(op).map_err(|what| BadLog { index, what })?;
        }
        Ok(reader.steps)
    }

    /// The tree when each step has the fate that `pick` gives it.
    pub(super) fn tree_after(&self, pick: &[Fate]) -> (Tree, Inodes) {
        let mut disk = self.start.clone();
        for (step, fate) in self.list.iter().zip(pick) {
            apply(&mut disk, &step.change, *fate);
        }
        disk.tree()
    }

    /// Marks a step and its dependencies as survived.
    fn settle(&mut self, index: usize) {
        let mut todo = vec![index];
        while let Some(index) = todo.pop() {
            let step = &mut self.list[index];
            if !std::mem::replace(&mut step.durable, true) {
                todo.extend(&step.needs);
            }
        }
    }

    fn settle_where(&mut self, covered: impl Fn(&Step) -> bool) {
        for index in 0..self.list.len() {
            if covered(&self.list[index]) {
                self.settle(index);
            }
        }
    }
}

fn apply(disk: &mut Disk, change: &Change, fate: Fate) {
    match (change, fate) {
        (_, Fate::Lost) => {}
        (Change::Entries(entries), _) => {
            for ((dir, name), child) in entries {
                disk.set(*dir, name, *child);
            }
        }
        (Change::Mode(ino, mode), _) => disk.0[*ino].mode = *mode,
        (Change::Owner(ino, uid, gid), _) => {
            (disk.0[*ino].uid, disk.0[*ino].gid) = (*uid, *gid);
        }
        (Change::Content(ino, bytes), fate) => {
            let length = match fate {
                Fate::Empty | Fate::Lost => 0,
                Fate::Torn => bytes.len() / 2,
                Fate::Whole => bytes.len(),
            };
            disk.0[*ino].body = Body::File(bytes[..length].into());
        }
    }
}

struct Reader {
    /// The tree as the running system sees it.
    live: Disk,
    steps: Steps,
    /// The step that last affected a thing.
    last: HashMap<Touched, usize>,
    model: Model,
}

impl Reader {
    fn take(&mut self, op: &Op) -> Result<(), String> {
        match &op.act {
            Act::Create(mode) => self.create(op, Body::File([].into()), *mode),
            Act::MakeDir(mode) => self.create(op, Body::Directory(BTreeMap::new()), *mode),
            Act::MakeLink(target) => self.create(op, Body::Link(target.clone()), 0o777),
            Act::MakeSocket => self.create(op, Body::Socket, 0o755),
            Act::HardLink(file) => {
                let (slot, ino) = (self.free_slot(&op.path)?, self.at(file)?);
                self.entries(op.fs, vec![(slot, Some(ino))]);
                Ok(())
            }
            // The path at which it was opened may no longer exist.
            Act::SyncFs => {
                self.steps.settle_where(|step| step.fs == op.fs);
                Ok(())
            }
            _ => {
                let ino = self.at(&op.path)?;
                self.change(op, ino)
            }
        }
    }

    /// An operation on an existing object.
    fn change(&mut self, op: &Op, ino: Ino) -> Result<(), String> {
        let steps = &mut self.steps;
        match &op.act {
            Act::Write(bytes) => {
                let change = Change::Content(ino, bytes.as_slice().into());
                self.step(op.fs, change, Vec::new());
            }
            Act::SetMode(mode) => self.attribute(op, ino, Change::Mode(ino, *mode)),
            Act::SetOwner(uid, gid) => self.attribute(op, ino, Change::Owner(ino, *uid, *gid)),
            Act::Rename(other) | Act::Exchange(other) if *other == op.path => {}
            Act::Rename(to) => {
                let slots = (self.slot(&op.path)?, self.slot(to)?);
                self.entries(op.fs, vec![(slots.0, None), (slots.1, Some(ino))]);
            }
            Act::Exchange(with) => {
                let slots = (self.slot(&op.path)?, self.slot(with)?);
                let there = self.at(with)?;
                self.entries(op.fs, vec![(slots.0, Some(there)), (slots.1, Some(ino))]);
            }
            Act::Unlink | Act::RemoveDir => {
                let slot = self.slot(&op.path)?;
                self.entries(op.fs, vec![(slot, None)]);
            }
            Act::SyncFile => steps.settle_where(|step| concerns_inode(&step.change, ino)),
            Act::SyncDir => steps.settle_where(|step| {
                concerns_inode(&step.change, ino) || concerns_entries_of(&step.change, ino)
            }),
            // Trees contain neither extended attributes nor allocated blocks. The other operations
            // are handled above.
            Act::SetAttribute(..)
            | Act::Reserve(_)
            | Act::SyncFs
            | Act::Create(_)
            | Act::MakeDir(_)
            | Act::MakeLink(_)
            | Act::HardLink(_)
            | Act::MakeSocket => {}
        }
        Ok(())
    }

    fn attribute(&mut self, op: &Op, ino: Ino, change: Change) {
        self.step(op.fs, change, vec![Touched::Attributes(ino)]);
    }

    fn create(&mut self, op: &Op, body: Body, mode: u32) -> Result<(), String> {
        let slot = self.free_slot(&op.path)?;
        // A new object starts with its directory's owner: the recording process either owns both,
        // or records a SetOwner.
        let (uid, gid) = (self.live.0[slot.0].uid, self.live.0[slot.0].gid);
        let inode = Inode {
            body,
            mode,
            uid,
            gid,
        };
        self.live.0.push(inode.clone());
        self.steps.start.0.push(inode);
        let child = self.live.0.len() - 1;
        self.entries(op.fs, vec![(slot, Some(child))]);
        Ok(())
    }

    fn entries(&mut self, fs: u64, entries: Vec<(Slot, Option<Ino>)>) {
        let mut touches: Vec<_> = entries
            .iter()
            .map(|(slot, _)| Touched::Entry(slot.clone()))
            .collect();
        let moves = entries.len() > 1;
        let directory = |(_, child): &(Slot, Option<Ino>)| {
            child.is_some_and(|child| self.live.is_directory(child))
        };
        if moves && entries.iter().any(directory) {
            touches.push(Touched::Moves(fs));
        }
        self.step(fs, Change::Entries(entries), touches);
    }

    fn step(&mut self, fs: u64, change: Change, mut touches: Vec<Touched>) {
        apply(&mut self.live, &change, Fate::Whole);
        if self.model == Model::Ordered && !matches!(change, Change::Content(..)) {
            touches.push(Touched::Journal(fs));
        }
        let index = self.steps.list.len();
        let needs = touches
            .into_iter()
            .filter_map(|touched| self.last.insert(touched, index))
            .collect();
        self.steps.list.push(Step {
            fs,
            change,
            needs,
            durable: false,
        });
    }

    fn at(&self, path: &AbsPath) -> Result<Ino, String> {
        self.live
            .find(path)
            .ok_or_else(|| format!("{path} is not there"))
    }

    fn free_slot(&self, path: &AbsPath) -> Result<Slot, String> {
        let slot = self.slot(path)?;
        match self.live.child(slot.0, &slot.1) {
            Some(_) => Err(format!("{path} is there already")),
            None => Ok(slot),
        }
    }

    fn slot(&self, path: &AbsPath) -> Result<Slot, String> {
        let parent = path.parent().ok_or("the root has no name")?;
        let dir = self.at(&parent)?;
        if !self.live.is_directory(dir) {
            return Err(format!("{parent} is no directory"));
        }
        Ok((dir, path.file_name().to_owned()))
    }
}

fn concerns_inode(change: &Change, ino: Ino) -> bool {
    match change {
        Change::Entries(_) => false,
        Change::Mode(at, _) | Change::Owner(at, ..) | Change::Content(at, _) => *at == ino,
    }
}

fn concerns_entries_of(change: &Change, dir: Ino) -> bool {
    matches!(change, Change::Entries(entries) if entries.iter().any(|((at, _), _)| *at == dir))
}
