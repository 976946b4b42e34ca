//! The Node shows what the kubelet has: whoever schedules pods goes by the Node, and the kubelet writes that
//! some seconds after it has its devices back.

use std::collections::BTreeMap;

use tokio::time::{Instant, sleep_until};

use super::{Ours, holders::offers};

impl Ours {
    /// Waits until our Node counts the devices that are lent, as long as the gate waits for them; what it does
    /// not count then, for people. None: there is nothing to be said.
    pub(super) async fn counted_by_the_node(&self) -> Option<String> {
        let devices = self.devices.as_ref()?;
        let until = Instant::now() + self.settings.borrow().devices.return_limit;
        let mut sights = self.node.sights();
        loop {
            let node = sights.borrow_and_update().node.clone()?;
            let offers = offers(&devices.status_now());
            let missing = missing(&offers, &node.status.allocatable);
            if missing.is_empty() {
                return None;
            }
            tokio::select! {
                // Safe to drop, both: a change stays marked as unseen, and the deadline is absolute.
                changed = sights.changed() => if changed.is_err() { return None },
                () = sleep_until(until) => {
                    let missing = missing.join(", ");
                    tracing::warn!("the Node does not count every device yet: {missing}");
                    return Some(missing);
                }
            }
        }
    }
}

/// What the Node counts less of than is lent. A number that is not understood is taken for enough.
fn missing(offers: &[(String, usize)], counted: &BTreeMap<String, String>) -> Vec<String> {
    let short = |(name, lent): &(String, usize)| {
        let counts = match counted.get(name) {
            Some(text) => text.parse::<usize>().ok()?,
            None => 0,
        };
        (counts < *lent).then(|| format!("{counts} of {lent} {name}"))
    };
    offers.iter().filter_map(short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_node_counts_less_of_than_is_lent_is_waited_for() {
        let counted = |text: &str| BTreeMap::from([("acme.dev/fpga".to_owned(), text.to_owned())]);
        let lent = [("acme.dev/fpga".to_owned(), 2)];
        assert_eq!(missing(&lent, &counted("1")), ["1 of 2 acme.dev/fpga"]);
        assert_eq!(missing(&lent, &BTreeMap::new()), ["0 of 2 acme.dev/fpga"]);
        // More is well: others may lend under that name. What is no number keeps nobody.
        for enough in ["2", "3", "1k"] {
            assert_eq!(missing(&lent, &counted(enough)), [""; 0]);
        }
        assert_eq!(missing(&[], &counted("0")), [""; 0]);
    }
}
