//! rpm-ostree's daemon at the other end of a socket pair, with the interfaces of org.projectatomic.rpmostree1.xml: the
//! system bus, and one connection for each transaction.

#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "shared by tests; a broken pretence should panic"
)]

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard},
};

use machinist_systemd::BusAddresses;
use machinist_update::os::{PackageChange, TransactionKind};
use tokio::sync::Notify;
use zbus::{
    Guid, ObjectServer, OwnedObjectPath, OwnedVariant, connection::Builder, message::Header,
    object_server::SignalEmitter,
};

const SYSROOT: &str = "/org/projectatomic/rpmostree1/Sysroot";
const OS: &str = "/org/projectatomic/rpmostree1/fedora_coreos";

/// Carries out a transaction.
type Handler = dyn Fn(&PackageChange, TransactionKind) -> Result<(), String> + Send + Sync;

type Options = HashMap<String, OwnedVariant>;

/// A transaction that was created.
struct Created {
    change: PackageChange,
    kind: TransactionKind,
    /// The connection of its client.
    client: usize,
    is_started: bool,
}

#[derive(Default)]
struct State {
    /// The clients that have registered.
    clients: Vec<String>,
    /// Connections to the bus that were opened, and those of clients that are registered.
    connections: usize,
    registered: BTreeSet<usize>,
    /// The options of each request, by their names.
    requests: Vec<Vec<String>>,
    created: Option<Created>,
    /// A transaction does not end by itself.
    is_stuck: bool,
    /// Connections to transactions are not answered.
    is_silent: bool,
    cancelled: usize,
}

/// The daemon.
#[derive(Clone)]
pub struct FakeRpmOstree {
    handler: Arc<Handler>,
    state: Arc<Mutex<State>>,
    cancel: Arc<Notify>,
}

impl FakeRpmOstree {
    pub fn new(
        handler: impl Fn(&PackageChange, TransactionKind) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            handler: Arc::new(handler),
            state: Arc::default(),
            cancel: Arc::default(),
        }
    }

    /// The sockets of a machine on which only this daemon runs.
    pub fn lines(&self) -> BusAddresses {
        let (bus, transactions) = (self.clone(), self.clone());
        BusAddresses::none()
            .bus(move || bus.dial_bus())
            .paths(move |path| transactions.dial_transaction(path))
    }

    /// From now on a transaction ends only when it is cancelled.
    pub fn get_stuck(&self) {
        self.state().is_stuck = true;
    }

    /// Whether connections to transactions are not answered from now on.
    pub fn set_silent(&self, is_silent: bool) {
        self.state().is_silent = is_silent;
    }

    /// Whether it would exit after a while: there is neither a client nor a transaction.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.registered.is_empty() && state.created.is_none()
    }

    pub fn clients(&self) -> Vec<String> {
        self.state().clients.clone()
    }

    /// The names of the options of each request.
    pub fn requests(&self) -> Vec<Vec<String>> {
        self.state().requests.clone()
    }

    pub fn cancelled(&self) -> usize {
        self.state().cancelled
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn dial_bus(&self) -> io::Result<UnixStream> {
        let (near, far) = UnixStream::pair()?;
        let daemon = self.clone();
        let client = {
            let mut state = self.state();
            state.connections += 1;
            state.connections
        };
        tokio::spawn(async move {
            let connection = Builder::unix_stream(far)
                .server(Guid::generate())
                .p2p()
                .serve_at("/org/freedesktop/DBus", Bus)
                .serve_at(SYSROOT, Sysroot(daemon.clone(), client))
                .serve_at(OS, Os(daemon.clone(), client))
                .build()
                .await
                .unwrap();
            connection.closed().await;
            daemon.forget(client);
        });
        Ok(near)
    }

    /// The name of a client has left the bus.
    fn forget(&self, client: usize) {
        let mut state = self.state();
        state.registered.remove(&client);
        let created = &mut state.created;
        created.take_if(|created| created.client == client && !created.is_started);
    }

    fn dial_transaction(&self, path: &str) -> io::Result<UnixStream> {
        assert_eq!(path, "/tmp/rpm-ostree.1/socket");
        let (near, far) = UnixStream::pair()?;
        let daemon = self.clone();
        tokio::spawn(async move {
            if daemon.state().is_silent {
                // The socket stays open.
                return std::future::pending::<()>().await;
            }
            let connection = Builder::unix_stream(far)
                .server(Guid::generate())
                .p2p()
                .serve_at("/", Transaction(daemon))
                .build()
                .await
                .unwrap();
            connection.closed().await;
        });
        Ok(near)
    }
}

