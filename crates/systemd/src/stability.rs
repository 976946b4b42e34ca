//! Observes a unit for a while after its job is done, because a service may still fail a moment
//! later.

use std::time::Duration;

use tokio::time::Instant;
use tokio_stream::StreamExt as _;

use super::{
    Systemd, SystemdError, UnitState,
    connection::{LiveConnection, while_receiving},
    error::SystemdErrorKind,
    manager::{path_of, properties_at, state_at},
};

impl Systemd {
    /// Observes `unit` for `span` and returns its final state; returns early if it has died since
    /// `since` ([`UnitState::has_died_since`]), its state right after the job.
    pub async fn observe_stability(
        &self,
        unit: &str,
        span: Duration,
        since: &UnitState,
    ) -> Result<UnitState, SystemdError> {
        let until = Instant::now() + span;
        let settled = async {
            loop {
                let live = self.link.to_manager().await?;
                // After a broken connection, reconnect and read the unit's state again.
                match watch(&live, unit, until, since).await {
                    Err(SystemdErrorKind::ConnectionLost(_)) if Instant::now() < until => {}
                    settled => break settled,
                }
            }
        };
        let settled = settled.await;
        settled.map_err(SystemdError::during(format!("watch {unit}")))
    }
}

async fn watch(
    live: &LiveConnection,
    unit: &str,
    until: Instant,
    since: &UnitState,
) -> Result<UnitState, SystemdErrorKind> {
    let path = path_of(live, unit).await?;
    let properties = properties_at(live.connection(), &path).await?;
    let mut changes = properties.receive_properties_changed().await?;
    live.subscribe().await?;
    loop {
        let mut changed = false;
        let look = state_at(live, &path);
        let state = while_receiving(look, &mut changes, |_| changed = true).await?;
        if state.has_died_since(since) || Instant::now() >= until {
            return Ok(state);
        }
        if changed {
            continue;
        }
        tokio::select! {
            // Safe to drop: a change that was not received stays in the queue.
            change = changes.next() => {
                if change.is_none() {
                    return Err(SystemdErrorKind::ConnectionLost("it ended".into()));
                }
            }
            // Safe to drop: the deadline is a point in time, and one last read follows.
            () = tokio::time::sleep_until(until) => {}
        }
    }
}
