//! Reads objects over one connection to the API server.
//!
//! A test that waits polls several times a second, and each kubectl takes a fifth of a second of a processor.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use kube::{
    Client, Config, Error,
    config::{KubeConfigOptions, Kubeconfig},
};
use nix::sched::{CloneFlags, setns};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::NETWORK;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

type Query = (String, mpsc::Sender<Option<Value>>);

/// A thread in the lab's network that sends requests.
#[derive(Debug)]
pub struct ApiReader(Mutex<mpsc::Sender<Query>>);

impl ApiReader {
    /// Starts the thread; it connects with the first request and ends with the reader.
    pub fn start(kubeconfig: PathBuf) -> Self {
        let (sender, queries) = mpsc::channel::<Query>();
        thread::spawn(move || {
            setns(File::open(NETWORK).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let client = runtime.block_on(connect(&kubeconfig));
            for (path, answer) in queries {
                let _ = answer.send(get(&runtime, &client, &path));
            }
        });
        Self(Mutex::new(sender))
    }

    /// Returns the object at a path of the API; `None` if it does not exist or the server does not answer.
    pub fn get(&self, path: &str) -> Option<Value> {
        let (answer, answers) = mpsc::channel();
        let queries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queries.send((path.to_owned(), answer)).unwrap();
        answers.recv().unwrap()
    }
}

async fn connect(kubeconfig: &Path) -> Client {
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(file, &options)
        .await
        .unwrap();
    // The variables of the host's environment do not concern the lab's network.
    config.proxy_url = None;
    config.read_timeout = Some(REQUEST_TIMEOUT);
    Client::try_from(config).unwrap()
}

fn get(runtime: &Runtime, client: &Client, path: &str) -> Option<Value> {
    let request = || {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        runtime.block_on(async {
            let answer = client.request::<Value>(request);
            tokio::time::timeout(REQUEST_TIMEOUT, answer).await
        })
    };
    let mut answer = request();
    // The server may have been restarted since the last request.
    if !matches!(answer, Ok(Ok(_) | Err(Error::Api(_)))) {
        answer = request();
    }
    let mut object = answer.ok()?.ok()?;
    // kubectl does not show it either.
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    Some(object)
}
