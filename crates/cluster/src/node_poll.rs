//! Reads what depends on our Node: when the Node changes, after an interval, and again after a
//! failure.

use std::time::Duration;

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use super::node::{NodeSnapshot, OwnNode};
use machinist_kube_api::NodeView;

/// Something that is read from the API server and depends on our Node.
pub trait NodePoll: Send {
    /// The values of the Node on which it depends.
    type Input: PartialEq + Send + Sync;
    /// The result of a request.
    type Answer: Send;

    /// The values of this Node.
    fn input(node: &NodeView) -> Self::Input;

    /// Sends the request. Must be cancel-safe: it ends early when the input changes.
    fn read(&self, input: &Self::Input) -> impl Future<Output = Self::Answer> + Send;

    /// Handles the result, and returns when to read again if the input stays; none means never.
    /// `failures` is zero for a new input.
    fn handle(
        &mut self,
        input: &Self::Input,
        answer: Self::Answer,
        failures: &mut u32,
    ) -> impl Future<Output = Option<Duration>> + Send;
}

/// Reads until `stop`. The watch on the Node itself runs in another task; nothing is read before it
/// has seen the Node, and its last state counts while the Node does not exist.
pub async fn poll<P: NodePoll>(mut poll: P, node: &OwnNode, stop: CancellationToken) {
    let mut snapshots = node.snapshots();
    let mut known: Option<P::Input> = None;
    let mut failures = 0;
    loop {
        let input = snapshots.borrow_and_update().node.as_deref().map(P::input);
        if input.is_some() && input != known {
            (known, failures) = (input, 0);
        }
        let wait = match &known {
            None => None,
            Some(input) => tokio::select! {
                () = stop.cancelled() => return,
                // Cancel-safe: the input is compared again in the next round.
                () = changed::<P>(&mut snapshots, Some(input)) => continue,
                // Cancel-safe by its contract.
                answer = poll.read(input) => poll.handle(input, answer, &mut failures).await,
            },
        };
        tokio::select! {
            () = stop.cancelled() => return,
            // Cancel-safe, as above.
            () = changed::<P>(&mut snapshots, known.as_ref()) => {}
            // Cancel-safe: it only waits.
            () = elapsed(wait) => {}
        }
    }
}

/// Waits until the Node has another input than `known`.
async fn changed<P: NodePoll>(
    snapshots: &mut watch::Receiver<NodeSnapshot>,
    known: Option<&P::Input>,
) {
    let differs = |snapshot: &NodeSnapshot| {
        let node = snapshot.node.as_deref();
        node.is_some_and(|node| Some(&P::input(node)) != known)
    };
    if snapshots.wait_for(differs).await.is_err() {
        std::future::pending().await
    }
}

async fn elapsed(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => std::future::pending().await,
    }
}
