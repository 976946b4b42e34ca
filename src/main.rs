//! The `machinist` program. Its command line comes with the agent.

fn main() {}
