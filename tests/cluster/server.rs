//! A small API server: objects by path, watches, and scripted failures.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    convert::Infallible,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::collections;
use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    response::Response,
};
use machinist_cluster::{Cluster, ClusterAccess};
use machinist_testkit::WAIT_TIMEOUT;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_stream::{StreamExt, wrappers::UnboundedReceiverStream};

/// A received request.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    /// `PATCH /api/v1/nodes/a`, without the query.
    pub(crate) what: String,
    pub(crate) query: String,
    pub(crate) content: String,
    pub(crate) bearer: String,
    pub(crate) agent: String,
    pub(crate) body: Value,
}

/// A failure in place of the normal response.
#[derive(Clone, Debug)]
pub(crate) enum InjectedFailure {
    /// This code, with a Status as the server words it.
    Code(u16, &'static str),
    /// This code and header, without a Status, as from a proxy in front of the server.
    Proxy(u16),
    /// The connection is closed in the middle of the response.
    Cut,
    /// A response of one line of this many MiB.
    Long(usize),
    /// No response at all.
    Hang,
    /// Another client changes the object just before.
    Meanwhile(fn(&mut Value)),
    /// The request is carried out, and its response is sent once the value is true.
    Late(watch::Receiver<bool>),
}

#[derive(Default)]
pub(crate) struct Inside {
    pub(crate) objects: BTreeMap<String, Value>,
    pub(crate) version: u64,
    /// Paths of the collections that are served with all rules of [`collections`].
    pub(crate) collections: BTreeSet<String>,
    /// Every change, with its version and the path of the object: what a watch begins with.
    history: Vec<(u64, String, Bytes)>,
    /// Annotations that are not stored.
    dropped_annotations: BTreeSet<String>,
    /// Open watches: the collection's path, and the sender of its lines.
    watches: Vec<(String, mpsc::UnboundedSender<Line>)>,
    heard: Vec<RecordedRequest>,
    /// Failures of the next requests that begin with this text.
    troubles: VecDeque<(String, InjectedFailure)>,
    /// Slices are stored without device taints, as by a server that does not know the field.
    drops_taints: bool,
    /// The only token that is accepted; with `None` any is.
    token: Option<String>,
}

type Line = Result<Bytes, std::io::Error>;

/// A handle of the server, which ends with the test's runtime.
#[derive(Clone)]
pub(crate) struct Server {
    inside: Arc<Mutex<Inside>>,
    changed: Arc<watch::Sender<()>>,
    address: String,
    dir: Arc<tempfile::TempDir>,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            inside: Arc::default(),
            changed: Arc::new(watch::Sender::new(())),
            address: format!("http://{}", listener.local_addr().unwrap()),
            dir: Arc::new(tempfile::tempdir().unwrap()),
        };
        let app = axum::Router::new()
            .fallback(answer)
            .with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        server.write_token("first");
        server
    }

    /// Writes the token file that the kubeconfig names.
    pub(crate) fn write_token(&self, token: &str) {
        std::fs::write(self.dir.path().join("token"), token).unwrap();
    }

    /// A kubeconfig whose token comes from a file.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_to(&self.address)
    }

    pub(crate) fn kubeconfig_to(&self, address: &str) -> PathBuf {
        let path = self.dir.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": address}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "machinist-system"}}],
            "users": [{"name": "it", "user": {"tokenFile": "token"}}],
        });
        std::fs::write(&path, text.to_string()).unwrap();
        path
    }

    pub(crate) async fn cluster(&self) -> Cluster {
        Cluster::connect(ClusterAccess::Kubeconfig(vec![self.kubeconfig()]))
            .await
            .unwrap()
    }

    fn inside<T>(&self, act: impl FnOnce(&mut Inside) -> T) -> T {
        let done = act(&mut self.inside.lock().unwrap());
        self.changed.send_replace(());
        done
    }

    /// Creates an object, or changes it as another client would; watches deliver the change.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.inside(|inside| inside.put(path, object));
    }

    /// Changes an object as another client would.
    pub(crate) fn edit(&self, path: &str, edit: impl FnOnce(&mut Value)) {
        self.inside(|inside| {
            let mut object = inside.objects[path].clone();
            edit(&mut object);
            inside.put(path, object);
        });
    }

    /// Restores the object from a backup of the server's store: versions count from the beginning
    /// again.
    pub(crate) fn restore(&self, path: &str, mut object: Value) {
        self.inside(|inside| {
            inside.version = 1;
            inside.history.clear();
            object["metadata"]["resourceVersion"] = json!("1");
            inside.objects.insert(path.to_owned(), object);
        });
    }

    pub(crate) fn remove(&self, path: &str) {
        self.inside(|inside| inside.remove(path));
    }

    /// From now on these collections are served with all rules of [`collections`].
    pub(crate) fn serve_collections(&self, paths: &[&str]) {
        let paths = paths.iter().map(|path| (*path).to_owned());
        self.inside(|inside| inside.collections.extend(paths));
    }

    /// Whether this annotation is stored from now on, on any object.
    pub(crate) fn keep_annotation(&self, name: &str, is_kept: bool) {
        self.inside(|inside| match is_kept {
            true => drop(inside.dropped_annotations.remove(name)),
            false => drop(inside.dropped_annotations.insert(name.to_owned())),
        });
    }

    pub(crate) fn object(&self, path: &str) -> Value {
        self.inside(|inside| inside.objects.get(path).cloned().unwrap_or_default())
    }

    /// The next request that begins with this text has this failure; several are queued.
    pub(crate) fn trouble(&self, begins: &str, trouble: InjectedFailure) {
        self.inside(|inside| inside.troubles.push_back((begins.to_owned(), trouble)));
    }

    /// Removes all queued failures.
    pub(crate) fn stop_failing(&self) {
        self.inside(|inside| inside.troubles.clear());
    }

    /// From now on slices are stored without taints.
    pub(crate) fn drop_taints(&self) {
        self.inside(|inside| inside.drops_taints = true);
    }

    /// Paths of the objects below this one.
    pub(crate) fn below(&self, path: &str) -> Vec<String> {
        let below = format!("{path}/");
        let all = self.inside(|inside| inside.objects.keys().cloned().collect::<Vec<_>>());
        all.into_iter()
            .filter(|at| at.starts_with(&below))
            .collect()
    }

    /// From now on only this token is accepted.
    pub(crate) fn accept_only(&self, token: &str) {
        self.inside(|inside| inside.token = Some(token.to_owned()));
    }

    /// Ends every open watch properly, or by closing the connection.
    pub(crate) fn end_watches(&self, cut: bool) {
        self.inside(|inside| {
            for (_, lines) in inside.watches.drain(..) {
                if cut {
                    let _ = lines.send(Err(std::io::Error::other("cut")));
                }
            }
        });
    }

    /// Sends a line to every open watch.
    pub(crate) fn send_to_watches(&self, line: &Value) {
        self.inside(|inside| {
            for (_, lines) in &inside.watches {
                let _ = lines.send(Ok(format!("{line}\n").into()));
            }
        });
    }

    pub(crate) fn requests(&self) -> Vec<RecordedRequest> {
        self.inside(|inside| inside.heard.clone())
    }

    /// The requests that begin with this text.
    pub(crate) fn requests_starting(&self, begins: &str) -> Vec<RecordedRequest> {
        let mut heard = self.requests();
        heard.retain(|heard| heard.what.starts_with(begins));
        heard
    }

    /// The requests that change something, as `PATCH /path`.
    pub(crate) fn writes(&self) -> Vec<RecordedRequest> {
        let mut heard = self.requests();
        heard.retain(|heard| !heard.what.starts_with("GET "));
        heard
    }

    /// Waits until the condition holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            while !holds(self) {
                // Reading the state counts as a change, too, so a timeout makes the condition be
                // checked again.
                let _ = tokio::time::timeout(Duration::from_millis(20), changed.changed()).await;
            }
        };
        if tokio::time::timeout(WAIT_TIMEOUT, waiting).await.is_err() {
            panic!("timed out: {what}; requests: {:#?}", self.requests());
        }
    }

    /// The number of open watches.
    pub(crate) fn watches(&self) -> usize {
        self.inside(|inside| inside.watches.len())
    }

    pub(crate) async fn until_watched(&self) {
        self.until("a watch", |it| {
            it.inside(|inside| !inside.watches.is_empty())
        })
        .await;
    }
}

