//! Selects the steps that survive: every legal selection if there are few, a seeded draw if there
//! are many.

use std::collections::HashMap;

use super::{
    SearchBudget,
    steps::{ReplayStep, ReplaySteps},
};

/// The effect of a power cut on one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// The step is lost.
    Lost,
    /// Content: the file was truncated and not written.
    Empty,
    /// Content: only the first half was written.
    Torn,
    /// The step survived.
    Whole,
}

/// One fate for each step, in the order of the steps.
pub(super) fn picks(steps: &ReplaySteps, effort: SearchBudget) -> Vec<Vec<StepOutcome>> {
    if let Some(all) = every(&steps.list, effort.count) {
        return all;
    }
    let mut random = SplitMix(effort.seed);
    let mut drawn = vec![
        choose(&steps.list, |_, fates| fates[0]),
        choose(&steps.list, |_, fates| fates[fates.len() - 1]),
    ];
    while drawn.len() < effort.count {
        drawn.push(draw(&steps.list, &mut random));
    }
    drawn
}

/// Every legal selection, or `None` if there are more than `most`.
fn every(steps: &[ReplayStep], most: usize) -> Option<Vec<Vec<StepOutcome>>> {
    let (mut all, mut fates, mut turns) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        while let Some(step) = steps.get(fates.len()) {
            fates.push(open(step, &fates)[0]);
            turns.push(0);
        }
        if all.len() == most {
            return None;
        }
        all.push(fates.clone());
        // Advance to the next selection: change the last step that has another fate.
        loop {
            let Some(turn) = turns.pop() else {
                return Some(all);
            };
            fates.pop();
            if let Some(fate) = open(&steps[fates.len()], &fates).get(turn + 1) {
                fates.push(*fate);
                turns.push(turn + 1);
                break;
            }
        }
    }
}

/// The possible fates of a step, given the fates of the steps before it.
fn open(step: &ReplayStep, so_far: &[StepOutcome]) -> &'static [StepOutcome] {
    match step
        .needs
        .iter()
        .all(|need| so_far[*need] == StepOutcome::Whole)
    {
        true => step.outcomes(),
        false => &[StepOutcome::Lost],
    }
}

fn choose(
    steps: &[ReplayStep],
    mut choice: impl FnMut(usize, &'static [StepOutcome]) -> StepOutcome,
) -> Vec<StepOutcome> {
    let mut fates = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        let fate = choice(index, open(step, &fates));
        fates.push(fate);
    }
    fates
}

/// Survival clusters around a moment: before it most steps survive, after it few do. The moment
/// differs between file systems, and its sharpness between draws. Drawing every step independently
/// would hardly ever give a long prefix.
fn draw(steps: &[ReplayStep], random: &mut SplitMix) -> Vec<StepOutcome> {
    let sharpness = [0, 10, 50][random.below(3)];
    let mut moments: HashMap<u64, usize> = HashMap::new();
    choose(steps, |index, fates| {
        let moment = *moments
            .entry(steps[index].fs)
            .or_insert_with(|| random.below(steps.len() + 1));
        let against = random.below(100) < sharpness;
        match (index < moment) != against {
            true => fates[fates.len() - 1],
            false => fates[random.below(fates.len().saturating_sub(1).max(1))],
        }
    })
}

/// SplitMix64 (Steele, Lea, Flood 2014): reproducible on every platform, and good enough to choose
/// test cases.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap_or_default()
    }
}
