//! An API server on a socket, for the real adapter and the real command.

use std::{
    collections::{BTreeMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    response::Response,
};
use machinist_cluster::{Cluster, ClusterAccess};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::{StreamExt as _, wrappers::UnboundedReceiverStream};

use crate::drain::support::{Made, merge};

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    /// `POST /api/v1/…`, without the query.
    pub(crate) what: String,
    pub(crate) query: String,
    pub(crate) body: Value,
}

#[derive(Default)]
struct Inside {
    pods: BTreeMap<String, Value>,
    objects: BTreeMap<String, Value>,
    heard: Vec<RecordedRequest>,
    /// The next responses to requests that begin with this text.
    answers: VecDeque<(String, u16, Value)>,
    watches: Vec<mpsc::UnboundedSender<Result<Bytes, std::io::Error>>>,
    version: u64,
}

#[derive(Clone)]
pub(crate) struct Api {
    inside: Arc<Mutex<Inside>>,
    dir: Arc<tempfile::TempDir>,
}

impl Api {
    /// With a Node `a` and these pods on it.
    pub(crate) async fn with(pods: impl IntoIterator<Item = Made>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let api = Self {
            inside: Arc::default(),
            dir: Arc::new(tempfile::tempdir().unwrap()),
        };
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": address}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "users": [{"name": "it", "user": {"token": "t"}}],
        });
        std::fs::write(api.kubeconfig(), config.to_string()).unwrap();
        api.put(
            "/api/v1/nodes/a",
            json!({"metadata": {"name": "a"}, "spec": {}}),
        );
        for pod in pods {
            let uid = pod.0["metadata"]["uid"].as_str().unwrap().to_owned();
            api.inside().pods.insert(uid, pod.0);
        }
        let app = axum::Router::new().fallback(answer).with_state(api.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        api
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap()
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    pub(crate) async fn cluster(&self) -> Cluster {
        let access = ClusterAccess::Kubeconfig(vec![self.kubeconfig()]);
        Cluster::connect(access).await.unwrap()
    }

    pub(crate) fn put(&self, path: &str, object: Value) {
        self.inside().objects.insert(path.to_owned(), object);
    }

    pub(crate) fn object(&self, path: &str) -> Value {
        self.inside().objects[path].clone()
    }

    /// Sets the next response to a request that begins with this text.
    pub(crate) fn answers(&self, what: &str, code: u16, body: Value) {
        let answer = (what.to_owned(), code, body);
        self.inside().answers.push_back(answer);
    }

    pub(crate) fn requests(&self, what: &str) -> Vec<RecordedRequest> {
        let all = self.inside().heard.clone();
        all.into_iter()
            .filter(|one| one.what.starts_with(what))
            .collect()
    }

    /// Requests that write.
    pub(crate) fn writes(&self) -> Vec<String> {
        let all = self.requests("").into_iter().map(|one| one.what);
        all.filter(|what| !what.starts_with("GET")).collect()
    }

    fn remove(&self, name: &str) {
        let mut inside = self.inside();
        inside.version += 1;
        let found = inside
            .pods
            .iter()
            .find(|(_, pod)| pod["metadata"]["name"] == name);
        let Some(uid) = found.map(|(uid, _)| uid.clone()) else {
            return;
        };
        let mut pod = inside.pods.remove(&uid).unwrap();
        merge(
            &mut pod,
            json!({"metadata": {"resourceVersion": inside.version.to_string()}}),
        );
        let line = json!({"type": "DELETED", "object": pod}).to_string() + "\n";
        for watch in &inside.watches {
            let _ = watch.send(Ok(Bytes::from(line.clone())));
        }
    }

    fn list(&self, query: &str) -> Value {
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.to_owned())
        };
        let inside = self.inside();
        let from: usize = value("continue").map_or(0, |token| token.parse().unwrap());
        let limit: usize = value("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
        let items: Vec<_> = inside.pods.values().skip(from).take(limit).collect();
        let next =
            (from + items.len() < inside.pods.len()).then(|| (from + items.len()).to_string());
        json!({"kind": "PodList", "apiVersion": "v1", "items": items,
            "metadata": {"resourceVersion": inside.version.to_string(), "continue": next}})
    }
}

pub(crate) fn status(code: u16, reason: &str, message: &str, details: Value) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message, "details": details})
}

async fn answer(State(api): State<Api>, request: Request) -> Response {
    let what = format!("{} {}", request.method(), request.uri().path());
    let query = request.uri().query().unwrap_or_default().to_owned();
    let body = to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let report = {
        let mut inside = api.inside();
        inside.heard.push(RecordedRequest {
            what: what.clone(),
            query: query.clone(),
            body: body.clone(),
        });
        let at = inside
            .answers
            .iter()
            .position(|(start, ..)| what.starts_with(start));
        at.and_then(|at| inside.answers.remove(at))
    };
    if let Some((_, code, body)) = report {
        return respond(code, &body);
    }
    if query.contains("watch=true") {
        let (sender, receiver) = mpsc::unbounded_channel();
        api.inside().watches.push(sender);
        let lines = UnboundedReceiverStream::new(receiver);
        return Response::new(Body::from_stream(lines.map(|line| line)));
    }
    serve(&api, &what, &query, body)
}

/// The response of a server without failures.
fn serve(api: &Api, what: &str, query: &str, body: Value) -> Response {
    let (method, path) = what.split_once(' ').unwrap();
    match (method, path) {
        ("GET", "/api/v1/pods") => respond(200, &api.list(query)),
        ("POST" | "DELETE", path) if path.contains("/pods/") => {
            let name = path.split('/').nth(6).unwrap().to_owned();
            if !query.contains("dryRun=All") && body["dryRun"].is_null() {
                let api = api.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    api.remove(&name);
                });
            }
            let done = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
            respond(201, &done)
        }
        ("GET", path) if path.ends_with("/poddisruptionbudgets") => budgets(api, path),
        ("PATCH", path) if api.inside().objects.contains_key(path) => {
            if !query.contains("dryRun=All") {
                patch(api.inside().objects.get_mut(path).unwrap(), body);
            }
            respond(200, &api.object(path))
        }
        (_, path) => {
            let found = api.inside().objects.get(path).cloned();
            let missing = status(404, "NotFound", "not found", json!({"name": "it"}));
            found.map_or_else(|| respond(404, &missing), |object| respond(200, &object))
        }
    }
}

fn budgets(api: &Api, path: &str) -> Response {
    let items: Vec<_> = {
        let inside = api.inside();
        let all = inside.objects.iter().filter(|(at, _)| at.starts_with(path));
        all.map(|(_, object)| object.clone()).collect()
    };
    let list = json!({"kind": "PodDisruptionBudgetList", "apiVersion": "policy/v1",
        "metadata": {}, "items": items});
    respond(200, &list)
}

/// Applies a merge patch: null removes a field.
fn patch(into: &mut Value, change: Value) {
    let Value::Object(change) = change else {
        *into = change;
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in change {
        match value.is_null() {
            true => drop(into.as_object_mut().unwrap().remove(&key)),
            false => patch(&mut into[key], value),
        }
    }
}

fn respond(code: u16, body: &Value) -> Response {
    let response = Response::builder().status(code);
    let response = response.header("content-type", "application/json");
    response.body(Body::from(body.to_string())).unwrap()
}
