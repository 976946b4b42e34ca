//! Settings that change while the agent runs.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};

use crate::{
    config::{Live, LoadError, Offer, Place, Settings},
    plan::{Capabilities, Policies},
    root::{Root, Watch},
    shutdown::Tasks,
    update::run::Conduct,
};

/// An editor's save is several events; half a tenth of a second later they are over.
const DEBOUNCE: Duration = Duration::from_millis(50);

/// Keys that are read once, at the start.
const AT_START: [&str; 16] = [
    "source",
    "source.role",
    "jobs",
    "owners",
    "cluster.node",
    "cluster.kubeconfig",
    "drain.by",
    "readiness.startupTaint",
    "admin.listen",
    "users.allowed",
    "groups.allowed",
    "devices.registration",
    "devices.rescan",
    "readiness.diskSpace.paths",
    "log.format",
    "log.level",
];

/// Reads the settings again when their directory changes, when the node comes to another pool, or when
/// `asked`. Bad ones change nothing and are said.
pub(super) fn watch(
    root: &Root,
    mut place: Place,
    read: Read,
    mut pool: watch::Receiver<Option<String>>,
    asked: Arc<Notify>,
    tasks: &Tasks,
) -> Watched {
    let Read { settings, policies } = read;
    let (to, current) = watch::channel(Arc::new(settings.clone()));
    let (policies, rules) = watch::channel(policies);
    let (stop, root) = (tasks.token(), root.clone());
    tasks.spawn("settings", async move {
        let mut live = Live::new(settings);
        let mut watch = arm(&place);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                // Safe to drop: a question stays.
                () = asked.notified() => tracing::info!("the settings are read again, as asked"),
                // Safe to drop: what inotify has queued is read by the next call.
                () = changed(watch.as_mut()) => {}
                // Safe to drop: a change stays marked as unseen. Outside a cluster there is none.
                Ok(()) = pool.changed() => place.pool.clone_from(&pool.borrow_and_update()),
            }
            tokio::time::sleep(DEBOUNCE).await;
            // Before the reading: what changes while it lasts must not be missed.
            watch = arm(&place);
            offer(&mut live, place.read(), &to);
            look_at_policies(&root, live.settings(), place.own_uid, &policies);
        }
    });
    (current, rules)
}

/// The settings and the policies, as they change.
type Watched = (
    watch::Receiver<Arc<Settings>>,
    watch::Receiver<Arc<Policies>>,
);

/// What was read at the start.
pub(super) struct Read {
    pub(super) settings: Settings,
    pub(super) policies: Arc<Policies>,
}

/// Bad policies change nothing and are said.
fn look_at_policies(
    root: &Root,
    settings: &Settings,
    own_uid: u32,
    to: &watch::Sender<Arc<Policies>>,
) {
    match super::policies(root, settings, own_uid) {
        Ok(policies) => {
            to.send_if_modified(|known| {
                let differs = **known != policies;
                if differs {
                    tracing::info!("the disruption policies changed");
                    *known = Arc::new(policies);
                }
                differs
            });
        }
        Err(error) => {
            let why = crate::telemetry::chain(&error);
            tracing::warn!("the last good disruption policies stay: {why}");
        }
    }
}

/// The driver's conduct, anew whenever the settings or the policies change; the cluster's policies stand
/// before the file's.
pub(super) fn conducts(
    (mut settings, mut policies): Watched,
    mut of_the_cluster: watch::Receiver<Option<Arc<Policies>>>,
    capabilities: Capabilities,
    tasks: &Tasks,
) -> watch::Receiver<Conduct> {
    let mut heard = (settings.clone(), policies.clone(), of_the_cluster.clone());
    let mut now = move || {
        let cluster = of_the_cluster.borrow_and_update().clone();
        let file = Arc::clone(&policies.borrow_and_update());
        let policies = cluster.unwrap_or(file);
        super::conduct(&settings.borrow_and_update(), capabilities, policies)
    };
    let (to, conducts) = watch::channel(now());
    let stop = tasks.token();
    tasks.spawn("conduct", async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                // Safe to drop, all: a change that is missed is still marked unseen.
                changed = heard.0.changed() => if changed.is_err() { return },
                changed = heard.1.changed() => if changed.is_err() { return },
                // Outside a cluster nobody says anything.
                Ok(()) = heard.2.changed() => {}
            }
            to.send_replace(now());
        }
    });
    conducts
}

fn offer(live: &mut Live, read: Result<Settings, LoadError>, to: &watch::Sender<Arc<Settings>>) {
    match live.offer(read) {
        Offer::Same => {}
        Offer::Taken(keys) => {
            tracing::info!(keys = keys.join(", "), "settings changed");
            for key in keys.iter().filter(|key| AT_START.contains(key)) {
                tracing::warn!("{key} takes effect when the agent starts next");
            }
            to.send_replace(Arc::clone(live.settings()));
        }
        Offer::Refused(why) => {
            tracing::warn!("the changed settings are refused and the last good ones stay: {why}");
        }
    }
}

/// Waits for a change; for ever where nothing can be watched.
async fn changed(watch: Option<&mut Watch>) {
    match watch {
        Some(watch) => drop(watch.next().await),
        None => std::future::pending().await,
    }
}

/// Watches the directory and the drop-ins, and every directory above, because each may be replaced
/// or not be there yet.
fn arm(place: &Place) -> Option<Watch> {
    let mut watch = place.root.watch().ok()?;
    let mut armed = watch.add(&place.dir).is_ok();
    for above in place.dir.ancestors() {
        armed |= watch.add_names(&above).is_ok();
    }
    if let Ok(drop_ins) = place.dir.join("machinist.yaml.d") {
        // Most machines have none; its coming is seen in the directory above it.
        let _ = watch.add(&drop_ins);
    }
    armed.then_some(watch)
}
