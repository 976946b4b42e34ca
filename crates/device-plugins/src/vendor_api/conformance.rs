//! A conformance check for vendor programs: it plays the agent and reports which rules of the
//! contract the program keeps.
//!
//! It is meant for the vendor's own tests and needs no registry, no kubelet and no hardware.
//! Messages pass through the same session, codec and checks as in the agent; only paths are checked
//! against the vendor's file alone, not against the machine.

mod harness;
mod rules;

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use self::harness::ConformanceHarness;
use super::socket::{VendorServeError, VendorSocket};
use machinist_base::{abs_path::AbsPath, shutdown::Tasks};
use machinist_device::vendor_declaration::Vendor;
use machinist_rootfs::Root;

/// The result of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RuleVerdict {
    /// The program kept the rule.
    Kept,
    /// The program broke the rule.
    Broken,
    /// The program never reached the point where the rule applies, or does not use the feature.
    Skipped,
}

/// One rule and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleResult {
    /// The rule, as a sentence.
    pub rule: String,
    /// The result.
    pub verdict: RuleVerdict,
    /// The observation behind the result; empty when there is nothing to add.
    pub seen: String,
}

/// Time limits of the steps.
#[derive(Clone, Copy, Debug)]
pub struct StepTimeouts {
    /// For connecting, for offering the resources named in Hello, and for reconnecting.
    pub step: Duration,
    /// For answering a question; the vendor's own deadline applies when it is shorter.
    pub answer: Duration,
    /// How long heartbeats are observed.
    pub heartbeats: Duration,
}

impl Default for StepTimeouts {
    fn default() -> Self {
        Self {
            step: Duration::from_secs(15),
            answer: Duration::from_secs(10),
            heartbeats: Duration::from_secs(4),
        }
    }
}

/// How a program that was started has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramExit {
    /// The exit status as text.
    pub how: String,
    /// Whether it exited successfully, as a program does that continues in the background; whether
    /// it still runs shows only on the socket.
    pub well: bool,
}

/// The check could not create its socket.
#[derive(Debug, thiserror::Error)]
#[error("failed to serve the agent's socket for the check")]
pub struct CheckError(#[source] VendorServeError);

/// A socket that waits for a vendor's program.
#[derive(Debug)]
pub struct ConformanceCheck {
    harness: ConformanceHarness,
    /// Removed together with the check.
    _socket: VendorSocket,
    /// Keeps the channel open, so that the file's content stays unchanged.
    _spec: watch::Sender<Arc<Vendor>>,
}

impl ConformanceCheck {
    /// Creates the socket at `path`. The user who runs the check may connect, in addition to the
    /// users of the file.
    pub fn listen(
        root: &Root,
        path: AbsPath,
        mut vendor: Vendor,
        tasks: &Tasks,
    ) -> Result<Self, CheckError> {
        vendor.users.push(nix::unistd::geteuid().as_raw());
        vendor.group = nix::unistd::getegid().as_raw();
        let vendor = Arc::new(vendor);
        let (spec, declared) = watch::channel(Arc::clone(&vendor));
        let (events, received) = mpsc::channel(8);
        let socket = VendorSocket::at((root, path), &declared, &events, tasks, &Arc::default())
            .map_err(CheckError)?;
        Ok(Self {
            harness: ConformanceHarness::new(vendor, received),
            _socket: socket,
            _spec: spec,
        })
    }

    /// As [`ConformanceCheck::listen`], for a program whose exit can be observed: the check does not wait for
    /// one that has failed.
    #[must_use]
    pub fn of_program(mut self, ended: watch::Receiver<Option<ProgramExit>>) -> Self {
        self.harness.program = Some(ended);
        self
    }

    /// Checks all rules, always the same ones in the same order, whatever the program does.
    pub async fn run(mut self, patience: StepTimeouts) -> Vec<RuleResult> {
        rules::run(&mut self.harness, patience).await
    }
}
