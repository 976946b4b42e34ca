//! The conditions of a MachineConfigNode about images that are pulled in advance.

use jiff::Timestamp;

use machinist_kube_api::{
    ImageSetCondition, MAX_REASON_BYTES, NodeCondition, NodeImageSets, Progress, truncate_at_char,
};
use machinist_plan::escape_line;

/// Message of a condition without a failure.
const NO_FAILURE: &str = "no failure";

/// Both conditions. The transition times of those whose status is as in `before` are kept.
pub(super) fn conditions(
    images: &NodeImageSets,
    before: &[NodeCondition],
    now: Timestamp,
) -> Vec<NodeCondition> {
    let one = |kind: ImageSetCondition| {
        let (is_true, message) = match kind {
            ImageSetCondition::PinnedImageSetsProgressing => {
                (images.is_progressing, images.progress.as_str())
            }
            ImageSetCondition::PinnedImageSetsDegraded => (
                images.failure.is_some(),
                images.failure.as_deref().unwrap_or(NO_FAILURE),
            ),
        };
        let status = match is_true {
            true => Progress::True,
            false => Progress::False,
        };
        let mut known = before.iter();
        let same = known.find(|it| it.kind == kind.as_str() && it.status == status);
        NodeCondition {
            kind: kind.as_str().to_owned(),
            status,
            reason: kind.reason(is_true).to_owned(),
            message: truncate_at_char(&escape_line(message), MAX_REASON_BYTES).to_owned(),
            last_transition_time: same.map_or(now, |it| it.last_transition_time),
        }
    };
    ImageSetCondition::ALL.map(one).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_the_message_of_the_degraded_condition() {
        let then = Timestamp::from_second(1_000).unwrap();
        let now = Timestamp::from_second(2_000).unwrap();
        let idle = NodeImageSets::default();
        let before = conditions(&idle, &[], then);
        assert_eq!(before.len(), 2);
        assert!(before.iter().all(|it| it.status == Progress::False));
        assert!(before.iter().all(|it| it.reason == "AsExpected"));
        let failing = NodeImageSets {
            failure: Some("NoSpace: a\nb".to_owned()),
            ..idle
        };
        let after = conditions(&failing, &before, now);
        let shown = |at: usize| (after[at].status, after[at].last_transition_time);
        assert_eq!(shown(0), (Progress::False, then));
        assert_eq!(shown(1), (Progress::True, now));
        assert_eq!(after[1].reason, "PrefetchFailed");
        assert_eq!(after[1].message, "NoSpace: a\u{fffd}b");
    }
}
