//! Facts that are true of every kubelet; each test run checks them on the double, and the lab on
//! the real one. Each fact has resources of its own, so that one kubelet can be used for all.

use std::{
    os::unix::{fs::FileTypeExt as _, net::UnixListener},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use machinist_device_plugins::kubelet::api::v1beta1 as api;
use machinist_testkit::WAIT_TIMEOUT;
use prost::Message as _;
use tonic::Code;

use super::plugin::{Asked, DIRECTORY, Plugin, Script, register, request, short};

#[path = "checkpoint.rs"]
mod checkpoint;
use checkpoint::{until_written, written};

#[path = "plugin_watcher.rs"]
mod plugin_watcher;
pub(crate) use plugin_watcher::*;

/// The kubelet's limit for one message.
const LIMIT: usize = 4 << 20;

/// A kubelet, fake or real.
pub(crate) trait Kubelet {
    /// The root of its paths, as this process sees it.
    fn root(&self) -> &Path;
    /// Whether its plugin watcher retries a plugin that could not be registered: 1.33's does not.
    fn retries_registration(&self) -> bool {
        true
    }
    /// Whether its start keeps files that are no sockets: 1.26's removes every file but its
    /// checkpoint.
    fn spares_files(&self) -> bool {
        true
    }
    /// How long it dials a plugin's socket; the fake's time is shorter.
    fn dial_timeout(&self) -> Duration {
        Duration::from_secs(10)
    }
    async fn stop(&mut self);
    async fn start(&mut self);
    /// Capacity and allocatable count on its Node.
    async fn counts(&self, resource: &str) -> Option<(usize, usize)>;
    /// Creates a pod that requests this many devices; an error is the reason with which the pod
    /// fails.
    async fn admit(&self, resource: &str, count: usize) -> Result<(), String>;
}

/// Passes every fact to another macro.
macro_rules! facts {
    ($ask:ident) => {
        $ask! {
            a_kubelet_start_removes_only_sockets
            registrations_with_bad_version_or_name_are_rejected_without_dialling
            a_late_plugin_is_waited_for_and_an_absent_one_rejected
            plugin_options_are_queried_and_those_of_the_request_ignored
            a_plugin_with_failing_options_is_rejected_without_listing
            each_device_list_replaces_the_last_and_only_healthy_devices_count
            an_ended_list_stream_is_not_opened_again
            a_failed_list_stream_counts_no_devices_and_is_not_opened_again
            the_end_of_the_first_plugin_ends_the_seconds_stream
            after_the_second_plugins_end_the_first_is_listed_but_not_allocated
            after_a_failed_second_plugin_the_end_of_the_first_is_not_detected
            a_plugin_registered_twice_has_two_list_streams
            a_list_of_4_mib_is_accepted_and_one_byte_more_ends_the_stream
            an_allocate_response_above_4_mib_is_rejected
            a_restarted_kubelet_remembers_resources_without_devices
            a_watched_socket_is_registered_until_it_is_removed
            the_plugin_watcher_reports_why_it_rejects_a_plugin
            a_watched_plugin_is_registered_once_by_each_kubelet
        }
    };
}
pub(crate) use facts;

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(
            start.elapsed() < WAIT_TIMEOUT,
            "timed out waiting for {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn until_counted(kubelet: &impl Kubelet, resource: &str, wanted: (usize, usize)) {
    let mut last = None;
    let what = format!("{resource} to count {wanted:?}");
    let start = Instant::now();
    while last != Some(wanted) {
        assert!(start.elapsed() < WAIT_TIMEOUT, "{what}; it counts {last:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        last = kubelet.counts(resource).await;
    }
}

/// A registered plugin that has sent its list.
async fn offering(
    kubelet: &impl Kubelet,
    (resource, socket): (&str, &str),
    devices: &[(&str, &str)],
) -> Plugin {
    let plugin = Plugin::serve(kubelet.root(), socket, Script::default());
    plugin.list(devices);
    register(kubelet.root(), request(resource, socket))
        .await
        .unwrap();
    plugin
}

/// Waits until everything before is visible: a resource that is registered now appears after it.
async fn settle(kubelet: &impl Kubelet, name: &str) {
    let resource = format!("acme.dev/after-{name}");
    let socket = format!("after-{name}.sock");
    let healthy = [("a", "Healthy")];
    let _plugin = offering(kubelet, (&resource, &socket), &healthy).await;
    until_counted(kubelet, &resource, (1, 1)).await;
}

fn directory(kubelet: &impl Kubelet) -> PathBuf {
    kubelet.root().join(DIRECTORY)
}

pub(crate) async fn a_kubelet_start_removes_only_sockets(kubelet: &mut impl Kubelet) {
    kubelet.stop().await;
    let dir = directory(kubelet);
    // Its own socket file stays: nothing indicates that it is dead.
    assert!(std::fs::symlink_metadata(dir.join("kubelet.sock")).is_ok());
    std::fs::create_dir_all(dir.join("below")).unwrap();
    std::fs::write(dir.join("kept"), "kept").unwrap();
    let _served = Plugin::serve(kubelet.root(), "served.sock", Script::default());
    for name in ["dead.sock", "no-ending", "below/dead.sock"] {
        let path = dir.join(name);
        let _ = std::fs::remove_file(&path);
        drop(UnixListener::bind(short(&path)).unwrap());
    }
    kubelet.start().await;
    let is_socket = |name: &str| {
        let found = std::fs::symlink_metadata(dir.join(name));
        found.is_ok_and(|found| found.file_type().is_socket())
    };
    for gone in ["served.sock", "dead.sock", "no-ending"] {
        assert!(!is_socket(gone), "{gone} is still there");
    }
    assert!(is_socket("below/dead.sock") && is_socket("kubelet.sock"));
    if kubelet.spares_files() {
        assert_eq!(std::fs::read(dir.join("kept")).unwrap(), b"kept");
    }
    settle(kubelet, "start").await;
    // Old plugins look for this file; kubelets do not create it.
    assert!(!dir.join("DEPRECATION").exists());
}

pub(crate) async fn registrations_with_bad_version_or_name_are_rejected_without_dialling(
    kubelet: &mut impl Kubelet,
) {
    let plugin = Plugin::serve(kubelet.root(), "bad.sock", Script::default());
    let older = api::RegisterRequest {
        version: "v1alpha".to_owned(),
        ..request("acme.dev/older", "bad.sock")
    };
    let refused = register(kubelet.root(), older).await.unwrap_err();
    let report = "requested API version \"v1alpha\" is not supported by kubelet. Supported version is [\"v1beta1\"]";
    assert_eq!((refused.code(), refused.message()), (Code::Unknown, report));
    let long = format!("acme.dev/{}", "x".repeat(64));
    // 253 letters fit, including the prefix that quotas add.
    let deep = format!("{}dev/x", "a.".repeat(121));
    for name in [
        "acme",
        "kubernetes.io/x",
        "acme.kubernetes.io/x",
        "requests.acme.dev/x",
        "acme.dev/-x",
        "Acme.dev/x",
        "acme.dev/a/b",
        &long,
        &deep,
    ] {
        let refused = register(kubelet.root(), request(name, "bad.sock")).await;
        let refused = refused.expect_err(name);
        let report = format!("the ResourceName {name:?} is invalid");
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::Unknown, report.as_str())
        );
    }
    assert_eq!(plugin.asked(), Asked::default());
}

