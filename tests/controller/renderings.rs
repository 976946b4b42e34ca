//! `tests/golden/pools/NN-name/`: `objects.yaml` has a MachineConfigPool and the MachineConfigs of its cluster;
//! `expected.txt` is what the controller makes of them. A rendered config is recorded as the request that creates it,
//! behind the pool's new `spec.configuration`; a refused one as reason and message of the condition `RenderDegraded`.
//! `MACHINIST_BLESS=1` rewrites `expected.txt`, to be reviewed.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use machinist_ignition::{ConfigRules, MergeOrder, NoLocalFiles, documents_from_files, merge};
use serde_json::Value;

use super::{
    harness::Lab,
    objects::{CONFIGS, POOLS, config_path},
};

/// The objects of a case.
struct Case {
    pool: Value,
    configs: Vec<Value>,
}

fn cases() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pools");
    let entries = fs::read_dir(directory).unwrap();
    let mut cases: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    cases.sort();
    cases
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

impl Case {
    fn read(directory: &Path) -> Self {
        let text = fs::read_to_string(directory.join("objects.yaml")).unwrap();
        let mut configs: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let pool = configs.remove(0);
        assert_eq!(pool["kind"], "MachineConfigPool", "{}", directory.display());
        let mut case = Self { pool, configs };
        for object in case.configs.iter_mut().chain([&mut case.pool]) {
            object["metadata"]["uid"] = "uid".into();
        }
        case
    }

    /// What the controller makes of the objects.
    async fn result(&self) -> String {
        let lab = Lab::empty().await;
        for config in &self.configs {
            lab.server.put(&config_path(name(config)), config.clone());
        }
        let path = format!("{POOLS}/{}", name(&self.pool));
        lab.server.put(&path, self.pool.clone());
        let _running = lab.start("one").await;
        let condition = |lab: &Lab| {
            let pool = lab.server.object(&path);
            let all = pool["status"]["conditions"].as_array().cloned();
            let mut all = all.unwrap_or_default().into_iter();
            all.find(|it| it["type"] == "RenderDegraded")
        };
        lab.until("the outcome", |lab| condition(lab).is_some())
            .await;
        let outcome = condition(&lab).unwrap();
        let created = lab.server.requests_starting(&format!("POST {CONFIGS}"));
        let target = &lab.server.object(&path)["spec"]["configuration"];
        let [created] = &created[..] else {
            assert!(created.is_empty() && target.is_null(), "{target}");
            let [status, reason, message] =
                ["status", "reason", "message"].map(|field| outcome[field].as_str().unwrap());
            return format!("RenderDegraded={status} {reason}\n{message}\n");
        };
        assert_eq!(outcome["status"], "False");
        assert_eq!(name(&created.body), target["name"]);
        assert_eq!(name(&created.body), self.name_elsewhere(target));
        format!(
            "{}\n{}\n",
            serde_json::to_string_pretty(target).unwrap(),
            serde_json::to_string_pretty(&created.body).unwrap()
        )
    }

    /// The name that the same configs have when they are merged from files, as before there is a cluster.
    fn name_elsewhere(&self, target: &Value) -> String {
        let sources = target["source"].as_array().unwrap();
        let is_source =
            |config: &&Value| sources.iter().any(|source| source["name"] == name(config));
        let configs = self.configs.iter().filter(is_source);
        let files = configs.map(|config| {
            (
                format!("{}.json", name(config)),
                config.to_string().into_bytes(),
            )
        });
        let rules = ConfigRules::default();
        let (documents, _) = documents_from_files(files.collect(), &rules, &NoLocalFiles).unwrap();
        let merged = merge(documents, name(&self.pool), MergeOrder::WorkerFirst);
        merged.unwrap().0.name
    }
}

#[tokio::test(start_paused = true)]
async fn every_golden_pool_is_rendered_or_refused_as_recorded() {
    let bless = std::env::var_os("MACHINIST_BLESS").is_some();
    let cases = cases();
    let mut different = String::new();
    for case in &cases {
        let found = Case::read(case).result().await;
        let file = case.join("expected.txt");
        if bless {
            fs::write(&file, &found).unwrap();
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        if found != expected {
            let name = case.display();
            let _ = writeln!(
                different,
                "--- {name}: expected\n{expected}--- got\n{found}"
            );
        }
    }
    assert!(different.is_empty(), "{different}");
    assert!(cases.len() >= 25, "only {} cases", cases.len());
}
