//! Kills at random moments, once or several times in a row.

use crate::crash::{
    child::{Order, Place, RunMode},
    harness::boot,
    kill_matrix::{finish, machine, must_be_old_or_new, rebooted},
};
use machinist_testkit::{
    sandbox::{from_environment, long},
    update_case::Case,
};

/// A generator of numbers that are the same for a seed everywhere (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % limit as u64).unwrap()
    }
}

const COURSES: [RunMode; 3] = [RunMode::Restart, RunMode::Reboot, RunMode::Undo];

#[test]
fn kills_at_random_moments_end_as_without_the_kills() {
    let case = Case::everything();
    let seed = from_environment("MACHINIST_SEED").unwrap_or(1);
    let usual = if long() { 1000 } else { 12 };
    let rounds = from_environment("MACHINIST_ROUNDS").unwrap_or(usual);
    let lengths = COURSES.map(|course| {
        let sandbox = machine(&case);
        let (root, place) = (sandbox.path(""), None);
        Order {
            root,
            course,
            place,
        }
        .run()
        .operations
    });
    let (mut dice, mut kills, mut updates) = (Dice(seed), 0, 0);
    while kills < rounds {
        let index = dice.below(COURSES.len());
        let course = COURSES[index];
        let mut what = format!("seed {seed}, update {updates}, {course:?}, killed");
        let sandbox = machine(&case);
        updates += 1;
        loop {
            let number = dice.below(lengths[index]);
            what += &format!(" at {number}");
            let (root, place) = (sandbox.path(""), Some(Place::Operation(number)));
            let ended = Order {
                root,
                course,
                place,
            }
            .run();
            kills += u64::from(ended.killed);
            if rebooted(&ended) {
                boot(&sandbox, "boot-2");
            }
            if !ended.killed || dice.below(3) > 0 {
                break;
            }
        }
        must_be_old_or_new(&case, &sandbox, &what);
        finish(&case, &sandbox, course, &what);
    }
    println!("{kills} kills in {updates} updates of {lengths:?} operations, seed {seed}");
}
