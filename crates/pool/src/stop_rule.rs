//! Decides when failures stop a rollout.

/// Returns how many failures of one target stop the rollout of a pool of `machines` nodes, unless the pool sets a
/// number: min(max(2, 10 %), a third rounded up). Two nodes may fail for reasons of their own in any pool that is not
/// tiny; a tenth of a large pool is a broken config; a third of a small one is too much.
pub fn default_stop_after(machines: usize) -> usize {
    let tenth = machines / 10;
    let third = machines.div_ceil(3);
    tenth.max(2).min(third).max(1)
}
