//! How the API server is reached: as a pod's service account, or as a kubeconfig says.
//!
//! What kube does by itself: it reads the token file (both kinds of access) and the pod's `ca.crt` anew
//! once a minute, and takes them from then on. What it does not do, and what is done here: read the
//! token at once when it is refused (401); read client certificates and a kubeconfig's authorities
//! again at all (a kubelet's certificate is replaced long before the agent's process is); bound a
//! request in time. kube's own retries are turned off: up to 15 silent ones would send stale requests.

use std::{path::PathBuf, sync::Arc, time::Duration};

use kube::{
    Client, Config,
    api::GetParams,
    client::ClientBuilder,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
    core::Request,
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use super::{
    answer_limit::{AnswerLimit, MAX_ANSWER_BYTES},
    error::{ClusterError, ConnectError, Why},
    token,
};
use crate::crd::names;

/// How long one address may take to answer; the next address of a load balancer is tried then.
const CONNECT: Duration = Duration::from_secs(10);

/// No request of ours lasts longer on a healthy server, which itself gives up after 60 s.
const REQUEST: Duration = Duration::from_secs(30);

/// While nobody answers, address and authorities are read again this often: they may be what changed.
const REREAD: Duration = Duration::from_secs(60);

/// Whom the server's audit log sees.
const AGENT: &str = concat!("machinist/", env!("CARGO_PKG_VERSION"));

/// Where credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The service account of the pod that this process runs in.
    Pod,
    /// Kubeconfig files, merged as kubectl merges them: the first to say something wins, files of a
    /// list that are missing are passed over.
    Kubeconfig(Vec<PathBuf>),
    /// The same, with another context than the current one.
    Context(Vec<PathBuf>, String),
}

/// What a process is given that tells of a cluster; read at the edge.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `--kubeconfig`.
    pub flag: Option<PathBuf>,
    /// `--context`.
    pub context: Option<String>,
    /// The paths that `KUBECONFIG` lists, without empty ones.
    pub kubeconfig: Vec<PathBuf>,
    /// `KUBERNETES_SERVICE_HOST` is set: this is a pod.
    pub pod: bool,
    /// `HOME`.
    pub home: Option<PathBuf>,
}

impl Access {
    /// The agent's: what it was given, or its pod. None: there is no cluster. A file in root's home
    /// directory is not asked for: a machine must not join a cluster because a person left one there.
    pub fn of_agent(surroundings: &Surroundings) -> Option<Self> {
        let given = Self::given(surroundings);
        given.or_else(|| surroundings.pod.then_some(Self::Pod))
    }

    /// A person's, as kubectl finds it: what was given, the pod, `~/.kube/config`. Who names a context
    /// means one of a kubeconfig.
    pub fn of_person(surroundings: &Surroundings) -> Option<Self> {
        let at_home = || {
            let home = surroundings.home.as_ref()?;
            Some(Self::Kubeconfig(vec![home.join(".kube/config")]))
        };
        let Some(context) = &surroundings.context else {
            return Self::of_agent(surroundings).or_else(at_home);
        };
        match Self::given(surroundings).or_else(at_home)? {
            Self::Kubeconfig(files) => Some(Self::Context(files, context.clone())),
            other => Some(other),
        }
    }

    fn given(surroundings: &Surroundings) -> Option<Self> {
        if let Some(file) = &surroundings.flag {
            return Some(Self::Kubeconfig(vec![file.clone()]));
        }
        let listed = &surroundings.kubeconfig;
        (!listed.is_empty()).then(|| Self::Kubeconfig(listed.clone()))
    }

    /// What it says now. Reads files of the process's own file system: the pod's, or the caller's.
    async fn config(&self) -> Result<Config, ConnectError> {
        let mut config = match self {
            Self::Pod => Config::incluster().map_err(|e| ConnectError::Pod(Box::new(e)))?,
            Self::Kubeconfig(files) => of_files(files, None).await?,
            Self::Context(files, context) => of_files(files, Some(context.clone())).await?,
        };
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT);
        if let (Ok(name), Ok(agent)) = ("user-agent".parse(), AGENT.parse()) {
            config.headers.push((name, agent));
        }
        Ok(config)
    }

    /// The client, and whether its token must be read anew here.
    async fn client(&self) -> Result<(Client, bool), ConnectError> {
        let mut config = self.config().await?;
        let trimmed = token::trim(&mut config)?;
        let server = config.cluster_url.to_string();
        let builder = ClientBuilder::try_from(config).map_err(|e| ConnectError::Client {
            server,
            source: Box::new(e),
        })?;
        let client = builder.with_layer(&AnswerLimit(MAX_ANSWER_BYTES)).build();
        Ok((client, trimmed))
    }
}

async fn of_files(files: &[PathBuf], context: Option<String>) -> Result<Config, ConnectError> {
    let wrong = |e| ConnectError::Kubeconfig(files.to_vec(), Box::new(e));
    let merged = merged(files).map_err(wrong)?;
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let config = Config::from_custom_kubeconfig(merged, &options).await;
    config.map_err(wrong)
}

