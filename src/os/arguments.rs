//! Kernel arguments that a config brings and takes away.

use crate::machine_config::KernelCommandLine;

/// What changes of the booted deployment's arguments. They are a list in which order and repetition count:
/// `console=` may stand there several times, and the last one is `/dev/console`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelArguments {
    /// Each takes one such argument away, the last one; of what is not there nothing is taken.
    pub remove: KernelCommandLine,
    /// Added at the end, in this order, whether there are such or not.
    pub append: KernelCommandLine,
}

impl KernelArguments {
    /// The arguments of a deployment made from one that has `booted`. All others stay, in their order.
    ///
    /// The last one goes because what a config brings stands at the end: one of the same text before it is
    /// somebody else's.
    pub fn over(&self, booted: &KernelCommandLine) -> KernelCommandLine {
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
    fn arguments_are_a_list_in_which_others_stay() {
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
            let edit = KernelArguments { remove, append };
            assert_eq!(edit.over(&booted).to_string(), after, "{booted}");
        }
    }
}
