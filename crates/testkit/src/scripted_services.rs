//! A service manager that follows a script.

use std::{
    collections::BTreeMap,
    future::{Future, pending},
    sync::{Arc, Mutex},
    time::Duration,
};

use machinist_base::reason::Reason;
use machinist_plan::{ActionKind, UnitFacts};
use machinist_update::service_port::{
    InhibitGuard, RebootKind, RebootMethod, ServiceError, Services, StartupState, Userspace,
};

/// The requests to the manager, and its answers.
#[derive(Clone, Default)]
pub struct Script(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    asked: Vec<String>,
    heard: Arc<tokio::sync::Notify>,
    failing: BTreeMap<String, (Reason, bool)>,
    invocations: BTreeMap<String, String>,
    failed_units: Vec<String>,
    startup: Option<StartupState>,
    states: BTreeMap<String, String>,
    reboots_end: bool,
    /// Each clone is a lock that is held.
    lock: Arc<()>,
    hanging: std::collections::BTreeSet<String>,
    userspace: Option<Userspace>,
    gone_until: Option<tokio::time::Instant>,
}

impl Script {
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        what(&mut self.0.lock().unwrap())
    }

    /// The requests so far, in order: `daemon-reload`, `Restart x.service`, `reboot Logind`.
    pub fn asked(&self) -> Vec<String> {
        self.with(|state| state.asked.clone())
    }

    /// Makes a request fail from now on.
    pub fn fails(&self, request: &str, reason: Reason, retryable: bool) {
        self.with(|state| {
            state
                .failing
                .insert(request.to_owned(), (reason, retryable))
        });
    }

    /// Makes a request hang until it is healed.
    pub fn hangs(&self, request: &str) {
        self.with(|state| state.hanging.insert(request.to_owned()));
    }

    /// Makes it succeed again.
    pub fn stop_failing(&self, request: &str) {
        self.with(|state| {
            state.failing.remove(request);
            state.hanging.remove(request);
        });
    }

    /// Waits until this was requested.
    pub async fn wait_for_requests(&self, request: &str) {
        self.until_asked_times(request, 1).await;
    }

    /// Waits until a reboot was requested, by any method.
    pub async fn until_reboot(&self) {
        let ordered = |asked: &[String]| asked.iter().any(|asked| asked.starts_with("reboot"));
        self.until("a reboot", ordered).await;
    }

    /// Waits until this was requested `times` times.
    pub async fn until_asked_times(&self, request: &str, times: usize) {
        let often = |asked: &[String]| asked.iter().filter(|it| *it == request).count() >= times;
        self.until(request, often).await;
    }

    /// Waits for up to two minutes of real time, independent of a paused clock.
    async fn until(&self, what: &str, enough: impl Fn(&[String]) -> bool) {
        let heard = self.with(|state| Arc::clone(&state.heard));
        let begun = std::time::Instant::now();
        loop {
            let next = heard.notified();
            tokio::pin!(next);
            next.as_mut().enable();
            let asked = self.asked();
            if enough(&asked) {
                return;
            }
            let patience = begun.elapsed() < Duration::from_secs(120);
            assert!(patience, "{what} was not requested, but {asked:?}");
            let _ = tokio::time::timeout(Duration::from_secs(1), next).await;
        }
    }

    /// The unit was restarted and has this invocation id.
    pub fn invoked(&self, unit: &str, invocation: &str) {
        self.with(|state| {
            state
                .invocations
                .insert(unit.to_owned(), invocation.to_owned())
        });
    }

    pub fn failed(&self, units: &[&str]) {
        let units = units.iter().map(|unit| (*unit).to_owned()).collect();
        self.with(|state| state.failed_units = units);
    }

    /// How many shutdown inhibitor locks are held.
    pub fn locks_held(&self) -> usize {
        self.with(|state| Arc::strong_count(&state.lock) - 1)
    }

    /// The progress of the boot from now on.
    pub fn is_at(&self, startup: StartupState) {
        self.with(|state| state.startup = Some(startup));
    }

    /// The start time of userspace, and systemd's count of soft reboots, if it has one.
    pub fn userspace_is(&self, started: u64, soft_reboots: Option<u32>) {
        let userspace = Userspace {
            started,
            soft_reboots,
        };
        self.with(|state| state.userspace = Some(userspace));
    }

    /// The unit's state from now on; every other unit is active.
    pub fn unit_is(&self, unit: &str, active: &str) {
        self.with(|state| state.states.insert(unit.to_owned(), active.to_owned()));
    }

    /// An accepted reboot is cancelled instead of carried out.
    pub fn reboots_do_not_happen(&self) {
        self.with(|state| state.reboots_end = true);
    }

    /// The manager is unreachable for this long.
    pub fn be_unreachable_for(&self, time: Duration) {
        let then = tokio::time::Instant::now() + time;
        self.with(|state| state.gone_until = Some(then));
    }

    fn there(&self) -> Result<(), ServiceError> {
        let until = self.with(|state| state.gone_until);
        match until.is_some_and(|until| tokio::time::Instant::now() < until) {
            true => Err(error(Reason::ManagerUnreachable, true)),
            false => Ok(()),
        }
    }

    fn ask(&self, request: String) -> Result<(), ServiceError> {
        self.there()?;
        self.with(|state| {
            let answer = state.failing.get(&request).copied();
            state.asked.push(request);
            state.heard.notify_waiters();
            match answer {
                Some((reason, retryable)) => Err(error(reason, retryable)),
                None => Ok(()),
            }
        })
    }
}

