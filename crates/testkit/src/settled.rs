//! Looks whether an update left anything to do.

use machinist_plan::Policies;
use machinist_update::{
    cache::ObservationCache,
    observe_and_plan::{self, PlanOptions, observe_and_plan},
    store,
};

use crate::sandbox::{Sandbox, Written, conduct};

/// Asserts that the machine is as the config that it is on wants it: nothing drifted, and a plan of the same config
/// has nothing to do. `describe` returns the text of the case.
pub fn assert_settled(sandbox: &Sandbox, config: &Written, describe: &dyn Fn() -> String) {
    let root = sandbox.root();
    let journal = store::peek(&root).unwrap();
    let capabilities = conduct(false).capabilities;
    let remembered = ObservationCache::default();
    let name = observe_and_plan::current(&journal);
    let drift = observe_and_plan::drift(&root, name, None, capabilities, &remembered).unwrap();
    assert!(drift.is_empty(), "{drift:#?}\n{}", describe());
    let how = PlanOptions {
        policies: &Policies::default(),
        capabilities,
        units: None,
        only: None,
        remembered: &remembered,
    };
    let looked = observe_and_plan(&root, &journal, &config.0, how).unwrap();
    let plan = match looked.plan {
        Ok(plan) => plan,
        Err(refusals) => panic!("refused afterwards: {refusals:#?}\n{}", describe()),
    };
    let left = (&plan.operations, &plan.changes);
    assert!(plan.operations.is_empty(), "{left:#?}\n{}", describe());
    assert!(plan.changes.is_empty(), "{left:#?}\n{}", describe());
}
