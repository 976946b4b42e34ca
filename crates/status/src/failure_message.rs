//! Splits the message of a failure, which may consist of many rejections, for display.

/// Separator between two rejections: each one ends with its code in brackets.
const REJECTION_SEPARATOR: &str = "]; ";

/// The rejections in a message; the whole message if it is not such a list.
pub fn sentences(message: &str) -> Vec<String> {
    let mut all: Vec<String> = message
        .split(REJECTION_SEPARATOR)
        .map(str::to_owned)
        .collect();
    let last = all.len() - 1;
    all.iter_mut().take(last).for_each(|one| one.push(']'));
    all
}

/// A message shortened to one line: its first sentence, and the number of further ones.
pub fn in_short(message: &str) -> String {
    match message.split_once(REJECTION_SEPARATOR) {
        None => message.to_owned(),
        Some((first, rest)) => {
            let more = rest.split(REJECTION_SEPARATOR).count();
            format!("{first}] and {more} more, see machinist status")
        }
    }
}
