//! The actor task of one vendor: it owns the vendor's session, offers, open requests and grace
//! period.
//!
//! It never waits for the vendor. It handles events one by one, and a session reads its next
//! message only after the current one is handled, so no backlog builds up here.

mod grace_period;
mod live_session;
mod pending_requests;
mod registry_updates;
mod rejections;
mod resume_state;
mod session_state;
mod task_inputs;
mod vendor_log;

use std::{sync::Arc, time::Duration};

use tonic::Status;

pub(super) use self::task_inputs::{
    SnapshotReader, StatusPublisher, VendorTaskDeps, VendorTaskInputs,
};
use self::{
    grace_period::GracePeriod, live_session::SessionSlot, pending_requests::PendingRequests,
    rejections::Rejections, resume_state::ResumeState, vendor_log::VendorLog,
};
use super::{
    api::v1::Reason,
    offered_resources::VendorResources,
    status::LiveVendorStatus,
    task_messages::{VendorEvent, VendorRequest},
};
use machinist_base::rate_limit::sleep_until_opt;
use machinist_device::{Resource, source::ResourceSource, vendor_declaration::Vendor};

pub(super) struct VendorTask {
    deps: VendorTaskDeps,
    inputs: VendorTaskInputs,
    session: SessionSlot,
    resources: VendorResources,
    requests: PendingRequests,
    grace: GracePeriod,
    resume: ResumeState,
    rejections: Rejections,
    log: VendorLog,
}

/// The event that woke the task.
enum VendorTaskEvent {
    Stop,
    Removed,
    VendorChanged,
    Request(VendorRequest),
    QuiesceChanged,
    Session(VendorEvent),
    InventoryChanged,
    GraceOver,
}

/// Runs until the vendor's file is removed or the agent stops. On agent stop the offers stay in the
/// registry.
pub(super) async fn run_vendor_task(deps: VendorTaskDeps, inputs: VendorTaskInputs) {
    let mut task = VendorTask::new(deps, inputs);
    loop {
        match task.next_event().await {
            VendorTaskEvent::Stop => {
                return task.end_session(Status::unavailable("the agent is stopping"));
            }
            VendorTaskEvent::Removed => {
                let name = task.name();
                let message =
                    format!("no file declares vendor {name} with connects: program any more");
                task.end_session(Status::unavailable(message));
                task.withdraw(None).await;
                return;
            }
            event => task.handle(event).await,
        }
        task.publish_status();
    }
}

impl VendorTask {
    fn new(deps: VendorTaskDeps, inputs: VendorTaskInputs) -> Self {
        let (name, serve_mode) = {
            let vendor = inputs.vendor.borrow();
            (vendor.name.clone(), vendor.serve)
        };
        let source = ResourceSource::Vendor(name);
        let restored: Vec<Arc<Resource>> = {
            let inventory = inputs.inventory.borrow();
            let all = inventory.resources.values();
            all.filter(|resource| resource.source == source)
                .cloned()
                .collect()
        };
        let owes_resume = inputs.quiesced.borrow().is_some();
        let mut task = Self {
            deps,
            inputs,
            session: SessionSlot::default(),
            resources: VendorResources::restored(restored),
            requests: PendingRequests::default(),
            grace: GracePeriod::default(),
            resume: ResumeState::new(owes_resume),
            rejections: Rejections::new(serve_mode),
            log: VendorLog::default(),
        };
        if task.resources.has_unconfirmed() {
            task.start_grace_period("it has not connected since the agent started");
        }
        task.publish_status();
        task
    }

    async fn next_event(&mut self) -> VendorTaskEvent {
        let grace_end = self.grace.ends_at();
        let waits_for_name = self.is_waiting_for_a_name();
        let inputs = &mut self.inputs;
        tokio::select! {
            biased;
            () = inputs.stop.cancelled() => VendorTaskEvent::Stop,
            () = inputs.removed.cancelled() => VendorTaskEvent::Removed,
            // Safe to drop: a change stays marked as unseen.
            Ok(()) = inputs.vendor.changed() => VendorTaskEvent::VendorChanged,
            // Safe to drop: messages that were not received stay in the channel.
            Some(request) = inputs.requests.recv() => VendorTaskEvent::Request(request),
            Ok(()) = inputs.quiesced.changed() => VendorTaskEvent::QuiesceChanged,
            Some(event) = inputs.events.recv() => VendorTaskEvent::Session(event),
            Ok(()) = inputs.inventory.changed(), if waits_for_name => VendorTaskEvent::InventoryChanged,
            // Safe to drop: the deadline is stored.
            () = sleep_until_opt(grace_end) => VendorTaskEvent::GraceOver,
        }
    }

    fn name(&self) -> String {
        self.inputs.vendor.borrow().name.clone()
    }

    /// The vendor's file, as last read.
    fn vendor(&self) -> Arc<Vendor> {
        self.inputs.vendor.borrow().clone()
    }

    fn record_fault(&mut self, fault: String) {
        let name = self.name();
        self.log.record_fault(&name, fault);
    }

