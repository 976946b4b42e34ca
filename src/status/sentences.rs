//! The message of a failure may be that of many refusals; people read them one by one.

/// Ends a refusal before the next one: each of them closes with its code in brackets.
const END: &str = "]; ";

/// The refusals of a message, one each; the whole message where it is no list of them.
pub fn sentences(message: &str) -> Vec<String> {
    let mut all: Vec<String> = message.split(END).map(str::to_owned).collect();
    let last = all.len() - 1;
    all.iter_mut().take(last).for_each(|one| one.push(']'));
    all
}

/// A message for where there is one line: its first sentence, and how many more there are.
pub fn in_short(message: &str) -> String {
    match message.split_once(END) {
        None => message.to_owned(),
        Some((first, rest)) => {
            let more = rest.split(END).count();
            format!("{first}] and {more} more, which machinist status lists")
        }
    }
}