fn error(reason: Reason, retryable: bool) -> ServiceError {
    ServiceError {
        reason,
        retryable,
        source: "requested by the test".into(),
    }
}

impl Services for Script {
    async fn invocation(&self, unit: &str) -> Result<Option<String>, ServiceError> {
        self.there()?;
        Ok(self.with(|state| state.invocations.get(unit).cloned()))
    }

    async fn daemon_reload(&self) -> Result<(), ServiceError> {
        self.ask("daemon-reload".to_owned())
    }

    async fn act(
        &self,
        kind: ActionKind,
        unit: &str,
        _: Duration,
        _: Duration,
    ) -> Result<(), ServiceError> {
        let request = format!("{kind:?} {unit}");
        let answer = self.ask(request.clone());
        if answer.is_ok() {
            self.with(|state| match kind {
                ActionKind::Stop => drop(state.states.insert(unit.to_owned(), "inactive".into())),
                ActionKind::Restart => state
                    .states
                    .retain(|name, is| name != unit || is != "inactive"),
                _ => {}
            });
        }
        while self.with(|state| state.hanging.contains(&request)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        answer
    }

    async fn startup(&self) -> Result<StartupState, ServiceError> {
        self.there()?;
        Ok(self.with(|state| state.startup.unwrap_or(StartupState::Finished)))
    }

    async fn failed_units(&self) -> Result<Vec<String>, ServiceError> {
        self.there()?;
        Ok(self.with(|state| state.failed_units.clone()))
    }

    async fn unit_facts(
        &self,
        names: &[String],
    ) -> Result<BTreeMap<String, UnitFacts>, ServiceError> {
        self.there()?;
        let states = self.with(|state| state.states.clone());
        let running = |name: &String| {
            let active = states.get(name).map_or("active", String::as_str);
            let facts = UnitFacts {
                load: Some("loaded".to_owned()),
                active: Some(active.to_owned()),
                ..UnitFacts::default()
            };
            (name.clone(), facts)
        };
        Ok(names.iter().map(running).collect())
    }

    async fn hold_off_shutdown(&self, _: &str) -> Option<InhibitGuard> {
        Some(Box::new(self.with(|state| Arc::clone(&state.lock))))
    }

    async fn userspace(&self) -> Result<Option<Userspace>, ServiceError> {
        self.there()?;
        Ok(self.with(|state| state.userspace))
    }

    async fn reboot(
        &self,
        kind: RebootKind,
        method: RebootMethod,
        _: &str,
    ) -> Result<(), ServiceError> {
        // From systemd 257 on our own lock would block the reboot.
        assert_eq!(self.locks_held(), 0, "machinist's own inhibitor lock");
        self.ask(match kind {
            RebootKind::Full => format!("reboot {method:?}"),
            RebootKind::Soft => format!("soft reboot {method:?}"),
        })
    }

    fn reboot_over(&self, _: Duration) -> impl Future<Output = ServiceError> + Send {
        let ends = self.with(|state| state.reboots_end);
        async move {
            if !ends {
                pending::<()>().await;
            }
            error(Reason::RebootCancelled, true)
        }
    }
}
