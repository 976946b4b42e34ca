//! Kernel arguments that a config brings and takes away.

/// What changes of the booted deployment's arguments. They are a list in which order and repetition count:
/// `console=` may stand there several times, and the last one is `/dev/console`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelArguments {
    /// Each takes one such argument away, the last one; of what is not there nothing is taken.
    pub remove: Vec<String>,
    /// Added at the end, in this order, whether there are such or not.
    pub append: Vec<String>,
}

impl KernelArguments {
    /// The arguments of a deployment made from one that has `booted`. All others stay, in their order.
    ///
    /// The last one goes because what a config brings stands at the end: one of the same text before it is
    /// somebody else's.
    pub fn over(&self, booted: &[String]) -> Vec<String> {
        let mut all = booted.to_vec();
        for gone in &self.remove {
            if let Some(at) = all.iter().rposition(|argument| argument == gone) {
                all.remove(at);
            }
        }
        all.extend(self.append.iter().cloned());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &str) -> Vec<String> {
        words.split_whitespace().map(str::to_owned).collect()
    }

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
        ] {
            let edit = KernelArguments {
                remove: list(remove),
                append: list(append),
            };
            assert_eq!(edit.over(&list(booted)), list(after), "{booted}");
        }
    }
}
