//! What the driver needs of whoever brings recovery to this machine: in a cluster the agent does it itself.

use std::{error::Error, fmt};

/// Brings the units that settle an interrupted update, and the program that they run.
pub trait HostPart: Send + Sync + 'static {
    /// Makes them what they are to be. True: something was written, and PID 1 does not know of it yet.
    ///
    /// Blocking. The same again writes nothing; after a crash in the midst it is called again.
    ///
    /// # Errors
    /// It is not there whole, and the words say why.
    fn bring(&self) -> Result<bool, Box<dyn Error + Send + Sync>>;
}

impl fmt::Debug for dyn HostPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostPart")
    }
}
