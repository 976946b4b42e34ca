//! A user who moves a directory in a loop while its path is observed and an update is staged and
//! committed there: every failure is one that another attempt may avoid, and is reported as retryable.

use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use machinist_base::reason::Reason;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::*;
use machinist_testkit::{
    sandbox::{from_environment, long},
    stepwise_update::StageFailure,
};

/// A thread that repeats an act until this is dropped.
struct Repeated {
    running: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Repeated {
    fn start(act: impl Fn() + Send + 'static) -> Self {
        let running = Arc::new(AtomicBool::new(true));
        let flag = Arc::clone(&running);
        let thread = std::thread::spawn(move || {
            while flag.load(Ordering::Relaxed) {
                act();
            }
        });
        let thread = Some(thread);
        Self { running, thread }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.running.store(false, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Exchanges two names twice, so that both are as before.
fn exchange_and_back(one: PathBuf, other: PathBuf) -> impl Fn() + Send + 'static {
    move || {
        for _ in 0..2 {
            renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
        }
    }
}

fn wanted() -> Written {
    let mut wanted = config("wanted").dir("/home/bob/a/d", 0o700);
    for name in ["a/b/app", "a/b/other", "a/d/file", "a/plain"] {
        let path = format!("/home/bob/{name}");
        wanted = wanted.file(&path, "ours\n", 0o640);
        let file = wanted.0.files.get_mut(&at(&path)).unwrap();
        file.user = Some(Owner::Id(BOB));
        file.group = Some(Owner::Id(BOB));
    }
    let plain = wanted.0.files.get_mut(&at("/home/bob/a/plain")).unwrap();
    plain.content = None;
    wanted
}

/// One update and its undo. Returns the failure: its reason, whether it is retryable, and its text.
fn attempt(sandbox: &Sandbox, wanted: &Written) -> Option<(Reason, bool, String)> {
    let mut hand = StepwiseUpdate::open(&sandbox.root());
    let staged = hand.try_stage(wanted);
    let failure = match staged {
        Err(StageFailure::Look(error)) => {
            let text = machinist_base::error_chain::chain(&error);
            Some((error.reason(), error.is_retryable(), text))
        }
        Err(StageFailure::Transaction(error)) => {
            let text = machinist_base::error_chain::chain(&error);
            Some((error.reason(), error.is_retryable(), text))
        }
        Ok(Err(_)) => None,
        Ok(Ok(())) => hand.commit().err().map(|error| {
            let text = machinist_base::error_chain::chain(&error);
            (error.reason(), error.is_retryable(), text)
        }),
    };
    hand.undo().unwrap();
    failure
}

#[test]
fn a_directory_moved_continuously_by_its_user_gives_only_retryable_errors() {
    if !plays_users() {
        return;
    }
    let rounds = from_environment("ROUNDS").unwrap_or(if long() { 4_000 } else { 60 });
    let mut wrong = BTreeSet::new();
    let mut failed = 0;
    for act in ["loop", "file", "elsewhere", "away"] {
        let sandbox = machine(&[
            Dir("/home/bob/a", BOB, 0o755),
            Dir("/home/bob/a/b", BOB, 0o755),
            Dir("/home/bob/a/d", BOB, 0o755),
            File("/home/bob/a/b/app", BOB),
            File("/home/bob/a/plain", BOB),
            Link("/home/bob/loop", BOB, "a"),
            File("/home/bob/file", BOB),
            Link("/home/bob/elsewhere", BOB, "/etc"),
        ]);
        let (home, name) = (sandbox.path("/home/bob/a"), format!("/home/bob/{act}"));
        let other = sandbox.path(&name);
        let moving = match act {
            "away" => Repeated::start(move || {
                // The update may have created the directory again.
                if fs::rename(&home, &other).is_err() || fs::rename(&other, &home).is_err() {
                    let _ = fs::remove_dir_all(&home);
                }
            }),
            _ => Repeated::start(exchange_and_back(home, other)),
        };
        for _ in 0..rounds {
            if let Some((reason, retryable, text)) = attempt(&sandbox, &wanted()) {
                failed += 1;
                println!("{act}: {reason}: {text}");
                let known = [Reason::TargetChanged, Reason::UnsafePath].contains(&reason);
                if !known || !retryable {
                    wrong.insert(format!("{act}: {reason} {retryable}: {text}"));
                }
            }
        }
        drop(moving);
    }
    println!("{failed} attempts failed");
    assert_eq!(wrong, BTreeSet::new());
}