fn merged(files: &[PathBuf]) -> Result<Kubeconfig, KubeconfigError> {
    let mut all: Option<Kubeconfig> = None;
    let mut missing = None;
    for file in files {
        match Kubeconfig::read_from(file) {
            Ok(one) => all = Some(all.unwrap_or_default().merge(one)?),
            Err(error) if is_missing(&error) => missing = missing.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    all.ok_or_else(|| missing.unwrap_or(KubeconfigError::FindPath))
}

fn is_missing(error: &KubeconfigError) -> bool {
    matches!(error, KubeconfigError::ReadConfig(why, _) if why.kind() == std::io::ErrorKind::NotFound)
}

/// The API server, as everybody in this room asks it. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    access: Access,
    current: Mutex<Current>,
}

struct Current {
    client: Client,
    /// Grows with each reading of the credentials, so that two who are refused at once read once.
    reading: u64,
    read: Instant,
    /// Nobody answered: what is known of the server may be wrong.
    doubted: bool,
    /// The token was taken out of its file: nobody else reads that again.
    trimmed: bool,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cluster").field(&self.0.access).finish()
    }
}

impl Cluster {
    /// Reads the credentials. Nothing is asked yet: a server that is away is no error.
    pub async fn connect(access: Access) -> Result<Self, ConnectError> {
        let (client, trimmed) = access.client().await?;
        let current = Current {
            client,
            trimmed,
            reading: 0,
            read: Instant::now(),
            doubted: false,
        };
        Ok(Self(Arc::new(Inner {
            access,
            current: Mutex::new(current),
        })))
    }

    /// Whether OpenShift's machine-config controllers run in this cluster: their ControllerConfig says so.
    pub async fn has_openshift_controllers(&self) -> Result<bool, ClusterError> {
        let path = format!("/apis/{}/v1/controllerconfigs", names::GROUP);
        let name = names::CONTROLLER_CONFIG;
        let (path, object) = (path.as_str(), format!("ControllerConfig {name}"));
        let get = |client: Client| async move {
            let request = Request::new(path).get(name, &GetParams::default());
            let request = request.map_err(kube::Error::BuildRequest)?;
            client.request_text(request).await.map(drop)
        };
        match self.ask("get", object, get).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The namespace of the pod, or of the kubeconfig's context.
    pub async fn namespace(&self) -> String {
        let current = self.0.current.lock().await;
        current.client.default_namespace().to_owned()
    }

    /// Makes one request, which `ask` puts together; `act` and `object` name it in messages.
    ///
    /// It ends within 30 s, or 60 s where the credentials are refused (401): they are read again and the request
    /// is sent once more.
    pub async fn ask<T, F>(
        &self,
        act: &'static str,
        object: impl Into<String>,
        ask: impl Fn(Client) -> F + Send,
    ) -> Result<T, ClusterError>
    where
        F: Future<Output = Result<T, kube::Error>> + Send,
    {
        let (client, reading) = self.current().await;
        let mut answer = bounded(ask(client)).await;
        let refused = match &answer {
            Err(Why::Answered(status)) => status.code == 401,
            Err(Why::Credentials(_)) => true,
            _ => false,
        };
        if refused && let Some(client) = self.read_again(reading).await {
            answer = bounded(ask(client)).await;
        }
        if let Err(Why::Unreachable(_) | Why::TimedOut(_)) = &answer {
            self.0.current.lock().await.doubted = true;
        }
        answer.map_err(|why| ClusterError {
            act,
            object: object.into(),
            why,
        })
    }

    /// The client as it is, or made anew after a while in which nobody answered, or in which nobody else
    /// has looked at the token.
    async fn current(&self) -> (Client, u64) {
        let mut current = self.0.current.lock().await;
        if (current.doubted || current.trimmed) && current.read.elapsed() >= REREAD {
            current.read_from(&self.0.access).await;
        }
        (current.client.clone(), current.reading)
    }

    /// The client with credentials read after `reading`; none where they cannot be read.
    async fn read_again(&self, reading: u64) -> Option<Client> {
        let mut current = self.0.current.lock().await;
        let fresh = current.reading != reading || current.read_from(&self.0.access).await;
        fresh.then(|| current.client.clone())
    }
}

impl Current {
    /// Takes what the files say now. What cannot be read, because it is being replaced, changes
    /// nothing.
    async fn read_from(&mut self, access: &Access) -> bool {
        self.read = Instant::now();
        match access.client().await {
            Ok((client, trimmed)) => {
                (self.client, self.trimmed) = (client, trimmed);
                self.reading += 1;
                self.doubted = false;
                true
            }
            Err(error) => {
                tracing::warn!(reason = %error.reason(), "{}", crate::telemetry::chain(&error));
                false
            }
        }
    }
}

async fn bounded<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Why> {
    match timeout(REQUEST, request).await {
        Ok(answer) => answer.map_err(Why::of),
        Err(_) => Err(Why::TimedOut(REQUEST)),
    }
}
