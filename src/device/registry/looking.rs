//! What is read and looked at beside the task, one thing at a time. A file system may take its time, or hang for
//! ever: then what was known stays, and whoever speaks for devices himself is served all the same.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    task::{JoinError, JoinHandle, spawn_blocking},
    time::Instant,
};

use super::scan::{Scan, Scanner};
use crate::{device::ledger::Files, root::Root};

/// Longer than any look takes; told once for each.
const LATE: Duration = Duration::from_secs(30);
/// Looks in a row that new directories ask for.
const MOST_ROUNDS: u32 = 2;

/// What was read or seen.
pub(super) enum Looked {
    Files(Files),
    Machine(Scanner, Scan),
}

/// What is to be done next.
pub(super) enum Next {
    Read,
    Look(Scanner),
}

/// See the module.
pub(super) struct Looking {
    under_way: Option<(JoinHandle<Looked>, Instant)>,
    /// Away while it looks.
    scanner: Option<Scanner>,
    read: bool,
    look: bool,
    /// Looks in a row so far.
    rounds: u32,
    /// Nothing was seen yet.
    first: bool,
    /// Where devices are is to be forgotten as soon as the scanner is back.
    forget: bool,
    /// That it takes long was said.
    complained: bool,
    /// Who wants to hear of the end of a pass that has not begun.
    asked: Vec<oneshot::Sender<()>>,
    /// The same for the one that is under way.
    waiting: Vec<oneshot::Sender<()>>,
}

impl Looking {
    pub(super) fn new(root: Root) -> Self {
        Self {
            under_way: None,
            scanner: Some(Scanner::new(root)),
            read: false,
            look: false,
            rounds: 0,
            first: true,
            forget: false,
            complained: false,
            asked: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// Look, and before that read the `files` when they may have changed.
    pub(super) fn want(&mut self, files: bool) {
        self.read |= files;
        self.look = true;
        self.rounds = 0;
    }

    /// Read and look at everything from now on, and say so when it is done.
    pub(super) fn tell(&mut self, reply: oneshot::Sender<()>) {
        self.asked.push(reply);
        self.want(true);
    }

    /// Whether nothing was seen yet.
    pub(super) const fn is_first(&self) -> bool {
        self.first
    }

    /// Where devices are has changed.
    pub(super) fn forget(&mut self) {
        match &mut self.scanner {
            Some(scanner) => scanner.forget(),
            None => self.forget = true,
        }
    }

    /// What to do now; none while something is under way, or nothing is wanted.
    pub(super) fn next(&mut self) -> Option<Next> {
        if self.under_way.is_some() {
            return None;
        }
        if std::mem::take(&mut self.read) {
            self.waiting.append(&mut self.asked);
            return Some(Next::Read);
        }
        if std::mem::take(&mut self.look) {
            self.rounds += 1;
            return self.scanner.take().map(Next::Look);
        }
        None
    }

    /// Does it.
    pub(super) fn run(&mut self, work: impl FnOnce() -> Looked + Send + 'static) {
        self.complained = false;
        self.under_way = Some((spawn_blocking(work), Instant::now() + LATE));
    }

    /// Waits for the end of what is under way. Safe to drop.
    pub(super) async fn done(&mut self) -> Result<Looked, JoinError> {
        match &mut self.under_way {
            Some((work, _)) => {
                let looked = work.await;
                self.under_way = None;
                looked
            }
            None => std::future::pending().await,
        }
    }

    /// A look ended; `more` asks for one more in a row. Says whether that was the last one.
    pub(super) fn end(&mut self, mut scanner: Scanner, more: bool) -> bool {
        if std::mem::take(&mut self.forget) {
            scanner.forget();
        }
        self.scanner = Some(scanner);
        if more && self.rounds < MOST_ROUNDS {
            self.look = true;
            return false;
        }
        self.rounds = 0;
        self.first = false;
        true
    }

    /// What was under way broke off, and the scanner with it.
    pub(super) fn broke(&mut self, root: Root) {
        self.scanner.get_or_insert_with(|| Scanner::new(root));
        self.first = false;
    }

    /// A pass is over.
    pub(super) fn told(&mut self) {
        for reply in self.waiting.drain(..) {
            // Whoever asked may have given up waiting.
            let _ = reply.send(());
        }
    }

    /// When what is under way takes too long.
    pub(super) fn late(&self) -> Option<Instant> {
        let under_way = self.under_way.as_ref().filter(|_| !self.complained);
        under_way.map(|(_, late)| *late)
    }

    /// Says so, once.
    pub(super) fn complain(&mut self) {
        if self.late().is_some_and(|late| late <= Instant::now()) {
            self.complained = true;
            tracing::warn!(
                "looking for devices takes longer than {} s: a file system hangs; what was known stays",
                LATE.as_secs()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_look_that_hangs_keeps_nobody_and_what_is_asked_meanwhile_is_done_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut looking = Looking::new(Root::open(dir.path()).unwrap());
        looking.want(true);
        assert!(matches!(looking.next(), Some(Next::Read)));
        let (end, hangs) = std::sync::mpsc::channel::<()>();
        looking.run(move || {
            let _ = hangs.recv();
            Looked::Files(Files::new())
        });
        let (reply, mut told) = oneshot::channel();
        looking.tell(reply);
        assert!(looking.next().is_none(), "one thing at a time");
        let waits = tokio::time::timeout(Duration::from_millis(20), looking.done());
        assert!(waits.await.is_err() && looking.late().is_some());
        drop(end);
        assert!(matches!(looking.done().await, Ok(Looked::Files(_))));
        // What was asked for is a pass of its own.
        looking.told();
        assert!(told.try_recv().is_err());
        assert!(matches!(looking.next(), Some(Next::Read)));
        looking.told();
        assert!(told.try_recv().is_ok());
        let Some(Next::Look(scanner)) = looking.next() else {
            panic!("it looks after it read");
        };
        assert!(looking.is_first() && looking.end(scanner, false) && !looking.is_first());
    }
}
