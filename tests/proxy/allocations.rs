//! The kubelet's calls, and the plugin's answers.

use std::time::Duration;

use machinist_device_plugins::kubelet::{
    api::{relay::device_plugin_client::DevicePluginClient, v1beta1 as api},
    raw_message::RawMessage,
};
use prost::Message as _;

use super::{
    GPU,
    harness::{self, Agent, Stage, answer, has},
    plugin::{Does, Plugin, Script},
};
use machinist_testkit::{WAIT_TIMEOUT, fake_kubelet::FakeKubelet};

/// A registered plugin with two devices that follows a script.
async fn played(more: &str, script: Script) -> (Stage, FakeKubelet, Agent, Plugin) {
    let stage = Stage::new(more);
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let plugin = Plugin::start_with(&directory, GPU, "a.sock", &["a", "b"], None, script).await;
    kubelet
        .until("listed", |books| {
            has(books, GPU, &["a=Healthy", "b=Healthy"])
        })
        .await;
    (stage, kubelet, agent, plugin)
}

fn request(ids: &[&str]) -> api::AllocateRequest {
    let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    api::AllocateRequest {
        container_requests: vec![api::ContainerAllocateRequest { devices_ids }],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocate_response_is_relayed_unchanged_with_unknown_fields() {
    let mut bytes = answer("/dev/acme0", "/opt/acme");
    // Field 15, a number; field 16, text.
    let later = [0x78, 0x2a, 0x82, 0x01, 0x02, b'h', b'i'];
    // Within the container's part, which is all there is so far, and after it.
    bytes[1] += u8::try_from(later.len()).unwrap();
    bytes.extend_from_slice(&later);
    bytes.extend_from_slice(&later);
    let part = api::AllocateResponse::decode(bytes.as_slice()).unwrap();
    assert_eq!(part.container_responses.len(), 1);
    let script = Script {
        allocate: Does::Answers(bytes.clone()),
        ..Script::default()
    };
    let (_stage, kubelet, agent, plugin) = played("", script).await;
    let mut client = DevicePluginClient::new(kubelet.channel(GPU));
    let mut question = request(&["b"]).encode_to_vec();
    question[1] += u8::try_from(later.len()).unwrap();
    question.extend_from_slice(&later);
    question.extend_from_slice(&later);
    let asked = RawMessage(question.clone().into());
    let got = client.allocate(asked).await.unwrap().into_inner();
    assert_eq!(got, RawMessage(bytes.into()));
    assert_eq!(plugin.seen().allocated, [["b"]]);
    assert_eq!(plugin.seen().questions, [question]);
    let unknown = kubelet.allocate(GPU, &["c"]).await.unwrap_err();
    assert!(unknown.message().contains("\"c\""), "{unknown:?}");
    assert_eq!(plugin.seen().allocated.len(), 1, "it is not asked for that");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocate_response_with_a_forbidden_path_is_rejected() {
    let (stage, kubelet, agent, plugin) =
        played("  devices: [/dev/acme*]\n", Script::default()).await;
    let opt = stage.machine.path("opt/acme");
    std::fs::create_dir_all(&opt).unwrap();
    std::os::unix::fs::symlink("/etc", opt.join("out")).unwrap();
    for (node, mount, named) in [
        ("/dev/sda", "/opt/acme", "/dev/sda"),
        ("/dev/acme0", "/etc/shadow", "/etc/shadow"),
        ("/dev/acme0", "/opt/acme/out/shadow", "/etc/shadow"),
        ("/dev/../etc/shadow", "/opt/acme", "/dev/../etc/shadow"),
    ] {
        let answer = answer(node, mount);
        plugin.script(|script| script.allocate = Does::Answers(answer));
        let refused = kubelet.allocate(GPU, &["a"]).await.unwrap_err();
        let message = refused.message();
        assert!(
            message.starts_with("allocation from plugin acme rejected") && message.contains(named),
            "{message}"
        );
    }
    let answer = answer("/dev/acme0", "/opt/acme/lib");
    plugin.script(|script| script.allocate = Does::Answers(answer));
    kubelet.allocate(GPU, &["a"]).await.unwrap();
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_or_hanging_plugin_is_reported_by_name() {
    let script = Script {
        allocate: Does::Fails("no firmware".into()),
        ..Script::default()
    };
    let (_stage, kubelet, agent, plugin) = played("  deadline: 1s\n", script).await;
    let failed = kubelet.allocate(GPU, &["a"]).await.unwrap_err();
    assert!(failed.message().contains("no firmware"), "{failed:?}");
    plugin.script(|script| script.allocate = Does::Hangs);
    let late = tokio::time::timeout(WAIT_TIMEOUT, kubelet.allocate(GPU, &["a"]));
    let late = late.await.expect("no answer in time").unwrap_err();
    assert_eq!(late.message(), "plugin acme did not respond within 1 s");
    plugin
        .until("the cancellation", |seen| seen.cancelled == 1)
        .await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_cancelled_by_the_kubelet_is_cancelled_at_the_plugin() {
    let script = Script {
        allocate: Does::Hangs,
        pre_start: Does::Hangs,
        options: api::DevicePluginOptions {
            pre_start_required: true,
            ..Default::default()
        },
        ..Script::default()
    };
    let (_stage, kubelet, agent, plugin) = played("", script).await;
    let brief = Duration::from_millis(200);
    let allocate = kubelet.allocate(GPU, &["a"]);
    tokio::time::timeout(brief, allocate).await.unwrap_err();
    plugin
        .until("the allocation", |seen| seen.cancelled == 1)
        .await;
    // A drain of devices does not wait for it.
    harness::until("nothing is being given", || {
        agent.allocations.borrow().in_flight == 0
    })
    .await;
    let request = api::PreStartContainerRequest {
        devices_ids: vec!["a".into()],
    };
    let mut client = kubelet.plugin(GPU);
    let start = client.pre_start_container(request);
    tokio::time::timeout(brief, start).await.unwrap_err();
    plugin.until("the start", |seen| seen.cancelled == 2).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_options_enable_pre_start_and_preferred_allocation_calls() {
    let script = Script {
        options: api::DevicePluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        },
        preferred: vec!["b".into()],
        ..Script::default()
    };
    let (_stage, kubelet, agent, plugin) = played("", script).await;
    let mut client = kubelet.plugin(GPU);
    let options = client.get_device_plugin_options(api::Empty {}).await;
    assert!(options.unwrap().into_inner().pre_start_required);
    for (says, expected) in [
        (&["b"][..], "b"),
        // Wrong answers: no device, an unknown device, too many.
        (&[], "a"),
        (&["z"], "a"),
        (&["a", "b"], "a"),
    ] {
        plugin.script(|script| script.preferred = says.iter().map(|id| (*id).into()).collect());
        let one = api::ContainerPreferredAllocationRequest {
            available_device_i_ds: vec!["a".into(), "b".into()],
            must_include_device_i_ds: Vec::new(),
            allocation_size: 1,
        };
        let request = api::PreferredAllocationRequest {
            container_requests: vec![one],
        };
        let answer = client.get_preferred_allocation(request).await.unwrap();
        let answer = answer.into_inner().container_responses.remove(0);
        assert_eq!(answer.device_i_ds, [expected], "{says:?}");
    }
    let request = api::PreStartContainerRequest {
        devices_ids: vec!["a".into()],
    };
    client.pre_start_container(request.clone()).await.unwrap();
    plugin.script(|script| script.pre_start = Does::Fails("reset failed".into()));
    let failed = client.pre_start_container(request).await.unwrap_err();
    assert!(failed.message().contains("reset failed"), "{failed:?}");
    assert_eq!(plugin.seen().started, 2);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocation_cancelled_by_a_stopping_plugin_goes_to_its_successor() {
    let leaves = Script {
        allocate: Does::Leaves,
        ..Script::default()
    };
    let (stage, kubelet, agent, plugin) = played("", leaves).await;
    let asked = kubelet.allocate(GPU, &["a"]);
    let restarted = async {
        plugin
            .until("the question", |seen| !seen.allocated.is_empty())
            .await;
        drop(plugin);
        let script = Script {
            allocate: Does::Answers(answer("/dev/acme0", "/opt/acme")),
            ..Script::default()
        };
        let directory = stage.directory("acme");
        Plugin::start_with(&directory, GPU, "a.sock", &["a", "b"], None, script).await
    };
    let (answer, plugin) = tokio::join!(asked, restarted);
    assert_eq!(answer.unwrap().devices[0].host_path, "/dev/acme0");
    // A plugin that answers with this status and stays connected has answered.
    plugin.script(|script| script.allocate = Does::Leaves);
    let output = kubelet.allocate(GPU, &["a"]).await.unwrap_err();
    let message = "rejected: Cancelling all calls (Unavailable)";
    assert!(output.message().contains(message), "{output:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allocation_waits_briefly_for_a_restarting_plugin_and_then_fails() {
    let script = Script {
        allocate: Does::Answers(answer("/dev/acme0", "/opt/acme")),
        ..Script::default()
    };
    let (stage, kubelet, agent, plugin) = played("", script.clone()).await;
    drop(plugin);
    let asked = kubelet.allocate(GPU, &["a"]);
    let restarted = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let directory = stage.directory("acme");
        Plugin::start_with(&directory, GPU, "a.sock", &["a", "b"], None, script).await
    };
    let (answer, plugin) = tokio::join!(asked, restarted);
    assert_eq!(answer.unwrap().devices[0].host_path, "/dev/acme0");
    drop(plugin);
    let away = kubelet.allocate(GPU, &["a"]).await.unwrap_err();
    assert_eq!(
        away.message(),
        "plugin acme is unreachable: no plugin is registered for acme.dev/gpu"
    );
    agent.stop().await;
}