pub(crate) async fn a_late_plugin_is_waited_for_and_an_absent_one_rejected(
    kubelet: &mut impl Kubelet,
) {
    let start = Instant::now();
    let late = async {
        // Well below the limit, and long enough for a failed dial.
        tokio::time::sleep(kubelet.dial_timeout() / 5).await;
        // A socket in a subdirectory is accepted.
        std::fs::create_dir_all(directory(kubelet).join("late")).unwrap();
        Plugin::serve(kubelet.root(), "late/p.sock", Script::default())
    };
    let never = register(kubelet.root(), request("acme.dev/never", "never.sock"));
    let (waited, _plugin, refused) = tokio::join!(
        register(kubelet.root(), request("acme.dev/late", "late/p.sock")),
        late,
        never,
    );
    waited.unwrap();
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::Unknown);
    let report = refused.message();
    assert!(
        report.starts_with("failed to dial device plugin: "),
        "{report}"
    );
    let after = start.elapsed();
    assert!(
        after > kubelet.dial_timeout() * 9 / 10,
        "refused after {after:?}"
    );
}

pub(crate) async fn plugin_options_are_queried_and_those_of_the_request_ignored(
    kubelet: &mut impl Kubelet,
) {
    for (resource, socket, report, asked) in [
        ("acme.dev/asks", "asks.sock", true, false),
        ("acme.dev/says", "says.sock", false, true),
    ] {
        let script = Script {
            preferred: report,
            ..Script::default()
        };
        let plugin = Plugin::serve(kubelet.root(), socket, script);
        plugin.list(&[("a", "Healthy"), ("b", "Healthy")]);
        let options = api::DevicePluginOptions {
            pre_start_required: asked,
            get_preferred_allocation_available: asked,
        };
        let request = api::RegisterRequest {
            options: Some(options),
            ..request(resource, socket)
        };
        register(kubelet.root(), request).await.unwrap();
        assert_eq!(plugin.asked().options, 1);
        until("the list to be asked for", async || {
            plugin.asked().opened == 1
        })
        .await;
        until_counted(kubelet, resource, (2, 2)).await;
        kubelet.admit(resource, 1).await.unwrap();
        let asked = plugin.asked();
        assert_eq!((asked.preferred, asked.allocated), (usize::from(report), 1));
    }
}

