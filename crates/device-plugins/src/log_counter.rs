//! Counts log lines in tests.

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    span::{Attributes, Id, Record},
    subscriber::DefaultGuard,
};

/// The number of lines that this thread logs, without debug output.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogCounter {
    lines: Arc<AtomicUsize>,
    spans: Arc<AtomicU64>,
}

impl LogCounter {
    /// Counts until the guard is dropped.
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let counter = Self::default();
        let guard = tracing::subscriber::set_default(counter.clone());
        (counter, guard)
    }

    pub(crate) fn lines(&self) -> usize {
        self.lines.load(Ordering::Relaxed)
    }
}

impl Subscriber for LogCounter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("machinist")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.lines.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