struct Bus;

#[zbus::interface(name = "org.freedesktop.DBus")]
impl Bus {
    async fn hello(&self) -> &str {
        ":1.1"
    }
    async fn add_match(&self, _rule: &str) {}
    async fn remove_match(&self, _rule: &str) {}
    async fn get_name_owner(&self, name: &str) -> zbus::fdo::Result<String> {
        Err(zbus::fdo::Error::NameHasNoOwner(name.to_owned()))
    }
}

struct Sysroot(FakeRpmOstree, usize);

#[zbus::interface(name = "org.projectatomic.rpmostree1.Sysroot")]
impl Sysroot {
    async fn register_client(&self, options: Options) {
        let id = String::try_from(options["id"].try_clone().unwrap()).unwrap();
        let mut state = self.0.state();
        state.clients.push(id);
        state.registered.insert(self.1);
    }

    #[zbus(property)]
    async fn booted(&self) -> OwnedObjectPath {
        OwnedObjectPath::try_from(OS).unwrap()
    }
}

struct Os(FakeRpmOstree, usize);

#[zbus::interface(name = "org.projectatomic.rpmostree1.OS")]
impl Os {
    async fn update_deployment(
        &self,
        modifiers: Options,
        options: Options,
    ) -> zbus::fdo::Result<String> {
        let mut state = self.0.state();
        if state.created.is_some() {
            return Err(zbus::fdo::Error::Failed(
                "Transaction in progress".to_owned(),
            ));
        }
        let is_set = |name: &str| {
            let option = options.get(name);
            option.is_some_and(|value| bool::try_from(value.try_clone().unwrap()).unwrap())
        };
        let list = |name: &str| {
            let list = modifiers.get(name);
            let list = list.map(|value| Vec::<String>::try_from(value.try_clone().unwrap()));
            list.map(Result::unwrap)
                .unwrap_or_default()
                .into_iter()
                .collect()
        };
        let image = modifiers.get("set-refspec");
        let image = image.map(|value| String::try_from(value.try_clone().unwrap()).unwrap());
        if image.is_some() && is_set("no-pull-base") {
            let error = "Can't specify no-pull-base if setting a new refspec or revision";
            return Err(zbus::fdo::Error::Failed(error.to_owned()));
        }
        let kind = match (is_set("download-only"), is_set("lock-finalization")) {
            (true, false) => TransactionKind::Download,
            (false, true) => TransactionKind::Stage,
            other => panic!("download only, locked: {other:?}"),
        };
        let change = PackageChange {
            image,
            install: list("install-packages"),
            uninstall: list("uninstall-packages"),
            remove: list("override-remove-packages"),
            restore: list("override-reset-packages"),
        };
        state.created = Some(Created {
            change,
            kind,
            client: self.1,
            is_started: false,
        });
        let mut names: Vec<String> = options.into_keys().collect();
        names.sort();
        state.requests.push(names);
        Ok("unix:path=/tmp/rpm%2dostree.1/socket,guid=0123".to_owned())
    }
}

struct Transaction(FakeRpmOstree);

#[zbus::interface(name = "org.projectatomic.rpmostree1.Transaction")]
impl Transaction {
    async fn start(
        &self,
        #[zbus(object_server)] server: &ObjectServer,
        #[zbus(header)] _header: Header<'_>,
    ) -> bool {
        let daemon = self.0.clone();
        if let Some(created) = &mut daemon.state().created {
            created.is_started = true;
        }
        let interface = server.interface::<_, Self>("/").await.unwrap();
        tokio::spawn(async move {
            let is_stuck = daemon.state().is_stuck;
            if is_stuck {
                daemon.cancel.notified().await;
            }
            let created = daemon.state().created.take().unwrap();
            let ended = match is_stuck {
                true => Err("Operation was cancelled".to_owned()),
                false => (daemon.handler)(&created.change, created.kind),
            };
            let error = ended.as_ref().err().map_or("", String::as_str);
            let emitter = interface.signal_emitter();
            // The client may have gone.
            let _ = Self::finished(emitter, ended.is_ok(), error).await;
        });
        true
    }

    async fn cancel(&self) {
        self.0.state().cancelled += 1;
        self.0.cancel.notify_one();
    }

    #[zbus(signal)]
    async fn finished(
        emitter: &SignalEmitter<'_>,
        success: bool,
        error_message: &str,
    ) -> zbus::Result<()>;
}
