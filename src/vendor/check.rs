//! A conformance check for vendor programs: it plays the agent and reports which rules of the
//! contract the program keeps.
//!
//! It is meant for the vendor's own tests and needs no registry, no kubelet and no hardware.
//! Messages pass through the same session, codec and checks as in the agent; only paths are checked
//! against the vendor's file alone, not against the machine.

mod script;
mod stage;

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use self::stage::Stage;
use super::server::{ServeError, Socket};
use crate::{device::vendor::Vendor, path::AbsPath, root::Root, shutdown::Tasks};

/// The result of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
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
pub struct Finding {
    /// The rule, as a sentence.
    pub rule: String,
    /// The result.
    pub verdict: Verdict,
    /// The observation behind the result; empty when there is nothing to add.
    pub seen: String,
}

/// Time limits of the steps.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For connecting, for offering the resources named in Hello, and for reconnecting.
    pub step: Duration,
    /// For answering a question; the vendor's own deadline applies when it is shorter.
    pub answer: Duration,
    /// How long heartbeats are observed.
    pub heartbeats: Duration,
}

impl Default for Patience {
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
pub struct Ended {
    /// The exit status as text.
    pub how: String,
    /// Whether it exited successfully, as a program does that continues in the background; whether
    /// it still runs shows only on the socket.
    pub well: bool,
}

/// The check could not create its socket.
#[derive(Debug, thiserror::Error)]
#[error("failed to serve the agent's socket for the check")]
pub struct CheckError(#[source] ServeError);

/// A socket that waits for a vendor's program.
#[derive(Debug)]
pub struct Check {
    stage: Stage,
    /// Removed together with the check.
    _socket: Socket,
    /// Keeps the channel open, so that the file's content stays unchanged.
    _spec: watch::Sender<Arc<Vendor>>,
}

impl Check {
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
        let (events, heard) = mpsc::channel(8);
        let socket = Socket::at((root, path), &declared, &events, tasks, &Arc::default())
            .map_err(CheckError)?;
        Ok(Self {
            stage: Stage::new(vendor, heard),
            _socket: socket,
            _spec: spec,
        })
    }

    /// As [`Check::listen`], for a program whose exit can be observed: the check does not wait for
    /// one that has failed.
    #[must_use]
    pub fn of_program(mut self, ended: watch::Receiver<Option<Ended>>) -> Self {
        self.stage.program = Some(ended);
        self
    }

    /// Checks all rules, always the same ones in the same order, whatever the program does.
    pub async fn run(mut self, patience: Patience) -> Vec<Finding> {
        script::run(&mut self.stage, patience).await
    }
}
