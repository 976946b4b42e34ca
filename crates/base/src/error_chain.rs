//! Formats an error with all of its causes.

use std::{error::Error, iter::successors};

/// The error and its causes in one line, for the place where an error is finally reported: `cannot
/// move the new content onto /etc/chrony.conf: Read-only file system`.
pub fn chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |&cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        // Some libraries repeat the cause in the message.
        match text.ends_with(&format!(": {cause}")) {
            true => text,
            false => format!("{text}: {cause}"),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot connect to the journal")]
    struct Outer(#[source] std::io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the journal: {0}")]
    struct Doubled(#[source] std::io::Error);

    #[test]
    fn a_cause_that_the_message_repeats_is_shown_once() {
        let error = Doubled(std::io::Error::from(std::io::ErrorKind::NotFound));
        assert_eq!(chain(&error), "cannot read the journal: entity not found");
    }

    #[test]
    fn error_chain_is_one_line_with_every_cause() {
        let inner = std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = Outer(std::io::Error::other(inner));
        assert_eq!(
            chain(&error),
            "cannot connect to the journal: entity not found"
        );
    }
}
