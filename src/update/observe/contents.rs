//! Reads what files hold, many at once: thousands of small files are mostly waiting for the kernel, and a
//! few large ones mostly digests.

use std::{num::NonZero, thread};

use super::{
    LONGEST_TEXT,
    digests::{Digests, Stamp},
};
use crate::{
    digest::Digest,
    path::AbsPath,
    root::{Root, RootError},
};

/// Longest text that is kept for a diff.
const LONGEST_DIFFED: u64 = 64 * 1024;

/// Fewer files, or bytes, than a thread is worth.
const FEW_FILES: usize = 64;
const FEW_BYTES: u64 = 1 << 20;

/// More threads than this wait for one another in the kernel.
const MOST_THREADS: usize = 8;

/// One file and why it is read.
pub(super) struct Question {
    pub(super) path: AbsPath,
    pub(super) stamp: Stamp,
    /// Everybody may read it, so that a diff of it may be shown.
    pub(super) public: bool,
    /// The plan needs its text.
    pub(super) edited: bool,
    /// What the config to reach wants it to hold: an unchanged file needs no diff, and most are.
    pub(super) wanted: Option<Digest>,
}

/// What a file holds.
#[derive(Default)]
pub(super) struct Answer {
    /// None where the file changed since it was looked at: it is as no config wants it.
    pub(super) digest: Option<Digest>,
    /// Its text, where that is needed or may be shown.
    pub(super) text: Option<String>,
}

/// The answers in the order of the questions. Only what no known digest answers is read.
pub(super) fn answer(
    root: &Root,
    questions: &[Question],
    known: Option<&Digests>,
) -> Result<Vec<Answer>, RootError> {
    let remembered = |question: &Question| {
        let digest = known?.get(&question.stamp)?;
        let known = || Answer {
            digest: Some(digest),
            text: None,
        };
        (!question.needs_text(digest)).then(known)
    };
    let mut answers: Vec<Option<Answer>> = questions.iter().map(remembered).collect();
    let open = questions
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| answer.is_none());
    let open: Vec<&Question> = open.map(|(question, _)| question).collect();
    let mut read = read(root, &open)?.into_iter();
    for (question, answer) in questions.iter().zip(&mut answers) {
        if answer.is_none() {
            *answer = read.next();
            let digest = answer.as_ref().and_then(|answer| answer.digest);
            if let (Some(known), Some(digest)) = (known, digest) {
                known.put(question.stamp, digest);
            }
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

fn read(root: &Root, questions: &[&Question]) -> Result<Vec<Answer>, RootError> {
    let answers = |part: &[&Question]| -> Result<Vec<Answer>, RootError> {
        part.iter().map(|question| question.answer(root)).collect()
    };
    let sizes = questions.iter().map(|question| question.stamp.size());
    let bytes = sizes.fold(0, u64::saturating_add);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.min(MOST_THREADS);
    if threads == 1 || questions.len() < 2 || questions.len() < FEW_FILES && bytes < FEW_BYTES {
        return answers(questions);
    }
    let parts = questions.chunks(questions.len().div_ceil(threads));
    let parts: Vec<Result<Vec<Answer>, RootError>> = thread::scope(|scope| {
        let readers: Vec<_> = parts
            .map(|part| scope.spawn(move || answers(part)))
            .collect();
        let joined = readers.into_iter().map(thread::ScopedJoinHandle::join);
        joined
            .map(|answers| answers.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let mut all = Vec::with_capacity(questions.len());
    for part in parts {
        all.extend(part?);
    }
    Ok(all)
}

impl Question {
    fn needs_text(&self, digest: Digest) -> bool {
        let diffed =
            self.public && self.stamp.size() <= LONGEST_DIFFED && self.wanted != Some(digest);
        self.edited || diffed
    }

    fn answer(&self, root: &Root) -> Result<Answer, RootError> {
        match self.read(root) {
            // Whoever may write the directory can exchange the file at any time.
            Err(RootError::WrongKind { .. }) => Ok(Answer::default()),
            Err(error) if error.is_not_found() => Ok(Answer::default()),
            answer => answer,
        }
    }

    fn read(&self, root: &Root) -> Result<Answer, RootError> {
        let without_text = || {
            // Another file may lie there by now, of any size.
            let digest = root.digest_within(&self.path, self.stamp.size())?;
            Ok(Answer { digest, text: None })
        };
        let limit = match self.edited {
            true => LONGEST_TEXT,
            false => LONGEST_DIFFED,
        };
        if self.stamp.size() > limit {
            return without_text();
        }
        let bytes = match root.read_seen(&self.path, limit) {
            // Another file lies there by now.
            Ok((_, stat)) if Stamp::of(&stat) != self.stamp => return Ok(Answer::default()),
            Ok((bytes, _)) => bytes,
            Err(RootError::TooLarge { .. }) => return without_text(),
            Err(error) => return Err(error),
        };
        let digest = Digest::of(&bytes);
        let text = self.needs_text(digest).then(|| String::from_utf8(bytes));
        Ok(Answer {
            digest: Some(digest),
            text: text.and_then(Result::ok),
        })
    }
}
