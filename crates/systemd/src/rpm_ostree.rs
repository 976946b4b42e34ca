//! Transactions of rpm-ostree's daemon (org.projectatomic.rpmostree1.xml of rpm-ostree).
//!
//! A method of the system bus creates a transaction and returns the address of a connection to it alone, on which the
//! client starts it and waits for its end. The daemon makes one transaction at a time, and refuses others. It forgets a
//! client, and a transaction that the client has not started, only once the client's name leaves the bus. Each transaction
//! therefore has a connection to the bus of its own.

use std::{collections::HashMap, error::Error, time::Duration};

use tokio_stream::StreamExt as _;
use zbus::{Connection, Variant, connection::Builder, proxy::CacheProperties};

use super::{
    Systemd, SystemdError,
    connection::{TransactionConnections, within},
    dbus_proxies::{RpmOstreeOsProxy, RpmOstreeSysrootProxy, RpmOstreeTransactionProxy},
    error::SystemdErrorKind,
};
use machinist_update::os::{BackgroundError, PackageChange, RpmOstree, TransactionKind};

/// How long a cancelled transaction may take to end: it stops between two packages.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

/// Names of options of `UpdateDeployment`.
const DOWNLOAD_ONLY: &str = "download-only";
const LOCK_FINALIZATION: &str = "lock-finalization";

/// The end of a transaction that was no success.
#[derive(Debug, thiserror::Error)]
enum TransactionError {
    #[error("rpm-ostree: {0}")]
    Failed(String),
    #[error("rpm-ostree has closed the transaction")]
    Closed,
    #[error("{0:?} is not the address of a transaction")]
    Address(String),
}

type Options = HashMap<&'static str, Variant<'static>>;

/// The changes as rpm-ostree names them.
fn modifiers(change: &PackageChange) -> Options {
    let lists = [
        ("install-packages", &change.install),
        ("uninstall-packages", &change.uninstall),
        ("override-remove-packages", &change.remove),
        ("override-reset-packages", &change.restore),
    ];
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    let lists = lists.map(|(key, names)| {
        let names: Vec<String> = names.iter().cloned().collect();
        (key, Variant::from(names))
    });
    let image = change.image.clone();
    let image = image.map(|image| ("set-refspec", Variant::from(image)));
    lists.chain(image).collect()
}

fn options(change: &PackageChange, kind: TransactionKind) -> Options {
    let mut options = vec![
        ("idempotent-layering", true.into()),
        // An image may have a package of an extension already. The daemon reads this name, not the documented one.
        ("allow-inactive", true.into()),
        ("initiating-command-line", "machinist".into()),
    ];
    options.push(match kind {
        TransactionKind::Download => (DOWNLOAD_ONLY, true.into()),
        TransactionKind::Stage => (LOCK_FINALIZATION, true.into()),
    });
    if change.image.is_none() {
        options.push(("no-pull-base", true.into()));
    }
    options.into_iter().collect()
}

/// The path in an address such as `unix:path=/tmp/rpm-ostree.x,guid=…` (D-Bus specification, "Server Addresses").
fn socket_path(address: &str) -> Option<String> {
    let pairs = address.strip_prefix("unix:")?.split(',');
    let path = pairs
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(key, value)| (key == "path").then_some(value))?;
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

/// A transaction that was created.
struct Transaction {
    proxy: RpmOstreeTransactionProxy<'static>,
}

impl Transaction {
    async fn of(connection: &Connection) -> zbus::Result<Self> {
        let proxy = RpmOstreeTransactionProxy::builder(connection)
            .cache_properties(CacheProperties::No)
            .build();
        Ok(Self {
            proxy: proxy.await?,
        })
    }

    /// Starts the transaction and waits for its end.
    async fn run(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        // Subscribe first: a short transaction ends at once.
        let mut ends = self.proxy.receive_finished().await?;
        self.proxy.start().await?;
        let end = ends.next().await.ok_or(TransactionError::Closed)?;
        let end = end.args()?;
        match end.success {
            true => Ok(()),
            false => Err(TransactionError::Failed(end.error_message.to_owned()).into()),
        }
    }
}

impl Systemd {
    /// Creates a transaction, and remembers its connections.
    async fn create_transaction(
        &self,
        change: &PackageChange,
        kind: TransactionKind,
    ) -> Result<Transaction, Box<dyn Error + Send + Sync>> {
        let action = "change packages with rpm-ostree";
        let bus = self.link.to_bus_alone().await;
        let bus = bus.map_err(SystemdError::during(action))?;
        let create = async {
            let sysroot = RpmOstreeSysrootProxy::builder(&bus)
                .cache_properties(CacheProperties::No)
                .build()
                .await?;
            let client = HashMap::from([("id", Variant::from("machinist"))]);
            within(sysroot.register_client(client)).await?;
            let path = within(sysroot.booted()).await?;
            let os = RpmOstreeOsProxy::builder(&bus)
                .path(path)
                .cache_properties(CacheProperties::No)
                .build()
                .await?;
            within(os.update_deployment(modifiers(change), options(change, kind))).await
        };
        let address: Result<String, SystemdErrorKind> = create.await;
        let address = address.map_err(SystemdError::during(action))?;
        let private = self.connect_to_transaction(&address).await?;
        let transaction = Transaction::of(&private).await?;
        *self.transaction.lock().await = Some(TransactionConnections { bus, private });
        Ok(transaction)
    }

    async fn connect_to_transaction(
        &self,
        address: &str,
    ) -> Result<Connection, Box<dyn Error + Send + Sync>> {
        let path = socket_path(address);
        let path = path.ok_or_else(|| TransactionError::Address(address.to_owned()))?;
        let stream = self.link.addresses().dial_path(&path)?;
        Ok(Builder::unix_stream(stream).p2p().build().await?)
    }
}

impl RpmOstree for Systemd {
    async fn change_packages(
        &self,
        change: &PackageChange,
        kind: TransactionKind,
        limit: Duration,
    ) -> Result<(), BackgroundError> {
        let run = async { self.create_transaction(change, kind).await?.run().await };
        match tokio::time::timeout(limit, run).await {
            Ok(ended) => {
                *self.transaction.lock().await = None;
                ended.map_err(BackgroundError::Failed)
            }
            Err(_) => {
                let cancelled = self.cancel_change().await;
                cancelled.map_err(BackgroundError::Failed)?;
                Err(BackgroundError::TimedOut)
            }
        }
    }

    async fn cancel_change(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Some(connections) = self.transaction.lock().await.take() else {
            return Ok(());
        };
        let TransactionConnections { bus, private } = connections;
        let transaction = Transaction::of(&private).await?;
        let mut ends = transaction.proxy.receive_finished().await?;
        // If it was not started, it ends with its client, and the connection to it closes.
        drop((bus, private));
        // It may have ended meanwhile, and then does not answer.
        if within(transaction.proxy.cancel()).await.is_ok() {
            let _ = tokio::time::timeout(CANCEL_TIMEOUT, ends.next()).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_of_a_transaction_is_in_its_address() {
        for (address, path) in [
            (
                "unix:path=/tmp/rpm-ostree.k2/dbus-1,guid=ab",
                Some("/tmp/rpm-ostree.k2/dbus-1"),
            ),
            ("unix:guid=ab,path=/run/a%2db", Some("/run/a-b")),
            ("unix:path=/run/a%2", None),
            ("unix:abstract=x", None),
            ("tcp:host=localhost", None),
        ] {
            assert_eq!(socket_path(address).as_deref(), path, "{address}");
        }
    }
}
