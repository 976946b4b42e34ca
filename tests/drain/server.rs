//! A fake of the API server: pods that end when they are evicted, a watch, and a script for
//! everything else.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use machinist_base::clock::Clock;
use machinist_drain::{
    DisruptionBudget, EvictionCallError, EvictionError, Grace, PodId, StatusCause,
    eviction::{EvictionMethod, PodApi, PodChange, PodList, PodWatchStream},
};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::drain::support::{Made, at};

/// A recorded request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Call {
    List,
    Watch(String),
    Evict(String, EvictionMethod),
    Delete(String, EvictionMethod),
    Budgets(String),
    DaemonSet(String),
}

#[derive(Default)]
struct State {
    pods: BTreeMap<String, Made>,
    version: u64,
    history: Vec<(u64, PodChange)>,
    watchers: Vec<mpsc::UnboundedSender<Result<PodChange, EvictionCallError>>>,
    budgets: Vec<DisruptionBudget>,
    daemon_sets: BTreeSet<String>,
    answers: BTreeMap<String, VecDeque<EvictionError>>,
    always: BTreeMap<String, EvictionError>,
    lists: VecDeque<EvictionError>,
    log: Vec<(Duration, Call)>,
    away: bool,
    hangs: bool,
    silent: bool,
    in_flight: usize,
    most_in_flight: usize,
    /// How long pods take to end; with `None` they never do.
    ends_after: Option<Duration>,
    latency: Duration,
}

/// Cheap to clone; all clones share one state.
#[derive(Clone)]
pub(crate) struct Server {
    state: Arc<Mutex<State>>,
    began: Instant,
}

