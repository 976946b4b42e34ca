//! Hears the driver of this test pass from one phase to another, and of no other test beside it.

use std::{cell::RefCell, sync::Once};

use tracing_subscriber::{Layer, layer::SubscriberExt as _};

use crate::child::Passage;

type Heard = Box<dyn Fn(&Passage)>;

thread_local! {
    static LISTENER: RefCell<Option<Heard>> = const { RefCell::new(None) };
}

/// The one subscriber of the process. Subscribers that come and go with their tests would not do: while there
/// is one only, a place in the code that a thread *without* it reaches first is silent for all threads.
struct ByThread;

impl<S: tracing::Subscriber> Layer<S> for ByThread {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        LISTENER.with_borrow(|listener| {
            let passage = Passage::of(event);
            if let Some(heard) = listener.as_ref().filter(|_| !passage.from.is_empty()) {
                heard(&passage);
            }
        });
    }
}

/// Ends the listening.
pub(crate) struct Listening(());

impl Drop for Listening {
    fn drop(&mut self) {
        LISTENER.set(None);
    }
}

/// Hears the passages of a driver whose loop runs on this thread.
pub(crate) fn listen(heard: impl Fn(&Passage) + 'static) -> Listening {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let subscriber = tracing_subscriber::registry().with(ByThread);
        tracing::subscriber::set_global_default(subscriber).unwrap();
    });
    LISTENER.set(Some(Box::new(heard)));
    Listening(())
}
