//! Reads the contents of many files in parallel: reading thousands of small files mostly waits for the kernel, and
//! reading a few large ones mostly computes digests.

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

/// Maximum length of a text that is kept for a diff.
const LONGEST_DIFFED: u64 = 64 * 1024;

/// Below both limits, threads cost more than they gain.
const FEW_FILES: usize = 64;
const FEW_BYTES: u64 = 1 << 20;

/// Further threads would only wait for one another in the kernel.
const MOST_THREADS: usize = 8;

/// A file to read, with the purpose.
pub(super) struct Question {
    pub(super) path: AbsPath,
    pub(super) stamp: Stamp,
    /// It is world-readable, so a diff of it may be shown.
    pub(super) public: bool,
    /// The plan needs its text, to edit it.
    pub(super) edited: bool,
    /// Digest of its content in the new config: an unchanged file needs no diff, and most files are unchanged.
    pub(super) wanted: Option<Digest>,
}

/// The content of a file.
#[derive(Default)]
pub(super) struct Answer {
    /// Digest; `None` if the file changed after it was observed, so that it matches no config.
    pub(super) digest: Option<Digest>,
    /// Its text, if it is needed or may be shown.
    pub(super) text: Option<String>,
}

/// Returns the answers in the order of the questions. Reads only files without a cached digest.
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
            // A user who can write to the directory can replace the file at any time.
            Err(RootError::WrongKind { .. }) => Ok(Answer::default()),
            Err(error) if error.is_not_found() => Ok(Answer::default()),
            answer => answer,
        }
    }

    fn read(&self, root: &Root) -> Result<Answer, RootError> {
        let without_text = || {
            // Another file of any size may be there now.
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
            // Another file is there now.
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
