//! The hardware and the kernel under us: what is measured, what comes and goes.

pub mod facts;
pub mod gateway;
pub mod uevent;
