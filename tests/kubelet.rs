//! Checks the fake kubelet against the facts that the lab checks on the real one
//! (`tests/lab/kubelet.rs`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

mod contract;
mod plugin;

use machinist_testkit::fake_kubelet;

use std::{path::Path, time::Duration};

use contract::{Kubelet, facts};
use fake_kubelet::{FakeKubelet, Knobs};

/// A fake kubelet on a root of its own.
struct ContractKubelet {
    dir: tempfile::TempDir,
    life: Option<FakeKubelet>,
}

impl ContractKubelet {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut double = Self { dir, life: None };
        double.start().await;
        double
    }

    fn life(&self) -> &FakeKubelet {
        self.life.as_ref().unwrap()
    }
}

impl Kubelet for ContractKubelet {
    fn root(&self) -> &Path {
        self.dir.path()
    }

    fn dial_timeout(&self) -> Duration {
        Duration::from_secs(2)
    }

    async fn stop(&mut self) {
        self.life = None;
    }

    async fn start(&mut self) {
        let knobs = Knobs {
            watches: true,
            dial_timeout: Some(self.dial_timeout()),
            ..Knobs::default()
        };
        self.life = Some(FakeKubelet::start_with(self.dir.path(), knobs).await);
    }

    async fn counts(&self, resource: &str) -> Option<(usize, usize)> {
        self.life().counts(resource)
    }

    async fn admit(&self, resource: &str, count: usize) -> Result<(), String> {
        self.life().admit(resource, count).await.map(|_| ())
    }
}

macro_rules! tests {
    ($($fact:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $fact() {
                contract::$fact(&mut ContractKubelet::new().await).await;
            }
        )*
    };
}

facts!(tests);
