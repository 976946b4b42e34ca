//! What many restarts leave behind in the process: descriptors, sockets, memory.

mod device_soak;
mod proxy_soak;
mod vendor_soak;

/// The resources of a process can be counted for only one test at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
