//! The desired config, together with the operator requests that came with it.

use tokio::sync::watch;

use super::DesiredConfig;
use machinist_base::digest::Digest;

/// The newest desired config, and the operator requests for it.
#[derive(Debug)]
pub(super) struct DesiredConfigWatch {
    config: watch::Receiver<DesiredConfig>,
    /// Counter of operator requests; `None` if there is no source of requests.
    requests: Option<watch::Receiver<u64>>,
    /// The last request that was received.
    last_request: u64,
    /// The config that an operator requested: it does not wait for maintenance windows, and its reboot counts as
    /// approved.
    approved: Option<Digest>,
}

impl DesiredConfigWatch {
    pub(super) const fn new(config: watch::Receiver<DesiredConfig>) -> Self {
        Self {
            config,
            requests: None,
            last_request: 0,
            approved: None,
        }
    }

    /// Subscribes to operator requests. The sender increments the number together with a change of the desired
    /// config, so that both are received together.
    pub(super) fn subscribe_to_requests(&mut self, requests: watch::Receiver<u64>) {
        self.requests = Some(requests);
    }

    /// Receives the desired config, and whether an operator has requested it since the last call. A request
    /// approves the config that comes with it, and the approval ends with that config.
    pub(super) fn receive(&mut self) -> (DesiredConfig, bool) {
        let config = self.config.borrow_and_update();
        let requests = self.requests.as_mut();
        let request = requests.map_or(0, |requests| *requests.borrow_and_update());
        let config = config.clone();
        let is_requested = request > self.last_request;
        self.last_request = request;
        let digest = match &config {
            DesiredConfig::Config(_, digest) => Some(*digest),
            DesiredConfig::Unknown
            | DesiredConfig::Nothing
            | DesiredConfig::Refused(_)
            | DesiredConfig::Blocked(..) => None,
        };
        if is_requested {
            self.approved = digest;
        } else if self.approved != digest {
            self.approved = None;
        }
        (config, is_requested)
    }

    /// Waits for a change. Cancel-safe: a change that is missed here is still marked unseen.
    pub(super) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        self.config.changed().await
    }

    /// Returns whether the config has changed since it was received.
    pub(super) fn has_changed(&self) -> bool {
        self.config.has_changed().unwrap_or(false)
    }

    /// Returns another receiver of the config, for a wait that cannot borrow this one.
    pub(super) fn receiver(&self) -> watch::Receiver<DesiredConfig> {
        self.config.clone()
    }

    /// Returns the newest config without marking it as received.
    pub(super) fn current(&self) -> DesiredConfig {
        self.config.borrow().clone()
    }

    /// Returns the digest of the newest config, blocked or not.
    pub(super) fn digest(&self) -> Option<Digest> {
        self.config.borrow().config().map(|(_, digest)| digest)
    }

    /// Returns the name of the newest config, for messages; empty if there is none.
    pub(super) fn name(&self) -> String {
        let desired = self.config.borrow();
        let config = desired.config();
        config.map_or_else(String::new, |(config, _)| config.name.clone())
    }

    /// Returns whether no update may begin for the newest config.
    pub(super) fn is_blocked(&self) -> bool {
        self.config.borrow().block_reason().is_some()
    }

    /// Returns whether the source of configs was read.
    pub(super) fn is_known(&self) -> bool {
        !matches!(*self.config.borrow(), DesiredConfig::Unknown)
    }

    /// Returns whether an operator approved the planned config, so that it may begin at once. Nothing has to wait
    /// while there is neither a plan nor an approval.
    pub(super) fn is_approved(&self, planned: Option<Digest>) -> bool {
        planned == self.approved
    }

    /// Returns whether an operator approved the newest config that was received.
    pub(super) const fn has_approval(&self) -> bool {
        self.approved.is_some()
    }

    /// Ends the approval with the update that it was for.
    pub(super) const fn end_approval(&mut self) {
        self.approved = None;
    }

    /// Returns the number of the last request that was received.
    pub(super) const fn last_request(&self) -> u64 {
        self.last_request
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn config(text: &str) -> DesiredConfig {
        DesiredConfig::Config(Arc::default(), Digest::of(text.as_bytes()))
    }

    #[test]
    fn a_request_approves_the_config_that_comes_with_it_and_no_other() {
        let (configs, desired) = watch::channel(config("one"));
        let (requests, numbers) = watch::channel(0);
        let mut watch = DesiredConfigWatch::new(desired);
        watch.subscribe_to_requests(numbers);
        assert!(!watch.receive().1);
        assert!(!watch.has_approval());

        requests.send_replace(1);
        assert!(watch.receive().1);
        assert!(watch.is_approved(Some(Digest::of(b"one"))));
        assert_eq!(watch.last_request(), 1);
        assert!(!watch.receive().1, "the same request is received once");
        assert!(watch.has_approval(), "and remains valid");

        configs.send_replace(config("two"));
        assert!(!watch.receive().1);
        assert!(!watch.has_approval());
    }
}
