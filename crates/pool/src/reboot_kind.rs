//! The kinds of reboots that updates need.

/// The reboot that an update needs, from its plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RebootKind {
    /// None.
    None,
    /// Of user space only.
    Soft,
    /// Of the machine. Without a plan, a reboot is assumed.
    #[default]
    Full,
}
