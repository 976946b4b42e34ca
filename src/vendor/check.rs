//! Plays the agent for a vendor's program and tells which rules of the contract it keeps.
//!
//! It is meant for the vendor's own tests: no registry, no kubelet and no hardware. What comes in goes
//! through the same session, the same codec and the same checks as in the agent; only paths are held
//! against the vendor's file alone.

mod script;
mod stage;

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use self::stage::Stage;
use super::server::{ServeError, Socket};
use crate::{device::vendor::Vendor, path::AbsPath, root::Root, shutdown::Tasks};

/// How a rule fared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// It was kept.
    Kept,
    /// It was not.
    Broken,
    /// The program did not come to where it counts, or does not want it.
    Skipped,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The rule in words.
    pub rule: String,
    /// How it fared.
    pub verdict: Verdict,
    /// What was seen; empty when there is nothing to add.
    pub seen: String,
}

/// How long each step may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// To connect, to offer what was named, and to come back.
    pub step: Duration,
    /// To answer a question; the vendor's own deadline when that is shorter.
    pub answer: Duration,
    /// How long heartbeats are listened to.
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
    /// In words.
    pub how: String,
    /// It ended well, as a program does that goes on in the background: whether it is there, the socket shows.
    pub well: bool,
}

/// Why nothing could be checked.
#[derive(Debug, thiserror::Error)]
#[error("the agent's socket for the check cannot be served")]
pub struct CheckError(#[source] ServeError);

/// A socket on which a program is awaited.
#[derive(Debug)]
pub struct Check {
    stage: Stage,
    /// Gone with the check.
    _socket: Socket,
    /// So that the file stays as it is.
    _spec: watch::Sender<Arc<Vendor>>,
}

impl Check {
    /// Makes the socket at `path`. Whoever runs the check may connect, beside those of the file.
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

    /// As [`Check::listen`], for a program whose end is known: nobody waits for one that has failed.
    #[must_use]
    pub fn of_program(mut self, ended: watch::Receiver<Option<Ended>>) -> Self {
        self.stage.program = Some(ended);
        self
    }

    /// Goes through all the rules; the same ones in the same order, whatever the program does.
    pub async fn run(mut self, patience: Patience) -> Vec<Finding> {
        script::run(&mut self.stage, patience).await
    }
}
