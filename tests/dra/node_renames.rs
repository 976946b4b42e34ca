//! Devices whose nodes are renamed: no container gets another device than the one its claim was
//! allocated.

use std::path::PathBuf;

use super::*;

/// Devices are identified by their links in `by-id`.
fn linked() -> Machine {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    std::fs::create_dir_all(machine.path("dev/by-id")).unwrap();
    let text = format!(
        "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {{name: x}}\nspec:\n  \
         resource: {TTY}\n  serve: dra\n  match: [{{path: \"/dev/by-id/usb-*\"}}]\n"
    );
    machine.write("tty.yaml", &text);
    lead(&machine, "one", "ttyA");
    lead(&machine, "two", "ttyB");
    machine
}

/// As udev does it: a new link replaces the old one.
fn lead(machine: &Machine, name: &str, to: &str) {
    let new = machine.path("dev/by-id/.new");
    std::os::unix::fs::symlink(format!("../{to}"), &new).unwrap();
    std::fs::rename(new, link(machine, name)).unwrap();
}

fn link(machine: &Machine, name: &str) -> PathBuf {
    machine.path(&format!("dev/by-id/usb-{name}"))
}

/// The node that a container of the claim would get now.
fn node(stage: &Stage, name: &str) -> Option<String> {
    let spec = stage.spec(name)?;
    let node = &spec["devices"][0]["containerEdits"]["deviceNodes"][0]["hostPath"];
    Some(node.as_str().unwrap().to_owned())
}

async fn gives(stage: &Stage, expected: Option<&str>) {
    let what = format!("the claim gives {expected:?}");
    until(&what, async || {
        (node(stage, "c").as_deref() == expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_for_a_vanished_node_fails_until_it_is_found_under_its_new_name() {
    let stage = Stage::on(linked(), FakeClaims::new()).await;
    let device = named("by-id-usb-one");
    stage.claims.allocate("c", &[("one", &device)]);
    let first = stage.prepare("c").await.unwrap();
    gives(&stage, Some("/dev/ttyA")).await;
    std::fs::remove_file(link(&stage.machine, "one")).unwrap();
    gives(&stage, None).await;
    let why = stage.prepare("c").await.unwrap_err();
    let message = "/dev/by-id/usb-one no longer points to /dev/ttyA";
    assert!(why.contains(message), "{why}");
    stage.machine.plug("ttyC");
    lead(&stage.machine, "one", "ttyC");
    gives(&stage, Some("/dev/ttyC")).await;
    assert_eq!(stage.prepare("c").await.unwrap(), first);
    // Unplugged and plugged in again between two scans: the registry sees no change.
    lead(&stage.machine, "one", "ttyA");
    gives(&stage, Some("/dev/ttyA")).await;
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reboot_a_claim_never_gets_another_device_of_the_same_name() {
    let stage = Stage::on(linked(), FakeClaims::new()).await;
    let device = named("by-id-usb-one");
    stage.claims.allocate("c", &[("one", &device)]);
    stage.prepare("c").await.unwrap();
    stage.agent.stop().await;
    // The first device is missing at first, and its node's name now belongs to the other.
    std::fs::remove_file(link(&stage.machine, "one")).unwrap();
    lead(&stage.machine, "two", "ttyA");
    stage.machine.boot("boot-2");
    let watcher = Watcher::start(stage.machine.root());
    let agent = stage.machine.agent();
    let published = watch::Sender::new(PublishedPool::default());
    let wish = agent.claims(stage.claims.clone(), published.subscribe());
    let driver = watcher.driver().await;
    let stage = Stage {
        agent,
        published,
        wish,
        watcher,
        driver,
        ..stage
    };
    let why = stage.prepare("c").await.unwrap_err();
    assert!(
        why.contains("unhealthy") || why.contains("any more"),
        "{why}"
    );
    assert_eq!(node(&stage, "c"), None);
    lead(&stage.machine, "one", "ttyB");
    until("it is prepared again", async || {
        stage.prepare("c").await.ok()
    })
    .await;
    assert_eq!(node(&stage, "c").as_deref(), Some("/dev/ttyB"));
    stage.agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_sharing_a_claim_can_start_concurrently() {
    let stage = Stage::new().await;
    stage.claims.allocate("c", &[("one", &named("ttyA"))]);
    let answers = stage.claims.hang("c");
    let (one, two, ()) = tokio::join!(stage.prepare("c"), stage.prepare("c"), async {
        until("it is asked for", async || {
            (stage.claims.asked() > 0).then_some(())
        })
        .await;
        drop(answers);
    });
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(stage.claims.asked(), 1, "what the first was given");
    stage.agent.stop().await;
}
