//! Reproducible random numbers.

use std::time::{Duration, SystemTime};

/// The same numbers for the same seed (splitmix64).
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// Prints the seed; MACHINIST_LAB_SEED repeats a run with its seed.
    pub fn new() -> Self {
        let given = std::env::var("MACHINIST_LAB_SEED").ok();
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seed = match given {
            Some(seed) => seed.parse().expect("MACHINIST_LAB_SEED is a number"),
            None => u64::from(clock.unwrap().subsec_nanos()),
        };
        println!("lab: seed {seed} (repeat with MACHINIST_LAB_SEED={seed})");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `count`.
    pub fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.next() % count as u64).expect("less than a usize")
    }

    /// Uniformly distributed between zero and `limit`.
    pub fn below(&mut self, limit: Duration) -> Duration {
        let drawn = u32::try_from(self.next() >> 32).expect("half of the bits");
        limit.mul_f64(f64::from(drawn) / 2f64.powi(32))
    }
}
