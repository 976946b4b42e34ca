//! Observes the hardware and the kernel: facts, gateways, and device events.

pub mod gateway_probe;
pub mod metrics;

/// Returns the hostname from the kernel.
pub fn host_name() -> std::io::Result<String> {
    let name = nix::unistd::gethostname()?;
    Ok(name.to_string_lossy().trim().to_owned())
}
