//! Flap detection for devices of live sources: a device whose health flaps is held back, like one
//! that is plugged and unplugged repeatedly.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    flap_detection::DeviceFlapState,
    inventory::{Health, Resource},
};

/// The presence of the devices of one offer. It does no I/O: the caller passes in the offers and the
/// time.
///
/// Devices that have been healthy since they were first seen need no entry; most devices are.
#[derive(Debug, Default)]
pub(super) struct FlapTracker {
    flap_states: BTreeMap<String, DeviceFlapState>,
    /// The number of devices of the largest offer: all of them may disappear and return at once.
    largest_offer: usize,
    /// The offer with flapping devices marked as unhealthy; none if no device is held back.
    offer_with_holds: Option<Arc<Resource>>,
}

impl FlapTracker {
    /// Records the offer that follows `before`. A device that is not in it any more counts as absent.
    pub(super) fn record_offer(
        &mut self,
        before: Option<&Arc<Resource>>,
        offer: &Arc<Resource>,
        now: Duration,
    ) {
        let before = before.into_iter().flat_map(|one| one.devices.keys());
        for id in before.filter(|id| !offer.devices.contains_key(*id)) {
            self.record_device(id, false, now);
        }
        // Removes entries of devices that have been absent for long, or, if there are too many, of
        // all absent devices, so that a source that keeps using new ids cannot fill the memory.
        self.largest_offer = self.largest_offer.max(offer.devices.len());
        let max_tracked = 2 * self.largest_offer;
        let full = self.flap_states.len() > max_tracked;
        self.flap_states.retain(|id, flap_state| {
            offer.devices.contains_key(id) || !full && !flap_state.is_expired(now)
        });
        for (id, device) in &offer.devices {
            self.record_device(id, device.health == Health::Healthy, now);
        }
        self.update_holds(offer, now);
    }

    fn record_device(&mut self, id: &str, is_healthy: bool, now: Duration) {
        match self.flap_states.get_mut(id) {
            Some(flap_state) => flap_state.record_presence(is_healthy, now),
            None if is_healthy => {}
            None => {
                let absent = DeviceFlapState::first(false, now);
                self.flap_states.insert(id.to_owned(), absent);
            }
        }
    }

    /// Updates which devices are held back. Returns the time until the next one is allocatable.
    pub(super) fn update_holds(
        &mut self,
        offer: &Arc<Resource>,
        now: Duration,
    ) -> Option<Duration> {
        let wait = |id: &String| self.flap_states.get(id)?.remaining_hold(now);
        let waiting: Vec<(&String, Duration)> = offer
            .devices
            .keys()
            .filter_map(|id| Some((id, wait(id)?)))
            .filter(|(_, wait)| !wait.is_zero())
            .collect();
        let next = waiting.iter().map(|(_, wait)| *wait).min();
        self.offer_with_holds = next.map(|_| {
            let mut shown = Resource::clone(offer);
            for (id, _) in waiting {
                if let Some(device) = shown.devices.get_mut(id) {
                    let why = format!("{id} is flapping; it must stay present for a while");
                    (device.health, device.reason) = (Health::Unhealthy, Some(why));
                }
            }
            Arc::new(shown)
        });
        next
    }

    /// The resource to publish instead of the offer.
    pub(super) const fn with_holds(&self) -> Option<&Arc<Resource>> {
        self.offer_with_holds.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::resource;

    #[test]
    fn devices_that_are_all_removed_and_offered_again_are_held_back() {
        let full = Arc::new(resource(1, &[("a", &[]), ("b", &[]), ("c", &[])]));
        let none = Arc::new(resource(1, &[]));
        let mut tracker = FlapTracker::default();
        let at = Duration::from_secs;
        tracker.record_offer(None, &full, at(0));
        for round in 0..4 {
            tracker.record_offer(Some(&full), &none, at(100 + round));
            tracker.record_offer(Some(&none), &none, at(100 + round));
            tracker.record_offer(Some(&none), &full, at(100 + round));
        }
        let offer_with_holds = tracker.with_holds().expect("held back");
        let reasons = offer_with_holds
            .devices
            .values()
            .map(|one| one.reason.as_deref());
        let reasons: Vec<_> = reasons.collect();
        assert_eq!(reasons.len(), 3);
        let is_flapping = |why: &Option<&str>| why.is_some_and(|why| why.contains("flapping"));
        assert!(reasons.iter().all(is_flapping), "{reasons:?}");
    }
}
