//! Notifications to the service manager that started machinist (sd_notify(3)).

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use sd_notify::NotifyState;

/// Sends notifications. Does nothing without `NOTIFY_SOCKET`, such as in a pod or a terminal.
#[derive(Debug)]
pub struct Notifier {
    listened_to: bool,
    watchdog: Option<Duration>,
    status: Mutex<String>,
}

impl Notifier {
    /// Reads the environment.
    pub fn from_env() -> Self {
        Self {
            listened_to: std::env::var_os("NOTIFY_SOCKET").is_some(),
            watchdog: sd_notify::watchdog_enabled(),
            status: Mutex::default(),
        }
    }

    /// Recovery is done, the desired config is read, the sockets are served.
    pub fn ready(&self) {
        self.send(&NotifyState::Ready);
    }

    /// Sets the line of text for `systemctl status`. An unchanged line is not sent again.
    pub fn status(&self, words: &str) {
        // A line break would start another message.
        let words = words.replace(['\n', '\r'], " ");
        let mut said = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if *said != words {
            self.send(&NotifyState::Status(&words));
            *said = words;
        }
    }

    /// The shutdown has begun.
    pub fn stopping(&self) {
        self.send(&NotifyState::Stopping);
    }

    /// The watchdog ping; call it only from the loop that does the work.
    pub fn watchdog(&self) {
        self.send(&NotifyState::Watchdog);
    }

    /// The interval of [`Notifier::watchdog`]: half of the service manager's timeout
    /// (sd_watchdog_enabled(3)); `None` if the watchdog is off.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.watchdog.map(|limit| limit / 2)
    }

    /// Extends the start or stop timeout by this much from now.
    pub fn extend_timeout(&self, by: Duration) {
        let micros = u32::try_from(by.as_micros()).unwrap_or(u32::MAX);
        self.send(&NotifyState::ExtendTimeoutUsec(micros));
    }

    fn send(&self, state: &NotifyState<'_>) {
        if !self.listened_to {
            return;
        }
        // Nothing here depends on it; the service manager notices missing notifications.
        if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
            tracing::debug!(%error, %state, "cannot notify the service manager");
        }
    }
}
