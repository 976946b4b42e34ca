//! Formats an error with all of its causes.

use std::{error::Error, iter::successors};

/// The error and its causes in one line, for the place where an error is finally reported: `cannot
/// move the new content onto /etc/chrony.conf: Read-only file system`.
pub fn chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot connect to the journal")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn the_chain_is_one_line_with_every_cause() {
        let inner = std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = Outer(std::io::Error::other(inner));
        assert_eq!(
            chain(&error),
            "cannot connect to the journal: entity not found"
        );
    }
}
