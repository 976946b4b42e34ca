//! The plugin watcher: it dials sockets in its directory, requests their information, and reports
//! the result of the registration.

use std::{
    collections::BTreeMap,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use machinist_device_plugins::kubelet::api::registration::{
    InfoRequest, RegistrationStatus, registration_client::RegistrationClient,
};
use tonic::transport::Endpoint;

use super::registration::{Service, check_versions, is_extended};

/// The poll interval; the real one is ten times longer.
const LOOK: Duration = Duration::from_millis(100);
const GET_INFO: Duration = Duration::from_secs(1);
const NOTIFY: Duration = Duration::from_secs(5);
/// The first delay after a failure; doubled each time.
const AGAIN: Duration = Duration::from_millis(500);

/// Another file of the same name is another plugin.
type Identity = (u64, i64, i64);

/// One socket that was found.
struct Found {
    identity: Identity,
    /// The resource, once it is registered.
    registered: Option<String>,
    next_try: Instant,
    pause: Duration,
}

pub(super) async fn watch(service: Service) {
    let directory = service.directory.with_file_name("plugins_registry");
    std::fs::create_dir_all(&directory).unwrap();
    let mut found: BTreeMap<PathBuf, Found> = BTreeMap::new();
    loop {
        let there = scan_sockets(&directory);
        // Removed and replaced sockets are handled first.
        found.retain(|path, one| {
            let stays = there.get(path) == Some(&one.identity);
            if let (false, Some(resource)) = (stays, &one.registered) {
                service.disconnect(resource);
            }
            stays
        });
        for (path, identity) in there {
            let one = found.entry(path.clone()).or_insert(Found {
                identity,
                registered: None,
                next_try: Instant::now(),
                pause: AGAIN,
            });
            if one.registered.is_some() || one.next_try > Instant::now() {
                continue;
            }
            one.registered = register(&service, &path).await.ok();
            one.next_try = Instant::now() + one.pause;
            one.pause *= 2;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn scan_sockets(directory: &Path) -> BTreeMap<PathBuf, Identity> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let visible = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let sockets = visible.filter_map(|entry| {
        let stat = entry.metadata().ok()?;
        let identity = (stat.ino(), stat.ctime(), stat.ctime_nsec());
        stat.file_type()
            .is_socket()
            .then(|| (entry.path(), identity))
    });
    sockets.collect()
}

/// Returns the name of the resource that has been registered.
async fn register(service: &Service, path: &Path) -> Result<String, String> {
    let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
    let channel = endpoint
        .connect()
        .await
        .map_err(|error| error.to_string())?;
    let mut client = RegistrationClient::new(channel);
    let asking = tokio::time::timeout(GET_INFO, client.get_info(InfoRequest {})).await;
    let answer = asking.map_err(|_| "no response".to_owned())?;
    let info = answer.map_err(|status| status.to_string())?.into_inner();
    let name = info.name;
    let versions: Vec<_> = info.supported_versions.iter().map(String::as_str).collect();
    let valid = check_versions(&versions, || {
        format!("manager version, v1beta1, is not among plugin supported versions {versions:?}")
    });
    let valid = valid.and_then(|()| {
        is_extended(&name).map_err(|why| format!("invalid name of device plugin socket: {why}"))
    });
    let became = match (info.r#type == "DevicePlugin", valid) {
        (false, _) => Err(format!(
            "no handler registered for plugin type: {}",
            info.r#type
        )),
        (true, Err(why)) => Err(format!("plugin validation failed with err: {why}")),
        (true, Ok(())) => {
            // The paths that plugins report are paths of the machine.
            let root = service.directory.ancestors().nth(4).unwrap();
            let socket = match info.endpoint.strip_prefix('/') {
                Some(below) => root.join(below),
                None => path.to_owned(),
            };
            let connected = service.connect(&name, (&info.endpoint, &socket)).await;
            connected.map_err(|why| format!("plugin registration failed with err: {why}"))
        }
    };
    let status = RegistrationStatus {
        plugin_registered: became.is_ok(),
        error: match &became {
            Ok(()) => String::new(),
            Err(why) => format!("RegisterPlugin error -- {why}"),
        },
    };
    let telling = client.notify_registration_status(status);
    let told = tokio::time::timeout(NOTIFY, telling).await;
    if became.is_ok() && !told.is_ok_and(|told| told.is_ok()) {
        service.disconnect(&name);
        return Err("it is not listening".to_owned());
    }
    became.map(|()| name)
}
