//! Connection to the API server, with a pod's service account or a kubeconfig.
//!
//! kube itself rereads the token file (for both kinds of access) and the pod's `ca.crt` once a minute. This module
//! adds what kube lacks: it rereads the token immediately after a 401, rereads client certificates and a
//! kubeconfig's CA bundle (a kubelet's certificate is rotated within the lifetime of the agent's process), and puts
//! a timeout on every request. kube's own retries are disabled: up to 15 silent retries would send stale requests.

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
    error::{ClusterError, ClusterErrorKind, ConnectError},
    response_limit::ResponseLimit,
    token_file,
};
use machinist_kube_api::keys;

/// Connect timeout for one address; then the next address of a load balancer is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Request timeout. A healthy server itself gives up after 60 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval at which address and CA bundle of an unreachable server are reread; they may have changed.
const CREDENTIALS_REREAD_INTERVAL: Duration = Duration::from_secs(60);

/// User agent, as it appears in the server's audit log.
const USER_AGENT: &str = concat!("machinist/", env!("CARGO_PKG_VERSION"));

/// Source of the credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterAccess {
    /// The service account of the pod that this process runs in.
    Pod,
    /// Kubeconfig files, merged as kubectl does: the first file that sets a value wins, and missing files of a list
    /// are skipped.
    Kubeconfig(Vec<PathBuf>),
    /// Kubeconfig files, with this context instead of the current one.
    Context(Vec<PathBuf>, String),
}

/// Process environment from which the access method is chosen; read once, in `main`.
#[derive(Clone, Debug, Default)]
pub struct ClusterEnv {
    /// `--kubeconfig`.
    pub flag: Option<PathBuf>,
    /// `--context`.
    pub context: Option<String>,
    /// Paths in `KUBECONFIG`, without empty ones.
    pub kubeconfig: Vec<PathBuf>,
    /// Whether `KUBERNETES_SERVICE_HOST` is set, which means that the process runs in a pod.
    pub pod: bool,
    /// `HOME`.
    pub home: Option<PathBuf>,
}

impl ClusterAccess {
    /// Access for the agent: the configured kubeconfig, or else the pod's service account. None means that there is
    /// no cluster. `~/.kube/config` is ignored: a kubeconfig left in root's home directory must not make a machine
    /// join a cluster.
    pub fn of_agent(surroundings: &ClusterEnv) -> Option<Self> {
        let given = Self::given(surroundings);
        given.or_else(|| surroundings.pod.then_some(Self::Pod))
    }

    /// Access for the command line, in kubectl's order: explicit kubeconfig, pod, `~/.kube/config`. An explicit
    /// context always selects from a kubeconfig, never the pod.
    pub fn of_person(surroundings: &ClusterEnv) -> Option<Self> {
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

    fn given(surroundings: &ClusterEnv) -> Option<Self> {
        if let Some(file) = &surroundings.flag {
            return Some(Self::Kubeconfig(vec![file.clone()]));
        }
        let listed = &surroundings.kubeconfig;
        (!listed.is_empty()).then(|| Self::Kubeconfig(listed.clone()))
    }

    /// Loads the current credentials from this process's own file system (the pod's, or the caller's).
    async fn config(&self) -> Result<Config, ConnectError> {
        let mut config = match self {
            Self::Pod => Config::incluster().map_err(|e| ConnectError::Pod(Box::new(e)))?,
            Self::Kubeconfig(files) => of_files(files, None).await?,
            Self::Context(files, context) => of_files(files, Some(context.clone())).await?,
        };
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        if let (Ok(name), Ok(agent)) = ("user-agent".parse(), USER_AGENT.parse()) {
            config.headers.push((name, agent));
        }
        Ok(config)
    }

    /// Builds a client, and returns whether this module must reread its token because kube cannot.
    async fn client(&self) -> Result<(Client, bool), ConnectError> {
        let mut config = self.config().await?;
        let trimmed = token_file::trim(&mut config)?;
        let server = config.cluster_url.to_string();
        let builder = ClientBuilder::try_from(config).map_err(|e| ConnectError::Client {
            server,
            source: Box::new(e),
        })?;
        let client = builder.with_layer(&ResponseLimit::DEFAULT).build();
        Ok((client, trimmed))
    }
}

async fn of_files(files: &[PathBuf], context: Option<String>) -> Result<Config, ConnectError> {
    let wrong = |error| match error {
        KubeconfigError::ReadConfig(why, file) => ConnectError::KubeconfigFile(file, why),
        error => ConnectError::Kubeconfig(files.to_vec(), Box::new(error)),
    };
    let mut merged = merged(files).map_err(wrong)?;
    without_proxy_variables(&mut merged);
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let config = Config::from_custom_kubeconfig(merged, &options).await;
    let mut config = config.map_err(wrong)?;
    config.proxy_url.take_if(|it| *it == *DIRECT);
    Ok(config)
}

/// The proxy of a cluster that has none in the kubeconfig.
const DIRECT: &str = "http://direct.invalid/";

/// Prevents kube from taking `HTTPS_PROXY` for a cluster without `proxy-url`: that variable is for notifications and other
/// programs, and kube, which is built without proxies, could not connect at all.
fn without_proxy_variables(kubeconfig: &mut Kubeconfig) {
    let clusters = kubeconfig.clusters.iter_mut();
    for cluster in clusters.filter_map(|it| it.cluster.as_mut()) {
        let own = cluster.proxy_url.as_ref().filter(|it| !it.is_empty());
        if own.is_none() {
            cluster.proxy_url = Some(DIRECT.to_owned());
        }
    }
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

/// Client of the API server, shared by this module. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    access: ClusterAccess,
    current: Mutex<CurrentClient>,
}

struct CurrentClient {
    client: Client,
    /// Incremented at each reload of the credentials, so that two requests that get a 401 at the same time reload
    /// once.
    reading: u64,
    read: Instant,
    /// The last request got no response, so the known address or CA bundle may be outdated.
    doubted: bool,
    /// The token was read from its file by this module, so kube does not reread it.
    trimmed: bool,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cluster").field(&self.0.access).finish()
    }
}