impl Inside {
    pub(crate) fn put(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        let annotations = object.pointer_mut("/metadata/annotations");
        if let Some(annotations) = annotations.and_then(Value::as_object_mut) {
            annotations.retain(|name, _| !self.dropped_annotations.contains(name));
        }
        let devices = object
            .pointer_mut("/spec/devices")
            .and_then(Value::as_array_mut);
        for device in devices.into_iter().flatten() {
            match device.get_mut("taints").and_then(Value::as_array_mut) {
                None => {}
                Some(_) if self.drops_taints => {
                    drop(device.as_object_mut().unwrap().remove("taints"))
                }
                // The server sets the times of taints.
                Some(taints) => taints.iter_mut().for_each(|taint| {
                    if taint.get("timeAdded").is_none() {
                        taint["timeAdded"] = json!(format!("at {}", self.version));
                    }
                }),
            }
        }
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let known = self.objects.insert(path.to_owned(), object.clone());
        let event = if known.is_some() { "MODIFIED" } else { "ADDED" };
        self.tell(path, event, &object);
    }

    pub(crate) fn remove(&mut self, path: &str) {
        let mut gone = self.objects.remove(path).unwrap();
        self.version += 1;
        gone["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.tell(path, "DELETED", &gone);
    }

    fn tell(&mut self, path: &str, event: &str, object: &Value) {
        let line = Bytes::from(format!("{}\n", json!({"type": event, "object": object})));
        self.history
            .push((self.version, path.to_owned(), line.clone()));
        self.watches.retain(|(collection, lines)| {
            !is_in(collection, path) || lines.send(Ok(line.clone())).is_ok()
        });
    }

    fn trouble(&mut self, what: &str) -> Option<InjectedFailure> {
        let at = self
            .troubles
            .iter()
            .position(|(begins, _)| what.starts_with(begins.as_str()))?;
        self.troubles.remove(at).map(|(_, trouble)| trouble)
    }
}

fn is_in(collection: &str, path: &str) -> bool {
    path.rsplit_once('/')
        .is_some_and(|(of, _)| of == collection)
}

async fn answer(State(server): State<Server>, request: Request) -> Result<Response, Infallible> {
    let (parts, body) = request.into_parts();
    let header = |name: &str| {
        let value = parts.headers.get(name).and_then(|it| it.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let path = parts.uri.path().to_owned();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    let heard = RecordedRequest {
        what: format!("{} {path}", parts.method),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        content: header("content-type"),
        bearer: header("authorization").replace("Bearer ", ""),
        agent: header("user-agent"),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    let (trouble, known) = server.inside(|inside| {
        inside.heard.push(heard.clone());
        let known = inside.token.as_ref().is_none_or(|it| *it == heard.bearer);
        (inside.trouble(&heard.what), known)
    });
    let trouble = match trouble {
        Some(InjectedFailure::Meanwhile(edit)) => {
            server.edit(&path, edit);
            None
        }
        other => other,
    };
    Ok(match trouble {
        Some(InjectedFailure::Code(code, reason)) => status(code, reason, "scripted error"),
        Some(InjectedFailure::Proxy(code)) => reply(code, "bad day"),
        Some(InjectedFailure::Cut) => cut(),
        Some(InjectedFailure::Long(mebibytes)) => long(mebibytes),
        Some(InjectedFailure::Hang | InjectedFailure::Meanwhile(_)) => std::future::pending().await,
        None if !known => status(401, "Unauthorized", "Unauthorized"),
        Some(InjectedFailure::Late(mut released)) => {
            let response = server.inside(|inside| carry_out(inside, &path, &heard));
            let _ = released.wait_for(|released| *released).await;
            response
        }
        None if heard.query.contains("watch=true") => server.watch(&path, &heard.query),
        None => server.inside(|inside| carry_out(inside, &path, &heard)),
    })
}

impl Server {
    fn watch(&self, path: &str, query: &str) -> Response {
        let (lines, stream) = mpsc::unbounded_channel();
        self.inside(|inside| {
            let from = collections::version(query);
            let missed = inside.history.iter().filter(|it| it.0 > from);
            for (_, _, line) in missed.filter(|it| is_in(path, &it.1)) {
                let _ = lines.send(Ok(line.clone()));
            }
            inside.watches.push((path.to_owned(), lines));
        });
        Response::new(Body::from_stream(UnboundedReceiverStream::new(stream)))
    }
}

fn carry_out(inside: &mut Inside, path: &str, heard: &RecordedRequest) -> Response {
    if let Some(response) = collections::carry_out(inside, path, heard) {
        return response;
    }
    let (object_path, _) = path.rsplit_once("/status").unwrap_or((path, ""));
    let found = inside.objects.get(object_path).cloned();
    match (heard.what.split(' ').next().unwrap(), found) {
        ("GET", Some(object)) => reply(200, &object.to_string()),
        ("GET", None) => list(inside, path, &heard.query),
        ("POST", _) => {
            let name = heard.body["metadata"]["name"].as_str().unwrap_or_default();
            inside.put(&format!("{path}/{name}"), heard.body.clone());
            reply(201, &heard.body.to_string())
        }
        ("PATCH", Some(object)) => match super::patches::patched(object, heard) {
            Ok(object) if heard.query.contains("dryRun=All") => reply(200, &object.to_string()),
            Ok(object) => {
                inside.put(object_path, object);
                reply(200, &inside.objects[object_path].to_string())
            }
            Err((code, reason)) => status(code, reason, "the patch does not fit"),
        },
        ("PATCH", None) if heard.content.contains("apply-patch") => {
            inside.put(object_path, heard.body.clone());
            reply(201, &inside.objects[object_path].to_string())
        }
        ("DELETE", Some(object)) => {
            inside.remove(object_path);
            reply(200, &object.to_string())
        }
        _ => status(404, "NotFound", "not found"),
    }
}

/// The one object that a field selector names, as a list, or the slices of a node, or all objects of a
/// collection; one without objects does not exist.
fn list(inside: &Inside, path: &str, query: &str) -> Response {
    let found: Vec<&Value> = if query.contains("spec.driver%3Ddra.machinist.dev%2Cspec.nodeName%3D")
    {
        let below = format!("{path}/");
        let all = inside.objects.iter();
        all.filter(|(at, _)| at.starts_with(&below))
            .map(|(_, one)| one)
            .collect()
    } else if let Some((_, name)) = query.split_once("fieldSelector=metadata.name%3D") {
        let name = name.split('&').next().unwrap_or_default();
        inside
            .objects
            .get(&format!("{path}/{name}"))
            .into_iter()
            .collect()
    } else {
        let below = format!("{path}/");
        let all = inside.objects.iter();
        let own = all.filter(|(at, _)| at.strip_prefix(&below).is_some_and(|it| !it.contains('/')));
        let own: Vec<&Value> = own.map(|(_, one)| one).collect();
        if own.is_empty() {
            return status(404, "NotFound", "not found");
        }
        own
    };
    let list = json!({
        "kind": "List", "apiVersion": "v1",
        "metadata": {"resourceVersion": inside.version.to_string()},
        "items": found,
    });
    reply(200, &list.to_string())
}

fn long(mebibytes: usize) -> Response {
    let mebibyte = Bytes::from(vec![b' '; 1 << 20]);
    let line = std::iter::repeat_n(Ok::<_, Infallible>(mebibyte), mebibytes);
    Response::new(Body::from_stream(tokio_stream::iter(line)))
}

pub(crate) fn status(code: u16, reason: &str, message: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    reply(code, &body.to_string())
}

pub(crate) fn reply(code: u16, body: &str) -> Response {
    let reply = Response::builder()
        .status(code)
        .header("content-type", "application/json");
    reply.body(Body::from(body.to_owned())).unwrap()
}

fn cut() -> Response {
    let lines = [Ok("{\"kind\":".into()), Err(std::io::Error::other("cut"))];
    let lines: Vec<Line> = lines.into();
    Response::new(Body::from_stream(
        tokio_stream::iter(lines).map(|line| line),
    ))
}
