//! What machinist tells the service manager that started it (sd_notify(3)).

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use sd_notify::NotifyState;

/// The line to the service manager. Says nothing when nobody asked to be told: there is no
/// `NOTIFY_SOCKET` in a pod or a terminal.
#[derive(Debug)]
pub struct Notifier {
    listened_to: bool,
    watchdog: Option<Duration>,
    status: Mutex<String>,
}

impl Notifier {
    /// As the environment says.
    pub fn from_env() -> Self {
        Self {
            listened_to: std::env::var_os("NOTIFY_SOCKET").is_some(),
            watchdog: sd_notify::watchdog_enabled(),
            status: Mutex::default(),
        }
    }

    /// Recovery is done, the source is read, the sockets are served.
    pub fn ready(&self) {
        self.send(&NotifyState::Ready);
    }

    /// One line in words for `systemctl status`. The same line twice is sent once.
    pub fn status(&self, words: &str) {
        // A line break would start another message.
        let words = words.replace(['\n', '\r'], " ");
        let mut said = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != words {
            self.send(&NotifyState::Status(&words));
            *said = words;
        }
    }

    /// The end has begun.
    pub fn stopping(&self) {
        self.send(&NotifyState::Stopping);
    }

    /// A sign of life; only from the loop that does the work.
    pub fn watchdog(&self) {
        self.send(&NotifyState::Watchdog);
    }

    /// How often [`Notifier::watchdog`] is due: half of what the service manager allows
    /// (sd_watchdog_enabled(3)); none when it does not watch.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|limit| limit / 2)
    }

    /// Start-up or stop may take this much longer, from now.
    pub fn extend_timeout(&self, by: Duration) {
        let micros = u32::try_from(by.as_micros()).unwrap_or(u32::MAX);
        self.send(&NotifyState::ExtendTimeoutUsec(micros));
    }

    fn send(&self, state: &NotifyState<'_>) {
        if !self.listened_to {
            return;
        }
        // Nothing depends on it here; whoever listens notices the silence.
        if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
            tracing::debug!(%error, %state, "cannot notify the service manager");
        }
    }
}
