//! Flap detection: when a device that returned may be allocated again.

use std::time::Duration;

/// A device that disappears twice within this time is flapping: users do not unplug and plug a device
/// twice in ten seconds on purpose, but loose cables and crashing firmware have this effect.
const FLAP_WINDOW: Duration = Duration::from_secs(10);
/// How long a flapping device must stay present before it is allocatable; doubled with every further
/// flap.
const MIN_HOLD: Duration = Duration::from_secs(1);
/// The longest hold: a device that is present for a minute is stable.
const MAX_HOLD: Duration = Duration::from_secs(60);

/// The presence of one device. Times are relative to an arbitrary, fixed moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFlapState {
    present: bool,
    since: Duration,
    hold: Duration,
    came_back: bool,
}

impl DeviceFlapState {
    /// The state after the first observation, which causes no hold.
    pub const fn first(present: bool, now: Duration) -> Self {
        Self {
            present,
            since: now,
            hold: Duration::ZERO,
            came_back: false,
        }
    }

    /// Records an observation.
    pub fn record_presence(&mut self, present: bool, now: Duration) {
        if present == self.present {
            return;
        }
        let lasted = now.saturating_sub(self.since);
        if !present {
            let longer = self.hold.saturating_mul(2).clamp(MIN_HOLD, MAX_HOLD);
            let flapping = self.came_back && lasted < FLAP_WINDOW.max(self.hold);
            self.hold = if flapping { longer } else { Duration::ZERO };
        }
        (self.present, self.since) = (present, now);
        self.came_back |= present;
    }

    /// Whether it has been absent for longer than any hold lasts.
    pub fn is_expired(&self, now: Duration) -> bool {
        !self.present && now.saturating_sub(self.since) > MAX_HOLD
    }

    /// How much longer the device must stay present before it is allocatable; zero if it is now, none
    /// if it is absent.
    pub fn remaining_hold(&self, now: Duration) -> Option<Duration> {
        let there = now.saturating_sub(self.since);
        self.present.then(|| self.hold.saturating_sub(there))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_device_that_was_unplugged_once_is_allocatable_again_at_once() {
        let mut device = DeviceFlapState::first(true, s(0));
        device.record_presence(false, s(100));
        assert_eq!(device.remaining_hold(s(100)), None);
        device.record_presence(true, s(101));
        assert_eq!(device.remaining_hold(s(101)), Some(s(0)));
        device.record_presence(false, s(200));
        device.record_presence(true, s(201));
        assert_eq!(device.remaining_hold(s(201)), Some(s(0)));
    }

    #[test]
    fn flap_hold_grows_with_each_flap_up_to_a_minute() {
        let mut device = DeviceFlapState::first(true, s(0));
        let mut held = Vec::new();
        for round in 1..10 {
            device.record_presence(false, s(round * 2));
            device.record_presence(true, s(round * 2 + 1));
            held.push(device.remaining_hold(s(round * 2 + 1)).unwrap().as_secs());
        }
        assert_eq!(held, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(device.remaining_hold(s(19 + 60)), Some(s(0)));
        device.record_presence(false, s(200));
        device.record_presence(true, s(201));
        assert_eq!(device.remaining_hold(s(201)), Some(s(0)));
    }
}
