//! Reads the contents of many files in parallel: reading thousands of small files mostly waits for the kernel, and
//! reading a few large ones mostly computes digests.

use std::{num::NonZero, thread};

use super::digest_cache::{DigestCache, FileStamp};
use machinist_base::{abs_path::AbsPath, digest::Digest};
use machinist_plan::{MAX_KEYS_FILE_BYTES, byte_text};
use machinist_rootfs::{Root, RootError};

/// Maximum length of a text that is kept for a diff.
const MAX_DIFF_BYTES: u64 = 64 * 1024;

/// Below both limits, threads cost more than they gain.
const SINGLE_THREAD_MAX_FILES: usize = 64;
const SINGLE_THREAD_MAX_BYTES: u64 = 1 << 20;

/// Further threads would only wait for one another in the kernel.
const MAX_THREADS: usize = 8;

/// A file to read, with the purpose.
pub(super) struct ReadRequest {
    pub(super) path: AbsPath,
    pub(super) stamp: FileStamp,
    /// It is world-readable, so a diff of it may be shown.
    pub(super) public: bool,
    /// The plan needs its text, to edit it.
    pub(super) edited: bool,
    /// Digest of its content in the new config: an unchanged file needs no diff, and most files are unchanged.
    pub(super) wanted: Option<Digest>,
}

/// The content of a file.
#[derive(Default)]
pub(super) struct ReadResult {
    /// Digest; `None` if the file changed after it was observed, so that it matches no config.
    pub(super) digest: Option<Digest>,
    /// Its text, if it is needed or may be shown.
    pub(super) text: Option<String>,
    /// Another process holds a lease on it, so that it cannot be read.
    pub(super) leased: bool,
    /// It was written in place after it was observed, so the digest is not cached.
    written: bool,
}

/// Returns the answers in the order of the questions. Reads only files without a cached digest.
pub(super) fn answer(
    root: &Root,
    questions: &[ReadRequest],
    known: Option<&DigestCache>,
) -> Result<Vec<ReadResult>, RootError> {
    let remembered = |question: &ReadRequest| {
        let digest = known?.get(&question.stamp)?;
        let known = || ReadResult {
            digest: Some(digest),
            ..ReadResult::default()
        };
        (!question.needs_text(digest)).then(known)
    };
    let mut answers: Vec<Option<ReadResult>> = questions.iter().map(remembered).collect();
    let open = questions
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| answer.is_none());
    let open: Vec<&ReadRequest> = open.map(|(question, _)| question).collect();
    let mut read = read(root, &open)?.into_iter();
    for (question, answer) in questions.iter().zip(&mut answers) {
        if answer.is_none() {
            *answer = read.next();
            let settled = answer.as_ref().filter(|answer| !answer.written);
            let digest = settled.and_then(|answer| answer.digest);
            if let (Some(known), Some(digest)) = (known, digest) {
                known.put(question.stamp, digest);
            }
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

fn read(root: &Root, questions: &[&ReadRequest]) -> Result<Vec<ReadResult>, RootError> {
    let answers = |part: &[&ReadRequest]| -> Result<Vec<ReadResult>, RootError> {
        part.iter().map(|question| question.answer(root)).collect()
    };
    let sizes = questions.iter().map(|question| question.stamp.size());
    let bytes = sizes.fold(0, u64::saturating_add);
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.min(MAX_THREADS);
    if threads == 1
        || questions.len() < 2
        || questions.len() < SINGLE_THREAD_MAX_FILES && bytes < SINGLE_THREAD_MAX_BYTES
    {
        return answers(questions);
    }
    let parts = questions.chunks(questions.len().div_ceil(threads));
    let parts: Vec<Result<Vec<ReadResult>, RootError>> = thread::scope(|scope| {
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

impl ReadRequest {
    fn needs_text(&self, digest: Digest) -> bool {
        let diffed =
            self.public && self.stamp.size() <= MAX_DIFF_BYTES && self.wanted != Some(digest);
        self.edited || diffed
    }

    fn answer(&self, root: &Root) -> Result<ReadResult, RootError> {
        match self.read(root) {
            // A user who can write to the directory can replace the file at any time.
            Err(RootError::WrongKind { .. }) => Ok(ReadResult::default()),
            Err(error) if error.is_not_found() => Ok(ReadResult::default()),
            // The owner of a file may hold a lease on it for ever: this must concern no other file.
            Err(error) if error.is_leased() => Ok(ReadResult {
                leased: true,
                ..ReadResult::default()
            }),
            answer => answer,
        }
    }

    fn read(&self, root: &Root) -> Result<ReadResult, RootError> {
        let without_text = || {
            // Another file of any size may be there now.
            let (digest, stat) = root.digest_seen(&self.path, self.stamp.size())?;
            Ok(ReadResult {
                digest: digest.filter(|_| FileStamp::of(&stat) == self.stamp),
                ..ReadResult::default()
            })
        };
        let limit = match self.edited {
            true => MAX_KEYS_FILE_BYTES,
            false => MAX_DIFF_BYTES,
        };
        if self.stamp.size() > limit {
            return without_text();
        }
        // The plan keeps what others have written in a file that it edits, up to the moment of reading.
        let is_accepted = |stamp: FileStamp| {
            stamp == self.stamp || self.edited && stamp.is_same_file(&self.stamp)
        };
        let (bytes, stamp) = match root.read_seen(&self.path, limit) {
            Ok((bytes, stat)) => (bytes, FileStamp::of(&stat)),
            Err(RootError::TooLarge { .. }) => return without_text(),
            Err(error) => return Err(error),
        };
        // Another file is there now.
        if !is_accepted(stamp) {
            return Ok(ReadResult::default());
        }
        let digest = Digest::of(&bytes);
        let text = match (self.edited, self.needs_text(digest)) {
            // The plan changes lines of it; the others may have any bytes.
            (true, _) => Some(byte_text::to_text(&bytes)),
            (false, true) => String::from_utf8(bytes).ok(),
            (false, false) => None,
        };
        Ok(ReadResult {
            digest: Some(digest),
            text,
            leased: false,
            written: stamp != self.stamp,
        })
    }
}
