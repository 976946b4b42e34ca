//! A whole state directory: the journal, kept configs, originals, a held config, the pool, stopped units, devices,
//! claims and plugins.

use std::{collections::BTreeSet, fs};

use machinist_agent::{pool_settings, shutdown_quiesce};
use machinist_rootfs::Root;
use machinist_update::{
    crash_recovery,
    journal::Outcome,
    pinned_config::PinnedConfig,
    store::{self, StateStore},
};
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::last_version::{
    fixture,
    harness::Agent,
    plugin::Plugin,
    state_writer::{self, LATEST, LISTED, PLUGIN, STATE, Stage, claimed, command, plugins},
};
use machinist_testkit::{
    device_host::Machine,
    fake_claims::FakeClaims,
    fake_kubelet::ResourceAccounts,
    vendor_program::{device, listed, wait},
};

/// A machine as the last version left it.
async fn machine() -> Machine {
    static WRITTEN: OnceCell<()> = OnceCell::const_new();
    let written = async {
        if fixture::is_wanted(STATE) {
            state_writer::write().await;
        }
    };
    WRITTEN.get_or_init(|| written).await;
    let machine = Machine::new();
    fixture::restore(STATE, machine.root());
    state_writer::plug(&machine);
    machine
}

/// The vendors of the fixture are root's.
fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        println!("skipped: the vendors' programs belong to root");
    }
    is_root
}

fn read(machine: &Machine, path: &str) -> String {
    fs::read_to_string(machine.path(path)).unwrap()
}

