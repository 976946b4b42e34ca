//! A fake of the kubelet's DRA manager and of the cluster's claims; both are written from the
//! Kubernetes contracts and not from our code.
//!
//! The plugin watcher dials each socket of its directory that it has not dialled before, reads its
//! information, connects to the endpoint, and reports the result of the registration.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use machinist_device::dra::{
    claim::ResourceClaim,
    traits::{CallFuture, ClaimReader, DraCallError},
};
use machinist_device_plugins::{
    dra::api::v1,
    kubelet::api::registration::{
        InfoRequest, PluginInfo, RegistrationStatus, registration_client::RegistrationClient,
    },
};
use serde_json::json;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};

use crate::WAIT_TIMEOUT;

/// Polls until `ask` returns a value.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(WAIT_TIMEOUT, waiting).await {
        Ok(found) => found,
        Err(_) => panic!("{what}: not within {WAIT_TIMEOUT:?}"),
    }
}

/// The part of a kubelet that handles claims.
#[derive(Clone)]
pub struct Watcher {
    root: PathBuf,
}

impl Watcher {
    /// Starts like the real one: it creates its directory.
    pub fn start(root: &Path) -> Self {
        std::fs::create_dir_all(root.join("var/lib/kubelet/plugins_registry")).unwrap();
        Self {
            root: root.to_owned(),
        }
    }

    /// Sockets that a plugin watcher would dial.
    pub fn found(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.root.join("var/lib/kubelet/plugins_registry"));
        let entries = entries.unwrap().map(|entry| entry.unwrap().path());
        entries
            .filter(|path| path.extension().is_some_and(|end| end == "sock"))
            .collect()
    }

    /// Reads the information of the only driver, and accepts it, or refuses with this error.
    pub async fn register(&self, refuse: Option<&str>) -> PluginInfo {
        let path = until("a registrar", async || self.found().pop()).await;
        let channel = connect(&path).await;
        let mut client = RegistrationClient::new(channel);
        let info = client.get_info(InfoRequest {}).await.unwrap().into_inner();
        let status = RegistrationStatus {
            plugin_registered: refuse.is_none(),
            error: refuse.unwrap_or_default().to_owned(),
        };
        client.notify_registration_status(status).await.unwrap();
        info
    }

    /// A connection to the registered driver.
    pub async fn driver(&self) -> Channel {
        let info = self.register(None).await;
        let below = info.endpoint.strip_prefix('/').unwrap();
        connect(&self.root.join(below)).await
    }
}

async fn connect(path: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    // Between `bind` and `listen` a socket refuses connections.
    until("a listener", async || endpoint.connect().await.ok()).await
}

/// The kubelet's reference to a claim.
pub fn claim(name: &str) -> v1::Claim {
    v1::Claim {
        namespace: "lab".to_owned(),
        uid: format!("{name}-uid"),
        name: name.to_owned(),
    }
}

/// The cluster's claims, and how often they were requested.
#[derive(Debug, Default)]
pub struct FakeClaims(Mutex<Inside>);

#[derive(Debug, Default)]
struct Inside {
    claims: BTreeMap<String, String>,
    asked: usize,
    /// This many requests fail first.
    fails: usize,
    /// Requests for this claim are not answered until the sender is dropped.
    hangs: Option<(String, watch::Receiver<()>)>,
}

impl FakeClaims {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inside) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }

    /// Allocates these devices to a claim, as the scheduler does: pairs of request and device.
    pub fn allocate(&self, name: &str, devices: &[(&str, &str)]) {
        let results = devices.iter().map(|(request, device)| {
            json!({"request": request, "driver": "dra.machinist.dev", "pool": "node-1", "device": device})
        });
        let object = json!({
            "metadata": {"uid": format!("{name}-uid"), "name": name},
            "status": {"allocation": {"devices": {"results": results.collect::<Vec<_>>()}}},
        });
        self.with(|it| it.claims.insert(name.to_owned(), object.to_string()));
    }

    /// Stores this object, valid or not.
    pub fn put(&self, name: &str, object: &str) {
        self.with(|it| it.claims.insert(name.to_owned(), object.to_owned()));
    }

    pub fn delete(&self, name: &str) {
        self.with(|it| it.claims.remove(name));
    }

    pub fn fail(&self, times: usize) {
        self.with(|it| it.fails = times);
    }

    /// Requests for this claim hang until the returned sender is dropped.
    pub fn hang(&self, name: &str) -> watch::Sender<()> {
        let (end, on) = watch::channel(());
        self.with(|it| it.hangs = Some((name.to_owned(), on)));
        end
    }

    pub fn asked(&self) -> usize {
        self.with(|it| it.asked)
    }
}

impl ClaimReader for FakeClaims {
    fn get<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> CallFuture<'a, Option<ResourceClaim>> {
        assert_eq!(namespace, "lab");
        let (found, hangs) = self.with(|it| {
            it.asked += 1;
            let hangs = it.hangs.clone().filter(|(slow, _)| slow == name);
            if it.fails > 0 {
                it.fails -= 1;
                let away = DraCallError::Unreachable("API server unreachable".to_owned());
                return (Err(away), hangs);
            }
            (Ok(it.claims.get(name).cloned()), hangs)
        });
        Box::pin(async move {
            if let Some((_, mut on)) = hangs {
                while on.changed().await.is_ok() {}
            }
            Ok(found?.as_deref().map(ResourceClaim::read).transpose()?)
        })
    }
}
