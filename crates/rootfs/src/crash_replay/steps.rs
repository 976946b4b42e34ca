//! The log as changes to inodes, each with its dependencies.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use super::{
    BadLog, Inodes, Model,
    inode_model::{Disk, Ino, Inode, InodeBody},
    survivor_choice::StepOutcome,
};
use crate::{FsOp, FsOpKind, TreeSnapshot};
use machinist_base::abs_path::AbsPath;

/// A directory entry.
type EntrySlot = (Ino, String);

#[derive(Debug)]
pub(super) enum DiskChange {
    /// Entries get new inodes, atomically.
    Entries(Vec<(EntrySlot, Option<Ino>)>),
    Mode(Ino, u32),
    Owner(Ino, u32, u32),
    Content(Ino, Arc<[u8]>),
}

/// A thing that two operations may both affect, so that the later one depends on the earlier one.
#[derive(Clone, PartialEq, Eq, Hash)]
enum StepTarget {
    Entry(EntrySlot),
    Attributes(Ino),
    /// Moves of directories on one file system.
    Moves(u64),
    /// Everything but content on one file system.
    Journal(u64),
}

#[derive(Debug)]
pub(super) struct ReplayStep {
    pub(super) fs: u64,
    pub(super) change: DiskChange,
    /// Indices of earlier steps without which this one cannot survive.
    pub(super) needs: Vec<usize>,
    /// A sync covers it, so it has survived.
    pub(super) durable: bool,
}

impl ReplayStep {
    /// The possible fates of the step, regardless of others.
    pub(super) fn outcomes(&self) -> &'static [StepOutcome] {
        match &self.change {
            _ if self.durable => &[StepOutcome::Whole],
            DiskChange::Content(_, bytes) if bytes.len() > 1 => &[
                StepOutcome::Lost,
                StepOutcome::Empty,
                StepOutcome::Torn,
                StepOutcome::Whole,
            ],
            DiskChange::Content(_, bytes) if bytes.len() == 1 => {
                &[StepOutcome::Lost, StepOutcome::Empty, StepOutcome::Whole]
            }
            _ => &[StepOutcome::Lost, StepOutcome::Whole],
        }
    }
}

/// All operations before the power failed.
#[derive(Debug)]
pub(super) struct ReplaySteps {
    /// The tree before, with inodes for later objects that have no names yet.
    start: Disk,
    pub(super) list: Vec<ReplayStep>,
}

