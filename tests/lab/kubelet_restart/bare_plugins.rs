//! Device plugins without an agent: all in this process, waiting for a kubelet's socket to register
//! immediately.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use machinist_device_plugins::kubelet::api::v1beta1::registration_client::RegistrationClient;
use tokio::{runtime::Runtime, task::JoinHandle};
use tonic::transport::Channel;

use crate::kubelet::plugin::{DIRECTORY, Script, Service, dialled, request};

/// How often the socket is polled.
const LOOK: Duration = Duration::from_micros(200);

const PATIENCE: Duration = Duration::from_secs(60);

/// Plugins that register as soon as the kubelet's socket is replaced. They stop when this is
/// dropped.
pub(super) struct Plugins {
    process: Runtime,
    registering: JoinHandle<SystemTime>,
}

impl Plugins {
    /// Waits for the kubelet of the machine below `root` to be restarted.
    pub(super) fn waiting(root: &Path, count: usize, resource: fn(usize) -> String) -> Self {
        let process = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let root = root.to_owned();
        let before = made(&root);
        let registering = process.spawn(async move {
            let channel = another(&root, before).await;
            let plugins = (0..count).map(|number| {
                let (root, name) = (root.clone(), resource(number));
                tokio::spawn(register(root, channel.clone(), name, number))
            });
            for plugin in plugins.collect::<Vec<_>>() {
                plugin.await.unwrap();
            }
            SystemTime::now()
        });
        Self {
            process,
            registering,
        }
    }

    /// When all plugins were registered and the kubelet had called ListAndWatch on each; in seconds
    /// since 1970.
    pub(super) fn registered(&mut self) -> f64 {
        let registering = &mut self.registering;
        let patience = async { tokio::time::timeout(PATIENCE, registering).await };
        let last = self.process.block_on(patience).unwrap().unwrap();
        last.duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
    }
}

/// Serves, registers, and waits for the ListAndWatch call.
async fn register(root: PathBuf, kubelet: Channel, resource: String, number: usize) {
    let service = Service::new(Script::default());
    service.list(&[("one", "Healthy")]);
    let endpoint = format!("bare-{number}.sock");
    service.serve(&root.join(DIRECTORY).join(&endpoint), None);
    let mut client = RegistrationClient::new(kubelet);
    client
        .register(request(&resource, &endpoint))
        .await
        .unwrap();
    while service.asked().opened == 0 {
        tokio::time::sleep(LOOK).await;
    }
}

/// Connects to the kubelet's socket once it has been replaced.
async fn another(root: &Path, before: Option<(i64, i64)>) -> Channel {
    loop {
        if made(root) != before
            && let Ok(channel) = dialled(root).await
        {
            return channel;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// When the socket was created, or `None` while there is none.
fn made(root: &Path) -> Option<(i64, i64)> {
    let stat = std::fs::symlink_metadata(root.join(DIRECTORY).join("kubelet.sock")).ok()?;
    Some((stat.ctime(), stat.ctime_nsec()))
}
