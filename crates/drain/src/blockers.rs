//! What a drain waits for, per pod.

use std::time::Duration;

use jiff::Timestamp;

use super::{
    BudgetForecast, BudgetStatus, DisruptionBudget, Pod, PodId, pod_classification::signed,
};
use machinist_base::reason::Reason;

/// Why a pod is still on the node.
#[derive(Clone, Debug, PartialEq)]
pub enum WaitReason {
    /// A disruption budget does not allow its eviction now.
    Budget(ControllerNames, Option<BudgetStatus>),
    /// A disruption budget can never allow its eviction in its current form.
    Never(ControllerNames, Option<BudgetStatus>),
    /// Several budgets match it, so that the API server refuses to evict it.
    Several(Vec<String>),
    /// The API server is overloaded.
    Throttled,
    /// Its namespace is terminating, and the API server accepts no eviction there.
    NamespaceEnds,
    /// Its eviction was refused with this message.
    Refused(String),
    /// It is terminating, within its grace period.
    Ending,
    /// It has ended, but these finalizers keep its object.
    Finalizers(Vec<String>),
    /// Its grace period is over, but it has not ended.
    Overdue,
    /// Its controller has recreated pods on this node repeatedly.
    ComesBack(String),
}

/// A disruption budget and its rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerNames {
    /// Its name, in the pod's namespace; empty if only the server's message is known.
    pub budget: String,
    /// Its rule as written, or the API server's message.
    pub rule: String,
    /// Whether the pod is running but not ready.
    pub unready: bool,
}

/// One pod, and what it waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct PodWait {
    /// The pod.
    pub pod: PodId,
    /// What it waits for.
    pub what: WaitReason,
    /// Since when it waits for that.
    pub since: Timestamp,
    /// When it must have ended, if that is known.
    pub expected_end: Option<Timestamp>,
    /// The time limit of the drain, if it is before the expected end.
    pub too_late_for: Option<Timestamp>,
}

impl WaitReason {
    /// How long after its deadline a pod still counts as terminating: the kubelet must report its
    /// end, and the API server must store it.
    pub const OVERDUE_AFTER: Duration = Duration::from_secs(30);

    /// The blocker that follows from a budget's counts; none if no budget blocks the pod.
    pub fn from_prospect(pod: &Pod, prospect: &BudgetForecast<'_>) -> Option<Self> {
        let names = |budget: &DisruptionBudget| ControllerNames {
            budget: budget.name.clone(),
            rule: budget.rule.clone(),
            unready: !pod.ready,
        };
        match prospect {
            BudgetForecast::Free | BudgetForecast::Allowed(_) => None,
            BudgetForecast::Later(budget) => Some(Self::Budget(names(budget), budget.counts)),
            BudgetForecast::Never(budget) => Some(Self::Never(names(budget), budget.counts)),
            BudgetForecast::Several(budgets) => {
                let names = budgets.iter().map(|budget| budget.name.clone());
                Some(Self::Several(names.collect()))
            }
        }
    }

    /// What a terminating pod waits for.
    pub fn of_terminating(pod: &Pod, now: Timestamp) -> Self {
        let late = pod
            .deleting
            .is_some_and(|deadline| now.duration_since(deadline) > signed(Self::OVERDUE_AFTER));
        match () {
            // While containers run, the kubelet is responsible, even if finalizers keep the object,
            // too.
            () if !pod.finalizers.is_empty() && pod.ended => {
                Self::Finalizers(pod.finalizers.clone())
            }
            () if late => Self::Overdue,
            () => Self::Ending,
        }
    }

    /// The stable code.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Budget(..) => Reason::DrainBlockedByBudget,
            Self::Never(..) => Reason::DrainBudgetNeverAllows,
            Self::Several(_) => Reason::DrainSeveralBudgets,
            Self::Throttled => Reason::DrainThrottled,
            Self::NamespaceEnds => Reason::NamespaceTerminating,
            Self::Refused(_) => Reason::DrainEvictionRefused,
            Self::Ending => Reason::PodTerminating,
            Self::Finalizers(_) => Reason::DrainHeldByFinalizer,
            Self::Overdue => Reason::PodTerminationOverdue,
            Self::ComesBack(_) => Reason::PodRescheduledOnNode,
        }
    }
}

impl PodWait {
    /// Whether an operator should look at it, as opposed to a wait that only takes time.
    pub fn blocks(&self) -> bool {
        self.too_late_for.is_some()
            || !matches!(self.what, WaitReason::Ending | WaitReason::Throttled)
    }

    /// One sentence for people.
    pub fn sentence(&self) -> String {
        let Self { pod, .. } = self;
        match &self.what {
            WaitReason::Budget(names, counts) => match counts {
                Some(counts) => format!(
                    "{pod}: eviction blocked by PodDisruptionBudget {}: {counts}{}",
                    describe(names),
                    advice(names),
                ),
                None => format!(
                    "{pod}: eviction blocked by PodDisruptionBudget {}",
                    describe(names)
                ),
            },
            WaitReason::Never(names, counts) => {
                let counts = counts.unwrap_or_default();
                format!(
                    "{pod} can never be evicted: PodDisruptionBudget {} requires {} of {} pods; allow a disruption, for example maxUnavailable 1{}",
                    describe(names),
                    counts.desired,
                    counts.expected,
                    advice(names),
                )
            }
            WaitReason::Several(budgets) => format!(
                "{pod} cannot be evicted: selected by {} PodDisruptionBudgets ({}), at most one is supported",
                budgets.len(),
                budgets.join(", ")
            ),
            WaitReason::Throttled => {
                format!("{pod}: eviction throttled by the API server, retrying")
            }
            WaitReason::NamespaceEnds => {
                format!("{pod}: waiting for its namespace to terminate")
            }
            WaitReason::Refused(words) => format!("{pod}: eviction rejected: {words}"),
            WaitReason::Ending => self.ending(),
            WaitReason::Finalizers(names) => format!(
                "{pod} has terminated, but finalizer {} keeps its object; the owner of the finalizer must remove it",
                names.join(", ")
            ),
            WaitReason::ComesBack(owner) => format!(
                "{pod} was recreated: {owner} places pods on this node although it is cordoned; scale it down, or remove nodeName and the toleration for unschedulable nodes from its template"
            ),
            WaitReason::Overdue => match self.expected_end {
                Some(end) => format!("{pod} did not terminate by {}", second(end)),
                None => format!("{pod} did not terminate within its grace period"),
            },
        }
    }

    fn ending(&self) -> String {
        let Self { pod, .. } = self;
        match (self.expected_end, self.too_late_for) {
            (Some(end), Some(limit)) => format!(
                "{pod} may terminate as late as {}, after the drain timeout ({})",
                second(end),
                second(limit)
            ),
            (Some(end), None) => format!("{pod} is terminating, by {} at the latest", second(end)),
            (None, _) => format!("{pod} is terminating"),
        }
    }
}

/// A budget and its rule, as text.
fn describe(names: &ControllerNames) -> String {
    match (names.budget.as_str(), names.rule.as_str()) {
        ("", rule) => format!("({rule})"),
        (name, "") => name.to_owned(),
        (name, rule) => format!("{name} ({rule})"),
    }
}

/// A hint that helps to evict unready pods.
fn advice(names: &ControllerNames) -> &'static str {
    match names.unready {
        true => "; the pod is not ready: set unhealthyPodEvictionPolicy to AlwaysAllow to evict it",
        false => "",
    }
}

/// A time truncated to whole seconds.
fn second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