fn names(dir: std::path::PathBuf) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_last_versions_journal_and_referenced_files_are_read() {
    let machine = machine().await;
    let root = Root::open(machine.root()).unwrap();
    let store = StateStore::open(&root).unwrap();
    let (journal, recovered) = crash_recovery::recover(&store).unwrap();
    assert!(recovered.is_empty(), "{recovered:?}");
    // Not the copy of another machine's disk, which would lose this.
    let outcomes: Vec<_> = journal.history.iter().map(|it| it.outcome).collect();
    assert_eq!(outcomes, [Outcome::AppliedOffline; 4]);
    let base = journal.base.unwrap();
    assert_eq!(base.digest, journal.history[1].digest);
    assert_eq!(base.name, journal.history[1].to);
    let config = store::whole_config(&root, &base).unwrap();
    let text = |path: &str| {
        let content = config.files[&path.parse().unwrap()].content.as_ref();
        content.unwrap().bytes().unwrap().to_vec()
    };
    for path in ["/etc/one", "/etc/two", "/etc/found"] {
        assert!(journal.owned.contains_key(&path.parse().unwrap()), "{path}");
        assert_eq!(
            text(path),
            read(&machine, &path[1..]).into_bytes(),
            "{path}"
        );
    }
    assert_eq!(text("/etc/one"), b"second");
    let original = &journal.originals[&"/etc/found".parse().unwrap()];
    assert_eq!(read(&machine, &original.as_str()[1..]), "found\n");
    let drifted = machine.path("var/lib/machinist/drifted");
    let update = drifted.join(&journal.history[1].id);
    assert_eq!(names(drifted), [journal.history[1].id.as_str()]);
    assert_eq!(
        fs::read_to_string(update.join("etc-one")).unwrap(),
        "edited\n"
    );
    let hold = PinnedConfig::load(&root).unwrap().unwrap();
    let over = Some(journal.history[2].digest);
    assert_eq!(
        (hold.digest, hold.over, hold.by.as_str()),
        (base.digest, over, "rollback")
    );
    let kept = (
        pool_settings::stored_pool(&root),
        shutdown_quiesce::units_to_restart(&root).unwrap(),
    );
    let stopped = BTreeSet::from(["monitor.service".to_owned()]);
    assert_eq!(kept, (Some("worker".to_owned()), stopped));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_agent_keeps_the_pinned_config_and_can_roll_back_further() {
    let machine = machine().await;
    let dir = tempfile::tempdir().unwrap();
    let source = state_writer::source(dir.path(), LATEST);
    let run = command(&machine, &["run", "--source", &source]);
    let agent = Agent::spawn(run, machine.root().to_owned());
    agent.wait_for_log("machine pinned to rendered-machine-");
    wait("rest", || agent.status()["phase"] == "Idle").await;
    let status = agent.status();
    assert_eq!(status["held"]["by"], "rollback", "{status:#}");
    assert_eq!(status["updates"].as_array().unwrap().len(), 4);
    assert_eq!(status["config"]["drift"], serde_json::json!([]));
    assert_eq!(read(&machine, "etc/one"), "second");
    let rows = status["devices"].as_array().unwrap().iter();
    let shown: Vec<_> = rows.map(|row| row["resource"].clone()).collect();
    for resource in [
        "acme.dev/claimed",
        "acme.dev/program",
        "acme.dev/tty",
        PLUGIN,
    ] {
        assert!(shown.contains(&Value::from(resource)), "{shown:?}");
    }
    // The first config is still stored, with the contents of its files; `/etc/two` was new in the second.
    let to = status["updates"].as_array().unwrap().last().unwrap()["to"].clone();
    let back = command(
        &machine,
        &["rollback", "--yes", "--to", to.as_str().unwrap()],
    );
    let back = { back }.output().unwrap();
    assert!(back.status.success(), "{back:?}");
    assert_eq!(read(&machine, "etc/one"), "first");
    assert!(!machine.path("etc/two").exists());
    // The source names a config without this path: its original comes back.
    drop(agent);
    let source = state_writer::source(dir.path(), &[("/etc/one", "fourth")]);
    let apply = command(&machine, &["apply", "--yes", "--source", &source]);
    assert!({ apply }.output().unwrap().status.success());
    assert_eq!(read(&machine, "etc/found"), "found\n");
}

// One thread: nothing else runs between the start of the agent and the check of its status.
#[tokio::test]
async fn an_upgraded_agent_restores_devices_claims_and_plugins_at_once() {
    if !is_root() {
        return;
    }
    let machine = machine().await;
    // The plugin has kept running; it registers only when it sees a new kubelet.sock, which this one does not watch.
    fs::create_dir_all(plugins(&machine)).unwrap();
    let plugin = Plugin::start(&plugins(&machine), PLUGIN, "gpu.sock", &["g0"], None).await;
    assert_eq!(plugin.seen().registered, 0);
    let at_once = |status: &_| assert_eq!(listed(status), LISTED);
    let claims = FakeClaims::new();
    claims.fail(usize::MAX);
    let stage = Stage::on(&machine, claims, at_once).await;
    plugin.until("dialled", |seen| seen.listed == 1).await;
    assert_eq!(plugin.seen().registered, 0);
    let listed = |books: &ResourceAccounts| {
        let one = |name: &str, list: &[&str]| books.get(name).is_some_and(|it| it.list() == list);
        one(PLUGIN, &["g0=Healthy"]) && one("acme.dev/program", &["acme0=Healthy"])
    };
    stage.kubelet.until("what is known", listed).await;
    // The claim is answered from the checkpoint while the API server is unreachable, and keeps its device from others.
    let prepared = stage.prepare("c").await.unwrap();
    assert_eq!(prepared[0].device_name, claimed());
    assert_eq!(
        prepared[0].cdi_device_ids,
        ["dra.machinist.dev/claim=c-uid-one"]
    );
    stage.claims.fail(0);
    stage.claims.allocate("c", &[("one", &claimed())]);
    stage.claims.allocate("d", &[("one", &claimed())]);
    let why = stage.prepare("d").await.unwrap_err();
    assert!(why.contains("still in use by claim lab/c"), "{why}");
    // The spec is the one that the last version wrote, and goes with its claim.
    let spec = machine.path("var/run/cdi/dra.machinist.dev-c-uid.json");
    assert!(spec.exists());
    assert_eq!(stage.unprepare("c").await, "");
    assert!(!spec.exists());
    stage.prepare("d").await.unwrap();
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgraded_agent_uses_the_last_valid_text_of_an_invalid_vendor_file() {
    if !is_root() {
        return;
    }
    let machine = machine().await;
    let file = machine.path("etc/machinist/vendors.d/acme.yaml");
    fs::write(file, "spec: [").unwrap();
    let agent = machine.agent();
    let resources = ["acme.dev/program"];
    let (mut program, _) = machine.hello("acme", "two", &resources).await.unwrap();
    let offered = vec![device("acme0")];
    program.offer(resources[0], 1, offered).await.unwrap();
    let known = agent.handle.vendors().status();
    let known: Vec<_> = known.iter().map(|one| one.vendor.as_str()).collect();
    assert!(known.contains(&"acme"), "{known:?}");
    agent.stop().await;
}