impl ReplaySteps {
    pub(super) fn of(log: &[FsOp], start: Disk, model: Model) -> Result<Self, BadLog> {
        let mut reader = LogReader {
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
    pub(super) fn tree_after(&self, pick: &[StepOutcome]) -> (TreeSnapshot, Inodes) {
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

    fn settle_where(&mut self, covered: impl Fn(&ReplayStep) -> bool) {
        for index in 0..self.list.len() {
            if covered(&self.list[index]) {
                self.settle(index);
            }
        }
    }
}

fn apply(disk: &mut Disk, change: &DiskChange, fate: StepOutcome) {
    match (change, fate) {
        (_, StepOutcome::Lost) => {}
        (DiskChange::Entries(entries), _) => {
            for ((dir, name), child) in entries {
                disk.set(*dir, name, *child);
            }
        }
        (DiskChange::Mode(ino, mode), _) => disk.0[*ino].mode = *mode,
        (DiskChange::Owner(ino, uid, gid), _) => {
            (disk.0[*ino].uid, disk.0[*ino].gid) = (*uid, *gid);
        }
        (DiskChange::Content(ino, bytes), fate) => {
            let length = match fate {
                StepOutcome::Empty | StepOutcome::Lost => 0,
                StepOutcome::Torn => bytes.len() / 2,
                StepOutcome::Whole => bytes.len(),
            };
            disk.0[*ino].body = InodeBody::File(bytes[..length].into());
        }
    }
}

struct LogReader {
    /// The tree as the running system sees it.
    live: Disk,
    steps: ReplaySteps,
    /// The step that last affected a thing.
    last: HashMap<StepTarget, usize>,
    model: Model,
}

impl LogReader {
    fn take(&mut self, op: &FsOp) -> Result<(), String> {
        match &op.act {
            FsOpKind::Create(mode) => self.create(op, InodeBody::File([].into()), *mode),
            FsOpKind::MakeDir(mode) => {
                self.create(op, InodeBody::Directory(BTreeMap::new()), *mode)
            }
            FsOpKind::MakeLink(target) => self.create(op, InodeBody::Link(target.clone()), 0o777),
            FsOpKind::MakeSocket => self.create(op, InodeBody::Socket, 0o755),
            FsOpKind::HardLink(file) => {
                let (slot, ino) = (self.free_slot(&op.path)?, self.at(file)?);
                self.entries(op.fs, vec![(slot, Some(ino))]);
                Ok(())
            }
            // The path at which it was opened may no longer exist.
            FsOpKind::SyncFs => {
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
    fn change(&mut self, op: &FsOp, ino: Ino) -> Result<(), String> {
        let steps = &mut self.steps;
        match &op.act {
            FsOpKind::Write(bytes) => {
                let change = DiskChange::Content(ino, bytes.as_slice().into());
                self.step(op.fs, change, Vec::new());
            }
            FsOpKind::SetMode(mode) => self.attribute(op, ino, DiskChange::Mode(ino, *mode)),
            FsOpKind::SetOwner(uid, gid) => {
                self.attribute(op, ino, DiskChange::Owner(ino, *uid, *gid))
            }
            FsOpKind::Rename(other) | FsOpKind::Exchange(other) if *other == op.path => {}
            FsOpKind::Rename(to) => {
                let slots = (self.slot(&op.path)?, self.slot(to)?);
                self.entries(op.fs, vec![(slots.0, None), (slots.1, Some(ino))]);
            }
            FsOpKind::Exchange(with) => {
                let slots = (self.slot(&op.path)?, self.slot(with)?);
                let there = self.at(with)?;
                self.entries(op.fs, vec![(slots.0, Some(there)), (slots.1, Some(ino))]);
            }
            FsOpKind::Unlink | FsOpKind::RemoveDir => {
                let slot = self.slot(&op.path)?;
                self.entries(op.fs, vec![(slot, None)]);
            }
            FsOpKind::SyncFile => steps.settle_where(|step| concerns_inode(&step.change, ino)),
            FsOpKind::SyncDir => steps.settle_where(|step| {
                concerns_inode(&step.change, ino) || concerns_entries_of(&step.change, ino)
            }),
            // Trees contain neither extended attributes nor allocated blocks. The other operations are handled
            // above.
            FsOpKind::SetAttribute(..)
            | FsOpKind::Reserve(_)
            | FsOpKind::SyncFs
            | FsOpKind::Create(_)
            | FsOpKind::MakeDir(_)
            | FsOpKind::MakeLink(_)
            | FsOpKind::HardLink(_)
            | FsOpKind::MakeSocket => {}
        }
        Ok(())
    }

    fn attribute(&mut self, op: &FsOp, ino: Ino, change: DiskChange) {
        self.step(op.fs, change, vec![StepTarget::Attributes(ino)]);
    }

    fn create(&mut self, op: &FsOp, body: InodeBody, mode: u32) -> Result<(), String> {
        let slot = self.free_slot(&op.path)?;
        // A new object starts with its directory's owner: the recording process either owns both, or records a
        // SetOwner.
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

    fn entries(&mut self, fs: u64, entries: Vec<(EntrySlot, Option<Ino>)>) {
        let mut touches: Vec<_> = entries
            .iter()
            .map(|(slot, _)| StepTarget::Entry(slot.clone()))
            .collect();
        let moves = entries.len() > 1;
        let directory = |(_, child): &(EntrySlot, Option<Ino>)| {
            child.is_some_and(|child| self.live.is_directory(child))
        };
        if moves && entries.iter().any(directory) {
            touches.push(StepTarget::Moves(fs));
        }
        self.step(fs, DiskChange::Entries(entries), touches);
    }

    fn step(&mut self, fs: u64, change: DiskChange, mut touches: Vec<StepTarget>) {
        apply(&mut self.live, &change, StepOutcome::Whole);
        if self.model == Model::Ordered && !matches!(change, DiskChange::Content(..)) {
            touches.push(StepTarget::Journal(fs));
        }
        let index = self.steps.list.len();
        let needs = touches
            .into_iter()
            .filter_map(|touched| self.last.insert(touched, index))
            .collect();
        self.steps.list.push(ReplayStep {
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

    fn free_slot(&self, path: &AbsPath) -> Result<EntrySlot, String> {
        let slot = self.slot(path)?;
        match self.live.child(slot.0, &slot.1) {
            Some(_) => Err(format!("{path} is there already")),
            None => Ok(slot),
        }
    }

    fn slot(&self, path: &AbsPath) -> Result<EntrySlot, String> {
        let parent = path.parent().ok_or("the root has no name")?;
        let dir = self.at(&parent)?;
        if !self.live.is_directory(dir) {
            return Err(format!("{parent} is no directory"));
        }
        Ok((dir, path.file_name().to_owned()))
    }
}

fn concerns_inode(change: &DiskChange, ino: Ino) -> bool {
    match change {
        DiskChange::Entries(_) => false,
        DiskChange::Mode(at, _) | DiskChange::Owner(at, ..) | DiskChange::Content(at, _) => {
            *at == ino
        }
    }
}

fn concerns_entries_of(change: &DiskChange, dir: Ino) -> bool {
    matches!(change, DiskChange::Entries(entries) if entries.iter().any(|((at, _), _)| *at == dir))
}