impl Cluster {
    /// Loads the credentials. No request is sent: an unreachable server is not an error here.
    pub async fn connect(access: ClusterAccess) -> Result<Self, ConnectError> {
        let (client, trimmed) = access.client().await?;
        let current = CurrentClient {
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

    /// Whether OpenShift's machine-config controllers run in this cluster, detected by their ControllerConfig.
    pub async fn has_openshift_controllers(&self) -> Result<bool, ClusterError> {
        let path = format!("/apis/{}/v1/controllerconfigs", keys::GROUP);
        let name = keys::CONTROLLER_CONFIG;
        let (path, object) = (path.as_str(), format!("ControllerConfig {name}"));
        let get = |client: Client| async move {
            let request = Request::new(path).get(name, &GetParams::default());
            let request = request.map_err(kube::Error::BuildRequest)?;
            client.request_text(request).await.map(drop)
        };
        match self.request("get", object, get).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The pod's namespace, or that of the kubeconfig's context.
    pub async fn namespace(&self) -> String {
        let current = self.0.current.lock().await;
        current.client.default_namespace().to_owned()
    }

    /// Sends one request, built by `request`; `act` and `object` name it in error messages.
    ///
    /// It ends within 30 s, or within 60 s if the credentials are rejected (401): they are reloaded and the request
    /// is sent a second time.
    pub async fn request<T, F>(
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
            Err(ClusterErrorKind::Answered(status)) => status.code == 401,
            Err(ClusterErrorKind::Credentials(_)) => true,
            _ => false,
        };
        if refused && let Some(client) = self.read_again(reading).await {
            answer = bounded(ask(client)).await;
        }
        if let Err(ClusterErrorKind::Unreachable(_) | ClusterErrorKind::TimedOut(_)) = &answer {
            self.0.current.lock().await.doubted = true;
        }
        answer.map_err(|why| ClusterError {
            act,
            object: object.into(),
            why,
        })
    }

    /// The current client. It is rebuilt at most every [`CREDENTIALS_REREAD_INTERVAL`] while the server is
    /// unreachable, or while this module is responsible for rereading the token.
    async fn current(&self) -> (Client, u64) {
        let mut current = self.0.current.lock().await;
        if (current.doubted || current.trimmed)
            && current.read.elapsed() >= CREDENTIALS_REREAD_INTERVAL
        {
            current.read_from(&self.0.access).await;
        }
        (current.client.clone(), current.reading)
    }

    /// The client with credentials loaded after `reading`; none if they cannot be loaded.
    async fn read_again(&self, reading: u64) -> Option<Client> {
        let mut current = self.0.current.lock().await;
        let fresh = current.reading != reading || current.read_from(&self.0.access).await;
        fresh.then(|| current.client.clone())
    }
}

impl CurrentClient {
    /// Reloads the credentials. If they cannot be read, for example because a file is being replaced, the old ones
    /// stay in use.
    async fn read_from(&mut self, access: &ClusterAccess) -> bool {
        self.read = Instant::now();
        match access.client().await {
            Ok((client, trimmed)) => {
                (self.client, self.trimmed) = (client, trimmed);
                self.reading += 1;
                self.doubted = false;
                true
            }
            Err(error) => {
                tracing::warn!(reason = %error.reason(), "{}", machinist_base::error_chain::chain(&error));
                false
            }
        }
    }
}

async fn bounded<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ClusterErrorKind> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(ClusterErrorKind::of),
        Err(_) => Err(ClusterErrorKind::TimedOut(REQUEST_TIMEOUT)),
    }
}
