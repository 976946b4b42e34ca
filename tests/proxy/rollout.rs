//! Two plugins for one resource, as during a rolling update of a plugin.

use std::time::Duration;

use super::{
    GPU,
    harness::{Stage, has},
    plugin::{Does, Plugin, Script, device},
};
use machinist_testkit::fake_kubelet::FakeKubelet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_plugin_takes_over_and_the_first_can_end() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let first = Plugin::start(&directory, GPU, "1.sock", &["a", "b"], None).await;
    kubelet
        .until("the first", |books| {
            has(books, GPU, &["a=Healthy", "b=Healthy"])
        })
        .await;
    // Longer than the debounce after a list.
    let late = Duration::from_millis(200);
    let script = Script {
        list_late: late,
        ..Script::default()
    };
    let second = Plugin::start_with(&directory, GPU, "2.sock", &["a", "c"], None, script).await;
    kubelet
        .until("the second", |books| {
            has(books, GPU, &["a=Healthy", "c=Healthy"])
        })
        .await;
    // Later lists of the first plugin are ignored.
    first.list(vec![device("a", false)]);
    drop(first);
    tokio::time::sleep(late).await;
    second.list(vec![device("a", true), device("d", true)]);
    let books = kubelet
        .until("only the second", |books| {
            has(books, GPU, &["a=Healthy", "d=Healthy"])
        })
        .await;
    assert_eq!(books[GPU].lists.len(), 3, "{:?}", books[GPU].lists);
    assert_eq!(books[GPU].registrations, 1);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_plugin_that_ends_leaves_the_first_active() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let first = Plugin::start(&directory, GPU, "1.sock", &["a"], None).await;
    kubelet
        .until("the first", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    let second = Plugin::start(&directory, GPU, "2.sock", &["b"], None).await;
    kubelet
        .until("the second", |books| has(books, GPU, &["b=Healthy"]))
        .await;
    drop(second);
    kubelet
        .until("the first again", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    kubelet.allocate(GPU, &["a"]).await.unwrap_err();
    assert_eq!(first.seen().allocated, [["a"]], "it is asked again");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_with_failing_options_is_rejected_and_the_next_takes_over() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let first = Plugin::start(&directory, GPU, "1.sock", &["a"], None).await;
    kubelet
        .until("the first", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    let broken = Script {
        asked_options: Does::Fails("not yet".into()),
        ..Script::default()
    };
    let second = Plugin::start_with(&directory, GPU, "2.sock", &["b"], None, broken).await;
    let seen = second.seen();
    assert_eq!(
        seen.refused,
        ["failed to get device plugin options: not yet"]
    );
    assert_eq!((seen.registered, seen.listed), (0, 0));
    assert_eq!(first.seen().listed, 1);
    let _third = Plugin::start(&directory, GPU, "3.sock", &["c"], None).await;
    let books = kubelet
        .until("the third", |books| has(books, GPU, &["c=Healthy"]))
        .await;
    assert_eq!(books[GPU].lists, [["a=Healthy"], ["c=Healthy"]]);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_registers_twice_under_one_name_has_one_stream() {
    let stage = Stage::new("");
    let kubelet = FakeKubelet::start(stage.machine.root()).await;
    let agent = stage.ready().await;
    let directory = stage.directory("acme");
    let plugin = Plugin::start(&directory, GPU, "1.sock", &["a"], None).await;
    kubelet
        .until("listed", |books| has(books, GPU, &["a=Healthy"]))
        .await;
    for round in 2..=5 {
        let request = super::api::RegisterRequest {
            version: "v1beta1".into(),
            endpoint: "1.sock".into(),
            resource_name: GPU.into(),
            options: None,
        };
        super::plugin::register(&directory, request).await.unwrap();
        plugin.until("asked", |seen| seen.listed == round).await;
    }
    super::harness::until("one stream", || plugin.streams() == 1).await;
    plugin.list(vec![device("b", true)]);
    let books = kubelet
        .until("one list", |books| has(books, GPU, &["b=Healthy"]))
        .await;
    assert_eq!(books[GPU].lists, [["a=Healthy"], ["b=Healthy"]]);
    agent.stop().await;
}