pub(crate) async fn a_plugin_with_failing_options_is_rejected_without_listing(
    kubelet: &mut impl Kubelet,
) {
    let script = Script {
        broken_options: Some("no idea"),
        ..Script::default()
    };
    let plugin = Plugin::serve(kubelet.root(), "broken.sock", script);
    let request = request("acme.dev/broken", "broken.sock");
    let refused = register(kubelet.root(), request).await.unwrap_err();
    let report = "failed to get device plugin options: rpc error: code = Internal desc = no idea";
    assert_eq!((refused.code(), refused.message()), (Code::Unknown, report));
    settle(kubelet, "broken").await;
    let once = Asked {
        options: 1,
        ..Asked::default()
    };
    assert_eq!(plugin.asked(), once);
    assert_eq!(kubelet.counts("acme.dev/broken").await, None);
    assert_eq!(written(kubelet, "acme.dev/broken"), None);
}

pub(crate) async fn each_device_list_replaces_the_last_and_only_healthy_devices_count(
    kubelet: &mut impl Kubelet,
) {
    const X: &str = "acme.dev/lists";
    let (a, b) = (("a", "Healthy"), ("b", "Healthy"));
    let plugin = offering(kubelet, (X, "lists.sock"), &[a, b]).await;
    until_counted(kubelet, X, (2, 2)).await;
    until_written(kubelet, X, &["a", "b"]).await;
    plugin.list(&[a, ("b", "Unhealthy")]);
    until_counted(kubelet, X, (2, 1)).await;
    plugin.list(&[b]);
    until_counted(kubelet, X, (1, 1)).await;
    until_written(kubelet, X, &["b"]).await;
    // Only this exact word means healthy.
    plugin.list(&[a, ("b", "healthy"), ("c", "")]);
    until_counted(kubelet, X, (3, 1)).await;
    plugin.list(&[]);
    until_counted(kubelet, X, (0, 0)).await;
    assert_eq!(plugin.asked().opened, 1);
}

pub(crate) async fn an_ended_list_stream_is_not_opened_again(kubelet: &mut impl Kubelet) {
    const X: &str = "acme.dev/ends";
    let plugin = offering(kubelet, (X, "ends.sock"), &[("a", "Healthy")]).await;
    until_counted(kubelet, X, (1, 1)).await;
    plugin.end();
    until_counted(kubelet, X, (1, 0)).await;
    settle(kubelet, "ends").await;
    assert_eq!((plugin.asked().opened, plugin.asked().open), (1, 0));
    // The checkpoint has the latest list.
    until_written(kubelet, X, &[]).await;
    register(kubelet.root(), request(X, "ends.sock"))
        .await
        .unwrap();
    until_counted(kubelet, X, (1, 1)).await;
    assert_eq!(plugin.asked().opened, 2);
    // When a plugin is killed, its stream ends.
    drop(plugin);
    until_counted(kubelet, X, (1, 0)).await;
}