impl Server {
    /// Within a paused runtime. Pods end two seconds after their eviction.
    pub(crate) fn with(pods: impl IntoIterator<Item = Made>) -> Self {
        let server = Self {
            state: Arc::default(),
            began: Instant::now(),
        };
        server.state().ends_after = Some(Duration::from_secs(2));
        server.state().latency = Duration::from_millis(5);
        for pod in pods {
            server.put(pod);
        }
        server
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The wall clock, which follows the runtime's.
    pub(crate) fn clock(&self) -> Clock {
        let began = self.began;
        Clock::from_fn(move || at(0) + jiff::SignedDuration::try_from(began.elapsed()).unwrap())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn put(&self, pod: Made) {
        let mut state = self.state();
        let seen = pod.pod();
        state.pods.insert(seen.id.uid.clone(), pod);
        state.tell(|version| PodChange::Applied(Box::new(seen), version));
    }

    pub(crate) fn remove(&self, uid: &str) {
        let mut state = self.state();
        if let Some(pod) = state.pods.remove(uid) {
            state.tell(|version| PodChange::Deleted(pod.pod().id, version));
        }
    }

    pub(crate) fn change(&self, uid: &str, change: impl FnOnce(Made) -> Made) {
        let pod = self.state().pods.get(uid).cloned();
        if let Some(pod) = pod {
            self.put(change(pod));
        }
    }

    pub(crate) fn budget(&self, budget: DisruptionBudget) {
        self.state().budgets.retain(|old| old.name != budget.name);
        self.state().budgets.push(budget);
    }
    pub(crate) fn daemon_set(&self, name: &str) {
        self.state().daemon_sets.insert(name.to_owned());
    }
    /// The next responses to evictions of a pod; then it is evicted.
    pub(crate) fn answers(&self, pod: &str, answers: impl IntoIterator<Item = EvictionError>) {
        let answers = answers.into_iter().collect();
        self.state().answers.insert(pod.to_owned(), answers);
    }
    /// The response to every eviction of a pod, until it is lifted.
    pub(crate) fn always(&self, pod: &str, answer: EvictionError) {
        self.state().always.insert(pod.to_owned(), answer);
    }
    pub(crate) fn clear_response(&self, pod: &str) {
        self.state().always.remove(pod);
    }
    pub(crate) fn lists(&self, answers: impl IntoIterator<Item = EvictionError>) {
        self.state().lists.extend(answers);
    }
    pub(crate) fn pods_end_after(&self, time: Option<Duration>) {
        self.state().ends_after = time;
    }
    pub(crate) fn hangs(&self, hangs: bool) {
        self.state().hangs = hangs;
    }

    /// The server becomes unreachable, and open requests fail.
    pub(crate) fn become_unreachable(&self) {
        let mut state = self.state();
        state.away = true;
        for watcher in state.watchers.drain(..) {
            let _ = watcher.send(Err(EvictionCallError::NoAnswer("broken pipe".into())));
        }
    }
    pub(crate) fn become_reachable(&self) {
        self.state().away = false;
    }
    /// Watches end, as they do after a while.
    pub(crate) fn ends_watches(&self) {
        self.state().watchers.clear();
    }
    /// Watches fail: the resource version to continue from is too old.
    pub(crate) fn forgets(&self) {
        for watcher in self.state().watchers.drain(..) {
            let _ = watcher.send(Err(EvictionCallError::from(refusal(410, "too old"))));
        }
    }

    /// Watches stay open and deliver no events from now on.
    pub(crate) fn set_watch_silent(&self, silent: bool) {
        self.state().silent = silent;
    }

    pub(crate) fn log(&self) -> Vec<(Duration, Call)> {
        self.state().log.clone()
    }
    /// The times at which a pod's eviction was requested.
    pub(crate) fn evictions(&self, pod: &str) -> Vec<Duration> {
        let mine = |call: &Call| matches!(call, Call::Evict(name, _) if name == pod);
        let log = self.log().into_iter();
        log.filter(|(_, call)| mine(call))
            .map(|(at, _)| at)
            .collect()
    }
    pub(crate) fn deletions(&self) -> Vec<(Duration, String, EvictionMethod)> {
        let log = self.log().into_iter();
        log.filter_map(|(at, call)| match call {
            Call::Delete(pod, how) => Some((at, pod, how)),
            _ => None,
        })
        .collect()
    }
    /// Evictions and deletions.
    pub(crate) fn writes(&self) -> usize {
        let write = |call: &Call| matches!(call, Call::Evict(..) | Call::Delete(..));
        self.log().iter().filter(|(_, call)| write(call)).count()
    }
    pub(crate) fn most_in_flight(&self) -> usize {
        self.state().most_in_flight
    }
    pub(crate) fn in_flight(&self) -> usize {
        self.state().in_flight
    }

    /// Common handling of every call: it is recorded, delayed, or left without an answer.
    async fn called(&self, call: Call) -> Result<(), EvictionCallError> {
        let latency = {
            let mut state = self.state();
            state.log.push((self.began.elapsed(), call));
            if state.away {
                return Err(EvictionCallError::NoAnswer("connection refused".into()));
            }
            state.latency
        };
        if self.state().hangs {
            std::future::pending::<()>().await;
        }
        sleep(latency).await;
        Ok(())
    }

    async fn ask(
        &self,
        call: Call,
        pod: &PodId,
        how: EvictionMethod,
    ) -> Result<(), EvictionCallError> {
        {
            let mut state = self.state();
            state.in_flight += 1;
            state.most_in_flight = state.most_in_flight.max(state.in_flight);
        }
        let evict = matches!(call, Call::Evict(..));
        let mut answer = self.called(call).await;
        self.state().in_flight -= 1;
        if answer.is_ok() {
            answer = self.judge(pod, evict).map_err(EvictionCallError::from);
        }
        answer?;
        if !how.dry_run {
            self.end(pod, how);
        }
        Ok(())
    }

    fn judge(&self, pod: &PodId, evict: bool) -> Result<(), EvictionError> {
        let mut state = self.state();
        let state = &mut *state;
        if let Some(queue) = state.answers.get_mut(&pod.name).filter(|_| evict)
            && let Some(refused) = queue.pop_front()
        {
            return Err(refused);
        }
        if let Some(refused) = state.always.get(&pod.name).filter(|_| evict) {
            return Err(refused.clone());
        }
        let namesake = |one: &Made| one.pod().id.to_string() == pod.to_string();
        match state.pods.contains_key(&pod.uid) {
            true => Ok(()),
            false if state.pods.values().any(namesake) => Err(refusal(409, "UID in precondition")),
            false => Err(refusal(404, "not found")),
        }
    }

    /// The kubelet's part: ends a pod.
    fn end(&self, pod: &PodId, how: EvictionMethod) {
        let seen = self.state().pods.get(&pod.uid).map(Made::pod);
        let Some(seen) = seen.filter(|pod| !pod.is_terminating()) else {
            return;
        };
        let grace = match how.grace {
            Grace::Own => seen.grace,
            Grace::Seconds(seconds) => Duration::from_secs(seconds.get().into()),
        };
        let deadline = self.clock().now() + jiff::SignedDuration::try_from(grace).unwrap();
        let uid = pod.uid.clone();
        self.change(&uid, |pod| {
            pod.deleting_by(deadline)
                .with(json!({"metadata": {"deletionGracePeriodSeconds": grace.as_secs()}}))
        });
        let Some(after) = self.state().ends_after else {
            return;
        };
        let server = self.clone();
        tokio::spawn(async move {
            sleep(after).await;
            match seen.finalizers.is_empty() {
                true => server.remove(&uid),
                false => server.change(&uid, Made::ended),
            }
        });
    }
}

impl State {
    fn tell(&mut self, change: impl FnOnce(String) -> PodChange) {
        self.version += 1;
        let change = change(self.version.to_string());
        if self.silent {
            return;
        }
        self.history.push((self.version, change.clone()));
        self.watchers
            .retain(|watcher| watcher.send(Ok(change.clone())).is_ok());
    }
}

impl PodApi for Server {
    async fn list(&self, _: &str) -> Result<PodList, EvictionCallError> {
        self.called(Call::List).await?;
        let mut state = self.state();
        if let Some(refused) = state.lists.pop_front() {
            return Err(EvictionCallError::from(refused));
        }
        Ok(PodList {
            pods: state.pods.values().map(Made::pod).collect(),
            version: state.version.to_string(),
        })
    }

    async fn watch(&self, _: &str, version: &str) -> Result<PodWatchStream, EvictionCallError> {
        self.called(Call::Watch(version.to_owned())).await?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let from: u64 = version.parse().unwrap();
        let mut state = self.state();
        for (_, change) in state.history.iter().filter(|(version, _)| *version > from) {
            sender.send(Ok(change.clone())).unwrap();
        }
        state.watchers.push(sender);
        Ok(Box::pin(UnboundedReceiverStream::new(receiver)))
    }

    async fn evict(&self, pod: &PodId, how: EvictionMethod) -> Result<(), EvictionCallError> {
        self.ask(Call::Evict(pod.name.clone(), how), pod, how).await
    }

    async fn delete(&self, pod: &PodId, how: EvictionMethod) -> Result<(), EvictionCallError> {
        self.ask(Call::Delete(pod.name.clone(), how), pod, how)
            .await
    }

    async fn budgets(&self, namespace: &str) -> Result<Vec<DisruptionBudget>, EvictionCallError> {
        self.called(Call::Budgets(namespace.to_owned())).await?;
        let all = self.state().budgets.clone();
        Ok(all
            .into_iter()
            .filter(|one| one.namespace == namespace)
            .collect())
    }

    async fn daemon_set(&self, _: &str, name: &str) -> Result<bool, EvictionCallError> {
        self.called(Call::DaemonSet(name.to_owned())).await?;
        Ok(self.state().daemon_sets.contains(name))
    }
}

pub(crate) fn refusal(code: u16, message: &str) -> EvictionError {
    EvictionError {
        code,
        message: message.to_owned(),
        object: "a pod".to_owned(),
        reason: match code {
            404 => "NotFound",
            410 => "Expired",
            _ => "",
        }
        .to_owned(),
        ..EvictionError::default()
    }
}

/// A refusal with a cause.
pub(crate) fn because(code: u16, kind: &str, message: &str) -> EvictionError {
    EvictionError {
        causes: vec![StatusCause {
            kind: kind.to_owned(),
            message: message.to_owned(),
        }],
        ..refusal(code, message)
    }
}

/// The response to an eviction that a PodDisruptionBudget refuses.
pub(crate) fn budget_refusal() -> EvictionError {
    because(
        429,
        "DisruptionBudget",
        "The disruption budget web needs 2 healthy pods and has 2",
    )
}
