//! Reloads settings while the agent runs.

use std::{sync::Arc, time::Duration};

use tokio::sync::{Notify, watch};

use machinist_base::shutdown::Tasks;
use machinist_plan::{Capabilities, Policies};
use machinist_rootfs::{Root, Watch};
use machinist_status::settings::{
    LoadError, ReloadOutcome, ReloadableSettings, Settings, SettingsLocation,
};
use machinist_update::reconciler::ReconcilerOptions;

/// Debounce: an editor's save causes several events within 50 ms.
const SETTINGS_DEBOUNCE: Duration = Duration::from_millis(50);

/// Keys that are read only at startup.
const STARTUP_ONLY_KEYS: [&str; 16] = [
    "source",
    "source.role",
    "roles",
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

/// Reloads the settings when their directory changes, when the node moves to another pool, or on
/// request (`asked`). Invalid settings change nothing; the mistake is logged and published.
pub(super) fn watch(
    root: &Root,
    mut place: SettingsLocation,
    read: InitialSettings,
    mut pool: watch::Receiver<Option<String>>,
    asked: Arc<Notify>,
    tasks: &Tasks,
) -> SettingsReceivers {
    let InitialSettings { settings, policies } = read;
    let (to, current) = watch::channel(Arc::new(settings.clone()));
    let (policies, rules) = watch::channel(policies);
    let (mistakes, mistake) = watch::channel(None);
    let (stop, root) = (tasks.token(), root.clone());
    tasks.spawn("settings", async move {
        let mut live = ReloadableSettings::new(settings);
        let mut watch = arm(&place);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                // Cancel-safe: a request is kept.
                () = asked.notified() => tracing::info!("reloading settings on SIGHUP"),
                // Cancel-safe: queued inotify events are read by the next call.
                () = changed(watch.as_mut()) => {}
                // Cancel-safe: a change stays marked as unseen. Without a cluster there is none.
                Ok(()) = pool.changed() => place.pool.clone_from(&pool.borrow_and_update()),
            }
            tokio::time::sleep(SETTINGS_DEBOUNCE).await;
            // Before reading, so that changes during the read are not missed.
            watch = arm(&place);
            offer(&mut live, place.read(), &to);
            let wrong = look_at_policies(&root, live.settings(), place.own_uid, &policies);
            mistakes.send_replace(live.warning().map(str::to_owned).or(wrong));
        }
    });
    SettingsReceivers {
        settings: current,
        policies: rules,
        mistake,
    }
}

/// Receivers of the settings and the policies.
pub(super) struct SettingsReceivers {
    pub(super) settings: watch::Receiver<Arc<Settings>>,
    pub(super) policies: watch::Receiver<Arc<Policies>>,
    /// The mistake because of which the last valid ones are in use.
    pub(super) mistake: watch::Receiver<Option<String>>,
}

/// The values read at startup.
pub(super) struct InitialSettings {
    pub(super) settings: Settings,
    pub(super) policies: Arc<Policies>,
}

/// Reloads the policies. Invalid ones change nothing and are logged; returns the mistake.
fn look_at_policies(
    root: &Root,
    settings: &Settings,
    own_uid: u32,
    to: &watch::Sender<Arc<Policies>>,
) -> Option<String> {
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
            None
        }
        Err(error) => {
            let why = machinist_base::error_chain::chain(&error);
            tracing::warn!("keeping the last valid disruption policies: {why}");
            Some(why)
        }
    }
}

/// Rebuilds the reconciler's conduct whenever settings or policies change; policies of the cluster
/// take precedence over those of the file.
pub(super) fn watch_options(
    read: &SettingsReceivers,
    mut of_the_cluster: watch::Receiver<Option<Arc<Policies>>>,
    capabilities: Capabilities,
    tasks: &Tasks,
) -> watch::Receiver<ReconcilerOptions> {
    let (mut settings, mut policies) = (read.settings.clone(), read.policies.clone());
    let mut heard = (settings.clone(), policies.clone(), of_the_cluster.clone());
    let mut now = move || {
        let cluster = of_the_cluster.borrow_and_update().clone();
        let file = Arc::clone(&policies.borrow_and_update());
        let policies = cluster.unwrap_or(file);
        super::reconciler_options(&settings.borrow_and_update(), capabilities, policies)
    };
    let (to, conducts) = watch::channel(now());
    let stop = tasks.token();
    tasks.spawn("conduct", async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                // All of these are cancel-safe: a missed change stays marked as unseen.
                changed = heard.0.changed() => if changed.is_err() { return },
                changed = heard.1.changed() => if changed.is_err() { return },
                // Without a cluster this channel never changes.
                Ok(()) = heard.2.changed() => {}
            }
            to.send_replace(now());
        }
    });
    conducts
}

fn offer(
    live: &mut ReloadableSettings,
    read: Result<Settings, LoadError>,
    to: &watch::Sender<Arc<Settings>>,
) {
    match live.offer(read) {
        ReloadOutcome::Same => {}
        ReloadOutcome::Taken(keys) => {
            tracing::info!(keys = keys.join(", "), "settings changed");
            for key in keys.iter().filter(|key| STARTUP_ONLY_KEYS.contains(key)) {
                tracing::warn!("{key} takes effect after an agent restart");
            }
            to.send_replace(Arc::clone(live.settings()));
        }
        ReloadOutcome::Refused(why) => {
            tracing::warn!("keeping the previous settings: {why}");
        }
    }
}

/// Waits for a change; forever if nothing can be watched.
async fn changed(watch: Option<&mut Watch>) {
    match watch {
        Some(watch) => drop(watch.next().await),
        None => std::future::pending().await,
    }
}

/// Watches the directory, its drop-ins, and every parent directory, because each may be replaced or
/// may not exist yet.
fn arm(place: &SettingsLocation) -> Option<Watch> {
    let mut watch = place.root.watch().ok()?;
    let mut armed = watch.add(&place.dir).is_ok();
    for above in place.dir.ancestors() {
        armed |= watch.add_names(&above).is_ok();
    }
    if let Ok(drop_ins) = place.dir.join("machinist.yaml.d") {
        // It usually does not exist; its creation is observed in the parent directory.
        let _ = watch.add(&drop_ins);
    }
    armed.then_some(watch)
}