pub(crate) async fn a_failed_list_stream_counts_no_devices_and_is_not_opened_again(
    kubelet: &mut impl Kubelet,
) {
    const X: &str = "acme.dev/listless";
    let script = Script {
        broken_list: Some("no idea"),
        ..Script::default()
    };
    let plugin = Plugin::serve(kubelet.root(), "listless.sock", script);
    let request = request(X, "listless.sock");
    register(kubelet.root(), request).await.unwrap();
    until_counted(kubelet, X, (0, 0)).await;
    settle(kubelet, "listless").await;
    // Nor after a pause.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(plugin.asked().opened, 1);
}

pub(crate) async fn the_end_of_the_first_plugin_ends_the_seconds_stream(
    kubelet: &mut impl Kubelet,
) {
    const X: &str = "acme.dev/first";
    let first = offering(kubelet, (X, "first-1.sock"), &[("a", "Healthy")]).await;
    until_counted(kubelet, X, (1, 1)).await;
    let two = [("b", "Healthy"), ("c", "Healthy")];
    let second = offering(kubelet, (X, "first-2.sock"), &two).await;
    until_counted(kubelet, X, (2, 2)).await;
    assert_eq!((first.asked().open, second.asked().open), (1, 1));
    // Both streams are read; the latest list counts.
    first.list(&[("a", "Healthy")]);
    until_counted(kubelet, X, (1, 1)).await;
    second.list(&two);
    until_counted(kubelet, X, (2, 2)).await;
    first.end();
    until_counted(kubelet, X, (2, 0)).await;
    until("the second stream to end", async || {
        second.asked().open == 0
    })
    .await;
    register(kubelet.root(), request(X, "first-2.sock"))
        .await
        .unwrap();
    until_counted(kubelet, X, (2, 2)).await;
}

pub(crate) async fn after_the_second_plugins_end_the_first_is_listed_but_not_allocated(
    kubelet: &mut impl Kubelet,
) {
    const X: &str = "acme.dev/second";
    let first = offering(kubelet, (X, "second-1.sock"), &[("a", "Healthy")]).await;
    until_counted(kubelet, X, (1, 1)).await;
    let two = [("b", "Healthy"), ("c", "Healthy")];
    let second = offering(kubelet, (X, "second-2.sock"), &two).await;
    until_counted(kubelet, X, (2, 2)).await;
    second.end();
    until_counted(kubelet, X, (2, 0)).await;
    first.list(&[("a", "Healthy")]);
    until_counted(kubelet, X, (1, 1)).await;
    assert_eq!(first.asked().open, 1);
    let refused = kubelet.admit(X, 1).await.unwrap_err();
    assert!(refused.contains("has been stopped"), "{refused}");
    assert_eq!(first.asked().allocated, 0);
}

pub(crate) async fn after_a_failed_second_plugin_the_end_of_the_first_is_not_detected(
    kubelet: &mut impl Kubelet,
) {
    const X: &str = "acme.dev/failed";
    let first = offering(kubelet, (X, "failed-1.sock"), &[("a", "Healthy")]).await;
    until_counted(kubelet, X, (1, 1)).await;
    let script = Script {
        broken_options: Some("no idea"),
        ..Script::default()
    };
    let _second = Plugin::serve(kubelet.root(), "failed-2.sock", script);
    let refused = register(kubelet.root(), request(X, "failed-2.sock")).await;
    assert!(refused.is_err());
    // The first plugin is the current one, and is called.
    kubelet.admit(X, 1).await.unwrap();
    assert_eq!((first.asked().open, first.asked().allocated), (1, 1));
    first.end();
    settle(kubelet, "failed").await;
    assert_eq!(kubelet.counts(X).await, Some((1, 1)));
}