    fn source(&self) -> ResourceSource {
        ResourceSource::Vendor(self.name())
    }

    fn grace_length(&self) -> Duration {
        self.inputs.vendor.borrow().grace
    }

    fn start_grace_period(&mut self, reason: &str) {
        let length = self.grace_length();
        self.grace.start(length, reason);
    }

    async fn handle(&mut self, event: VendorTaskEvent) {
        match event {
            VendorTaskEvent::VendorChanged => self.apply_vendor_file().await,
            VendorTaskEvent::Request(request) => self.send_request(request),
            VendorTaskEvent::Session(VendorEvent::HelloReceived(hello)) => {
                self.open_session(hello).await
            }
            VendorTaskEvent::Session(VendorEvent::MessageReceived(number, received, done)) => {
                // A session that was superseded receives the reason through its own channel.
                if self.session.is_current(number) {
                    self.handle_message(received).await;
                }
                // The session may have ended meanwhile.
                let _ = done.send(());
            }
            VendorTaskEvent::Session(VendorEvent::SessionEnded(number, reason)) => {
                self.record_session_end(number, &reason);
            }
            VendorTaskEvent::Session(VendorEvent::Refused(reason)) => self.record_fault(reason),
            VendorTaskEvent::InventoryChanged => self.accept_freed_names(),
            VendorTaskEvent::GraceOver => self.expire_unconfirmed().await,
            // Connected vendors get their order from [`VendorsHandle`]; one that connects later
            // gets it on connect.
            VendorTaskEvent::Stop | VendorTaskEvent::Removed | VendorTaskEvent::QuiesceChanged => {}
        }
    }

    /// Ends the session with this status.
    fn end_session(&mut self, status: Status) {
        self.session.end(status);
        self.requests.fail_all("its session ended");
    }

    /// Handles a session that ended by itself or because of the vendor.
    fn record_session_end(&mut self, number: u64, reason: &str) {
        if !self.session.is_current(number) {
            return;
        }
        let (name, grace) = (self.name(), self.grace_length());
        if self.log.take_session_line() {
            tracing::warn!(vendor = %name, "the session of vendor {name} ended: {reason}; its devices keep their health for {} s", grace.as_secs());
        }
        self.session.clear();
        self.log
            .set_last_reason(format!("the session of vendor {name} ended: {reason}"));
        self.requests.fail_all(reason);
        self.start_grace_period(reason);
    }

    /// Applies a changed vendor file. Offers that it no longer allows are withdrawn at once.
    async fn apply_vendor_file(&mut self) {
        let vendor = self.inputs.vendor.borrow_and_update().clone();
        let user = self.session.current().map(|session| session.user);
        if user.is_some_and(|user| !vendor.may_connect(user)) {
            let message = format!("vendor {} no longer lets this user connect", vendor.name);
            self.end_session(Status::permission_denied(message.clone()));
            self.start_grace_period(&message);
        }
        let forbidden = self.resources.remove_unless(|name| vendor.may_claim(name));
        for (name, generation) in forbidden {
            let message = format!("vendor {} may not offer {name} any more", vendor.name);
            self.rejections.record_forbidden(name.clone());
            self.withdraw_disallowed(name, generation, (Reason::ResourceForbidden, message))
                .await;
        }
        self.end_session_if_hello_differs(&vendor);
        self.change_serve_mode(vendor.serve).await;
    }

    /// Ends the session if the new file would answer its Hello differently, so that the vendor
    /// reconnects and offers again what is now allowed.
    fn end_session_if_hello_differs(&mut self, vendor: &Vendor) {
        let (name, max) = (&vendor.name, vendor.limits.resources);
        let session = self.session.current();
        let named = session.map_or(0, |session| session.resources.len());
        let allowed = self.rejections.newly_allowed(vendor);
        let reason = if named > max {
            format!("{named} resources are named; vendor {name} may offer 1 to {max}")
        } else if let Some(allowed) = allowed.filter(|_| self.session.is_connected()) {
            format!("vendor {name} may offer {allowed} again")
        } else {
            return;
        };
        tracing::info!(vendor = %name, "ending the session of vendor {name}: {reason}");
        self.end_session(Status::aborted(reason.clone()));
        self.start_grace_period(&reason);
    }

    fn publish_status(&self) {
        let lapsed = self.grace.lapsed_reason();
        let lapsed = lapsed.filter(|_| self.resources.all.values().any(|one| one.lapsed));
        let session = self.session.current();
        let status = LiveVendorStatus {
            sessions: self.session.accepted(),
            refused: self.log.refused(),
            last_reason: self.log.last_reason().map(str::to_owned),
            vain: self.rejections.to_status(),
            ..LiveVendorStatus::of(
                &self.inputs.vendor.borrow(),
                session.map(|session| session.instance.as_str()),
                self.grace.reason().or(lapsed),
                &self.resources,
                self.inputs.quiesced.borrow().is_some(),
            )
        };
        self.deps.status.publish(status);
    }
}
