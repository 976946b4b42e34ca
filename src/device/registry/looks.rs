//! Runs path lookups with a timeout, since a file system behind a link may hang forever. The number
//! of hanging threads is limited for each source.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

/// The timeout of a lookup.
const WITHIN: Duration = Duration::from_secs(10);
/// The maximum number of concurrent lookups of one source.
const AT_ONCE: usize = 4;

/// Why a lookup failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLook {
    /// The file system does not respond.
    #[error("path lookup took more than {} s", WITHIN.as_secs())]
    TooLong,
    /// Other lookups of the source hang.
    #[error("{AT_ONCE} path lookups are already in progress")]
    TooMany,
    /// The agent is shutting down.
    #[error("path lookup aborted")]
    BrokeOff,
}

/// The lookups of one source; for declarations, of one resource. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Looks(Arc<Semaphore>);

impl Default for Looks {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Looks {
    /// Runs `look` on a blocking thread. After a timeout it goes on and keeps its permit until it
    /// ends.
    pub async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoLook> {
        let place = timeout(WITHIN, Arc::clone(&self.0).acquire_owned()).await;
        let place = place.map_err(|_| NoLook::TooMany)?;
        let place = place.map_err(|_| NoLook::BrokeOff)?;
        let looking = spawn_blocking(move || {
            let _place = place;
            look()
        });
        match timeout(WITHIN, looking).await {
            Ok(looked) => looked.map_err(|_| NoLook::BrokeOff),
            Err(_) => Err(NoLook::TooLong),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;

    /// Blocks until the sender is dropped.
    fn hangs(on: &Arc<Mutex<mpsc::Receiver<()>>>) -> impl FnOnce() + Send + 'static {
        let on = Arc::clone(on);
        move || drop(on.lock().map(|on| on.recv()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_is_given_up_and_no_more_than_a_few_hang() {
        let looks = Looks::default();
        let (end, on) = mpsc::channel::<()>();
        let on = Arc::new(Mutex::new(on));
        let mut hung = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE {
            let (looks, hangs) = (looks.clone(), hangs(&on));
            hung.spawn(async move { looks.look(hangs).await });
        }
        // The paused clock does not advance while a thread is busy, so advance it explicitly.
        while looks.0.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let late = looks.look(|| ());
        let (late, ()) = tokio::join!(late, tokio::time::advance(WITHIN + WITHIN));
        assert_eq!(late, Err(NoLook::TooMany));
        for hung in hung.join_all().await {
            assert_eq!(hung, Err(NoLook::TooLong));
        }
        drop(end);
        while looks.0.available_permits() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(looks.look(|| 1).await, Ok(1));
    }
}