pub(crate) async fn a_plugin_registered_twice_has_two_list_streams(kubelet: &mut impl Kubelet) {
    const X: &str = "acme.dev/twice";
    let plugin = offering(kubelet, (X, "twice.sock"), &[("a", "Healthy")]).await;
    until("the list to be asked for", async || {
        plugin.asked().opened == 1
    })
    .await;
    register(kubelet.root(), request(X, "twice.sock"))
        .await
        .unwrap();
    until("the second list to be asked for", async || {
        plugin.asked().opened == 2
    })
    .await;
    until_counted(kubelet, X, (1, 1)).await;
    settle(kubelet, "twice").await;
    assert_eq!(plugin.asked().open, 2);
}

pub(crate) async fn a_list_of_4_mib_is_accepted_and_one_byte_more_ends_the_stream(
    kubelet: &mut impl Kubelet,
) {
    const X: &str = "acme.dev/large";
    let of_size = |size: usize| {
        let device = |id: String| api::Device {
            id,
            health: "Healthy".to_owned(),
            topology: None,
        };
        let mut list = api::ListAndWatchResponse {
            devices: vec![device("x".repeat(size - 64))],
        };
        list.devices[0].id = "x".repeat(size - 64 + (size - list.encoded_len()));
        assert_eq!(list.encoded_len(), size);
        list.devices.remove(0).id
    };
    let plugin = offering(
        kubelet,
        (X, "large.sock"),
        &[("a", "Healthy"), ("b", "Healthy")],
    )
    .await;
    until_counted(kubelet, X, (2, 2)).await;
    plugin.list(&[(&of_size(LIMIT), "Healthy")]);
    until_counted(kubelet, X, (1, 1)).await;
    plugin.list(&[(&of_size(LIMIT + 1), "Healthy")]);
    until_counted(kubelet, X, (1, 0)).await;
    until("the stream to end", async || plugin.asked().open == 0).await;
    assert_eq!(plugin.asked().opened, 1);
}

pub(crate) async fn an_allocate_response_above_4_mib_is_rejected(kubelet: &mut impl Kubelet) {
    const X: &str = "acme.dev/answers";
    let script = Script {
        padding: LIMIT,
        ..Script::default()
    };
    let plugin = Plugin::serve(kubelet.root(), "answers.sock", script);
    plugin.list(&[("a", "Healthy")]);
    register(kubelet.root(), request(X, "answers.sock"))
        .await
        .unwrap();
    until_counted(kubelet, X, (1, 1)).await;
    let refused = kubelet.admit(X, 1).await.unwrap_err();
    let report =
        "rpc error: code = ResourceExhausted desc = grpc: received message larger than max";
    assert!(refused.contains(report), "{refused}");
    // The answer failed, not the plugin.
    assert_eq!((plugin.asked().allocated, plugin.asked().open), (1, 1));
    settle(kubelet, "answers").await;
    assert_eq!(kubelet.counts(X).await, Some((1, 1)));
}

pub(crate) async fn a_restarted_kubelet_remembers_resources_without_devices(
    kubelet: &mut impl Kubelet,
) {
    const X: &str = "acme.dev/restart";
    let two = [("a", "Healthy"), ("b", "Healthy")];
    let plugin = offering(kubelet, (X, "restart.sock"), &two).await;
    until_counted(kubelet, X, (2, 2)).await;
    until_written(kubelet, X, &["a", "b"]).await;
    kubelet.stop().await;
    until("the stream to end", async || plugin.asked().open == 0).await;
    assert_eq!(written(kubelet, X).unwrap(), ["a", "b"]);
    kubelet.start().await;
    until_counted(kubelet, X, (0, 0)).await;
    // A remembered resource is not dialled, though its plugin serves.
    settle(kubelet, "restart").await;
    assert_eq!(plugin.asked().opened, 1);
    drop(plugin);
    let _plugin = offering(kubelet, (X, "restart.sock"), &two).await;
    until_counted(kubelet, X, (2, 2)).await;
}
