//! The sentences of a failure, for display: one for each refusal of a config.

use machinist_ignition::Refusal;

/// What the message of a refused config begins with.
const REFUSED_PREFIX: &str = "the config is refused: ";

/// The sentences of a failure; the whole message if it has no list of refusals.
pub fn sentences(message: &str, refusals: &[Refusal]) -> Vec<String> {
    let Some((first, rest)) = refusals.split_first() else {
        return vec![message.to_owned()];
    };
    let first = format!("{REFUSED_PREFIX}{first}");
    std::iter::once(first)
        .chain(rest.iter().map(ToString::to_string))
        .collect()
}

/// A failure shortened to one line: its first sentence, and the number of further ones.
pub fn in_short(message: &str, refusals: &[Refusal]) -> String {
    match refusals {
        [] => message.to_owned(),
        [only] => format!("{REFUSED_PREFIX}{only}"),
        [first, rest @ ..] => format!(
            "{REFUSED_PREFIX}{first} and {} more, see machinist status",
            rest.len()
        ),
    }
}
