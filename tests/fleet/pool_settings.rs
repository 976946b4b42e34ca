//! An agent and the settings of its node's pool.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use machinist_testkit::WAIT_TIMEOUT;
use serde_json::json;

use crate::fleet::{
    api::{Api, status},
    called,
    cluster::{GROUP, cluster},
    json_of,
};

/// An agent that follows the cluster as Node `worker-1`, below a root of its own.
struct Agent(Child);

impl Agent {
    fn start(api: &Api, root: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_machinist"));
        command.env_clear().arg("run").arg("--root").arg(root);
        command.args([
            "--source",
            "cluster",
            "--node-name",
            "worker-1",
            "--owners",
            "record",
        ]);
        command.arg("--kubeconfig").arg(api.kubeconfig());
        command.stderr(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn ends(mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

/// The origin of the value of `update.reboot`, as the agent's machine shows it.
async fn origin(root: &Path) -> String {
    let asked = ["settings", "-o", "json", "--root", root.to_str().unwrap()];
    let message = json_of(&called("machinist", &asked, &[]).await);
    let all = message["settings"].as_array().unwrap().clone();
    let found = all.into_iter().find(|one| one["key"] == "update.reboot");
    found.unwrap()["from"]["name"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn pool_settings_apply_also_while_the_api_server_is_unreachable() {
    let api = cluster().await;
    let dir = tempfile::tempdir().unwrap();
    let (root, etc) = (dir.path(), dir.path().join("etc/machinist"));
    std::fs::create_dir_all(&etc).unwrap();
    std::fs::write(etc.join("machinist.yaml"), "update: {reboot: ask}\n").unwrap();
    std::fs::write(etc.join("pool.worker.yaml"), "update: {reboot: never}\n").unwrap();
    std::fs::write(etc.join("pool.master.yaml"), "update: {reboot: auto}\n").unwrap();
    assert!(origin(root).await.contains("machinist.yaml"));
    let kept = root.join("var/lib/machinist/pool");
    let until = async |wanted: &str| {
        let began = std::time::Instant::now();
        while std::fs::read_to_string(&kept).unwrap_or_default() != wanted {
            assert!(
                began.elapsed() < WAIT_TIMEOUT,
                "the pool did not become {wanted:?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let agent = Agent::start(&api, root);
    until("worker\n").await;
    agent.ends();
    assert!(origin(root).await.contains("pool.worker.yaml"));
    // The API server fails when the next agent starts.
    let pools = format!("GET /apis/{GROUP}/v1/machineconfigpools");
    for _ in 0..50 {
        api.answers(
            &pools,
            503,
            status(503, "ServiceUnavailable", "away", json!({})),
        );
    }
    let before = api.requests(&pools).len();
    let agent = Agent::start(&api, root);
    while api.requests(&pools).len() == before {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    agent.ends();
    until("worker\n").await;
    assert!(origin(root).await.contains("pool.worker.yaml"));
}
