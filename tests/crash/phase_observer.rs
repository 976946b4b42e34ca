//! Observes phase changes of this test's reconciler, and not those of other tests in the process.

use std::{cell::RefCell, sync::Once};

use tracing_subscriber::{Layer, layer::SubscriberExt as _};

use crate::crash::child::PhaseTransition;

type Callback = Box<dyn Fn(&PhaseTransition)>;

thread_local! {
    static LISTENER: RefCell<Option<Callback>> = const { RefCell::new(None) };
}

/// The only subscriber of the process. Subscribers per test would not work: with only one
/// subscriber, a callsite that a thread *without* it reaches first is disabled for all threads.
struct ByThread;

impl<S: tracing::Subscriber> Layer<S> for ByThread {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        LISTENER.with_borrow(|listener| {
            let passage = PhaseTransition::of(event);
            if let Some(callback) = listener.as_ref().filter(|_| !passage.from.is_empty()) {
                callback(&passage);
            }
        });
    }
}

/// Ends the observation on drop.
pub(crate) struct Listening(());

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENER.set(None);
    }
}

/// Observes the phase changes of a reconciler whose loop runs on this thread.
pub(crate) fn listen(callback: impl Fn(&PhaseTransition) + 'static) -> Listening {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(ByThread);
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
    LISTENER.set(Some(Box::new(callback)));
    Listening(())
}
