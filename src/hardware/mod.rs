//! The hardware and the kernel under us: what is measured, what comes and goes.

pub mod facts;
pub mod gateway;
pub mod uevent;

/// The host's name, as it is known to itself.
pub fn host_name() -> std::io::Result<String> {
    let name = nix::unistd::gethostname()?;
    Ok(name.to_string_lossy().trim().to_owned())
}
