//! Defines the interface through which the update installs recovery on the host: in a cluster, the agent does that
//! itself.

use std::{error::Error, fmt};

/// Installs the units that recover an interrupted update, and the program that they run.
pub trait RecoveryInstaller: Send + Sync + 'static {
    /// Installs or updates the units and the program. Returns true if it wrote something, so that systemd needs a
    /// daemon-reload.
    ///
    /// This call blocks. It is idempotent, and is repeated after a crash.
    ///
    /// # Errors
    /// The units or the program are not completely installed; the error states the cause.
    fn install(&self) -> Result<bool, Box<dyn Error + Send + Sync>>;
}

impl fmt::Debug for dyn RecoveryInstaller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostPart")
    }
}
