//! Waits until the Node's allocatable resources match the kubelet's devices: schedulers use the
//! Node, which the kubelet updates some seconds after it has its devices again.

use std::collections::BTreeMap;

use tokio::time::{Instant, sleep_until};

use super::{NodeContext, device_holders::advertised_counts};

impl NodeContext {
    /// Waits until our Node counts the advertised devices, up to the limit of the gate; then
    /// returns a message about the missing ones. None if there is nothing to report.
    pub(super) async fn wait_for_node_allocatable(&self) -> Option<String> {
        let devices = self.devices.as_ref()?;
        let until = Instant::now() + self.settings.borrow().devices.return_limit;
        let mut snapshots = self.node.snapshots();
        loop {
            let node = snapshots.borrow_and_update().node.clone()?;
            let offers = advertised_counts(&devices.status_now());
            let missing = missing(&offers, &node.status.allocatable);
            if missing.is_empty() {
                return None;
            }
            tokio::select! {
                // Both are cancel-safe: a change stays marked as unseen, and the deadline is
                // absolute.
                changed = snapshots.changed() => if changed.is_err() { return None },
                () = sleep_until(until) => {
                    let missing = missing.join(", ");
                    tracing::warn!("Node reports fewer allocatable devices than advertised: {missing}");
                    return Some(missing);
                }
            }
        }
    }
}

/// Resources of which the Node counts fewer devices than advertised. A count that cannot be parsed
/// is accepted.
fn missing(offers: &[(String, usize)], counted: &BTreeMap<String, String>) -> Vec<String> {
    let short = |(name, advertised): &(String, usize)| {
        let counts = match counted.get(name) {
            Some(text) => text.parse::<usize>().ok()?,
            None => 0,
        };
        (counts < *advertised).then(|| format!("{counts} of {advertised} {name}"))
    };
    offers.iter().filter_map(short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocatable_below_the_advertised_count_is_waited_for() {
        let counted = |text: &str| BTreeMap::from([("acme.dev/fpga".to_owned(), text.to_owned())]);
        let advertised = [("acme.dev/fpga".to_owned(), 2)];
        assert_eq!(
            missing(&advertised, &counted("1")),
            ["1 of 2 acme.dev/fpga"]
        );
        assert_eq!(
            missing(&advertised, &BTreeMap::new()),
            ["0 of 2 acme.dev/fpga"]
        );
        // More is accepted, because another plugin may advertise the same name. An unparsable count
        // does not block.
        for enough in ["2", "3", "1k"] {
            assert_eq!(missing(&advertised, &counted(enough)), [""; 0]);
        }
        assert_eq!(missing(&[], &counted("0")), [""; 0]);
    }
}
