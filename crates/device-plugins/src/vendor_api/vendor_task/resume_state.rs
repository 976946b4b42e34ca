//! Whether a vendor still has to confirm that it may use its hardware again.

/// The vendor was ordered to release its hardware, perhaps by an earlier agent, and has not
/// confirmed a Resume since.
pub(super) struct ResumeState {
    is_owed: bool,
    /// The ID of the last Resume; its answer confirms it.
    request: Option<u64>,
}

impl ResumeState {
    pub(super) const fn new(is_owed: bool) -> Self {
        Self {
            is_owed,
            request: None,
        }
    }

    pub(super) const fn is_pending(&self) -> bool {
        self.is_owed
    }

    pub(super) const fn record_quiesce(&mut self) {
        (self.is_owed, self.request) = (true, None);
    }

    pub(super) const fn record_resume(&mut self, request: u64) {
        self.request = Some(request);
    }

    /// Records that the vendor has carried out the request with this ID.
    pub(super) fn record_done(&mut self, request: u64) {
        if self.request == Some(request) {
            (self.is_owed, self.request) = (false, None);
        }
    }
}
