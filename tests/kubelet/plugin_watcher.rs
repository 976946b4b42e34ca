//! Facts about every kubelet's plugin watcher that concern device plugins.

use machinist_device_plugins::kubelet::api::registration::PluginInfo;

use super::{
    super::plugin::{Asked, Plugin, REGISTRY, Script},
    Kubelet, settle, until, until_counted,
};

fn info(resource: &str) -> PluginInfo {
    PluginInfo {
        r#type: "DevicePlugin".to_owned(),
        name: resource.to_owned(),
        endpoint: String::new(),
        supported_versions: vec!["v9".to_owned(), "v1beta1".to_owned()],
    }
}

/// A plugin with two devices that waits to be found by the watcher.
fn shown(kubelet: &impl Kubelet, resource: &str, socket: &str) -> Plugin {
    std::fs::create_dir_all(kubelet.root().join(REGISTRY)).unwrap();
    let plugin = Plugin::show(kubelet.root(), socket, Script::default(), info(resource));
    plugin.list(&[("a", "Healthy"), ("b", "Healthy")]);
    plugin
}

pub(crate) async fn a_watched_socket_is_registered_until_it_is_removed(kubelet: &mut impl Kubelet) {
    const X: &str = "acme.dev/found";
    // Names that begin with a dot are ignored.
    let hidden = shown(kubelet, "acme.dev/hidden", ".hidden.sock");
    let plugin = shown(kubelet, X, "found.sock");
    until_counted(kubelet, X, (2, 2)).await;
    until("the registration to be confirmed", async || {
        plugin.registration_results() == [Ok(())]
    })
    .await;
    let asked = plugin.asked();
    assert_eq!((asked.options, asked.opened, asked.open), (1, 1, 1));
    kubelet.admit(X, 1).await.unwrap();
    std::fs::remove_file(kubelet.root().join(REGISTRY).join("found.sock")).unwrap();
    until_counted(kubelet, X, (2, 0)).await;
    until("the stream to end", async || plugin.asked().open == 0).await;
    assert_eq!(hidden.asked(), Asked::default());
}

pub(crate) async fn the_plugin_watcher_reports_why_it_rejects_a_plugin(kubelet: &mut impl Kubelet) {
    let other = |supported: &str, name: &str| PluginInfo {
        supported_versions: vec![supported.to_owned()],
        ..info(name)
    };
    for (socket, info, why) in [
        (
            "version.sock",
            other("v9", "acme.dev/version"),
            "manager version, v1beta1, is not among plugin supported versions",
        ),
        (
            "name.sock",
            other("v1beta1", "kubernetes.io/x"),
            "the ResourceName \"kubernetes.io/x\" is invalid",
        ),
    ] {
        std::fs::create_dir_all(kubelet.root().join(REGISTRY)).unwrap();
        let plugin = Plugin::show(kubelet.root(), socket, Script::default(), info);
        until("a word", async || !plugin.registration_results().is_empty()).await;
        let message = plugin.registration_results().remove(0).unwrap_err();
        assert!(message.starts_with("RegisterPlugin error -- "), "{message}");
        assert!(message.contains(why), "{message}");
        assert_eq!(plugin.asked(), Asked::default());
        std::fs::remove_file(kubelet.root().join(REGISTRY).join(socket)).unwrap();
    }
    let script = Script {
        broken_options: Some("no idea"),
        ..Script::default()
    };
    let plugin = Plugin::show(
        kubelet.root(),
        "options.sock",
        script,
        info("acme.dev/options"),
    );
    if kubelet.retries_registration() {
        until("a second confirmation", async || {
            plugin.registration_results().len() > 1
        })
        .await;
    } else {
        until("a word", async || !plugin.registration_results().is_empty()).await;
        settle(kubelet, "options").await;
        assert_eq!(plugin.registration_results().len(), 1);
    }
    let message = plugin.registration_results().remove(0).unwrap_err();
    let why = "failed to get device plugin options: rpc error: code = Internal desc = no idea";
    assert!(message.contains(why), "{message}");
    std::fs::remove_file(kubelet.root().join(REGISTRY).join("options.sock")).unwrap();
}

pub(crate) async fn a_watched_plugin_is_registered_once_by_each_kubelet(
    kubelet: &mut impl Kubelet,
) {
    const X: &str = "acme.dev/lasting";
    let plugin = shown(kubelet, X, "lasting.sock");
    until_counted(kubelet, X, (2, 2)).await;
    kubelet.stop().await;
    until("the stream to end", async || plugin.asked().open == 0).await;
    kubelet.start().await;
    until("the next kubelet", async || plugin.asked().opened == 2).await;
    until_counted(kubelet, X, (2, 2)).await;
    plugin.end();
    until_counted(kubelet, X, (2, 0)).await;
    settle(kubelet, "lasting").await;
    assert_eq!(plugin.asked().opened, 2);
    // A new file of the same name is another plugin.
    drop(plugin);
    let _plugin = shown(kubelet, X, "lasting.sock");
    until_counted(kubelet, X, (2, 2)).await;
    std::fs::remove_file(kubelet.root().join(REGISTRY).join("lasting.sock")).unwrap();
}
