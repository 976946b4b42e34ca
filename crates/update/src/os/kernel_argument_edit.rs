//! Computes how a config changes a deployment's kernel arguments.

use machinist_ignition::KernelCommandLine;

/// Changes to the booted deployment's kernel arguments. Kernel arguments are a list in which order and repetition
/// count: `console=` may occur several times, and the last one becomes `/dev/console`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelArgumentEdit {
    /// Each entry removes the last argument equal to it. An entry that does not occur removes nothing.
    pub remove: KernelCommandLine,
    /// Arguments to append, in this order, also when equal ones already exist.
    pub append: KernelCommandLine,
}

impl KernelArgumentEdit {
    /// Returns the kernel arguments of a deployment derived from one with the arguments `booted`. All other
    /// arguments keep their order.
    ///
    /// It removes the last occurrence because a config's arguments are appended at the end: an equal argument
    /// before it has another owner.
    pub fn apply_to(&self, booted: &KernelCommandLine) -> KernelCommandLine {
        let mut all = booted.clone();
        for gone in self.remove.iter() {
            all.remove_last(gone);
        }
        all.append(&self.append);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_kernel_arguments_and_their_order_are_kept() {
        for (booted, remove, append, after) in [
            ("root=a quiet", "", "", "root=a quiet"),
            ("root=a", "", "nosmt", "root=a nosmt"),
            ("root=a nosmt", "nosmt", "", "root=a"),
            ("root=a x=1", "x=1", "x=2", "root=a x=2"),
            ("quiet root=a quiet", "quiet", "", "quiet root=a"),
            ("c=0 c=1", "", "c=2 c=0", "c=0 c=1 c=2 c=0"),
            ("c=0 c=1 c=0", "c=0 c=0", "c=1", "c=1 c=1"),
            ("root=a", "quiet", "", "root=a"),
            ("root=a c=\"d e\"", "\"c=d e\"", "", "root=a"),
            ("root=a -- single", "", "quiet", "root=a quiet -- single"),
        ] {
            let [booted, remove, append] = [booted, remove, append].map(KernelCommandLine::parse);
            let edit = KernelArgumentEdit { remove, append };
            assert_eq!(edit.apply_to(&booted).to_string(), after, "{booted}");
        }
    }
}
