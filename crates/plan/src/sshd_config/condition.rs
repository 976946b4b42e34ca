//! Judges the conditions of `Match` blocks for one user.

use super::{Certainty, Wildcards, token::token};

/// The condition of a `Match` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    text: String,
    /// The criteria, all of which must hold, in lower case, with their patterns.
    criteria: Vec<(String, String)>,
}

impl Condition {
    /// Parses what follows the keyword `Match`. Returns none if sshd rejects the line.
    pub(super) fn parse(rest: &str) -> Option<Self> {
        let mut criteria = Vec::new();
        let mut words = Vec::new();
        let mut rest = rest;
        while let Some(name) = token(&mut rest) {
            if name.is_empty() || name.starts_with('#') {
                break;
            }
            words.push(name.clone());
            let name = name.to_ascii_lowercase();
            let value = match name.as_str() {
                "all" | "invalid-user" => String::new(),
                _ => {
                    token(&mut rest).filter(|value| !value.is_empty() && !value.starts_with('#'))?
                }
            };
            words.extend(Some(value.clone()).filter(|value| !value.is_empty()));
            criteria.push((name, value));
        }
        let text = words.join(" ");
        (!criteria.is_empty()).then_some(Self { text, criteria })
    }

    /// The condition without its comment, for a message.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether it holds when this user, who exists, logs in.
    pub(super) fn applies(&self, user: &str) -> Certainty {
        let all = self
            .criteria
            .iter()
            .map(|(name, value)| match name.as_str() {
                "all" => Certainty::Yes,
                "user" if in_list(value, user) => Certainty::Yes,
                "user" | "invalid-user" => Certainty::No,
                // The client decides on its address. The groups of a user may come from a directory service.
                _ => Certainty::Maybe,
            });
        all.min().unwrap_or(Certainty::Maybe)
    }
}

/// Whether a list of patterns (PATTERNS in ssh_config(5)) names this user and no pattern with `!` excludes them.
fn in_list(patterns: &str, user: &str) -> bool {
    let matches = |pattern: &str| Wildcards::of_list(pattern).matches(user);
    let excluded = |pattern: &str| pattern.strip_prefix('!').is_some_and(matches);
    patterns.split(',').any(matches) && !patterns.split(',').any(excluded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sshd_conditions_hold_for_the_users_that_they_name() {
        use Certainty::{Maybe, No, Yes};
        for (text, applies) in [
            ("all", Yes),
            ("ALL # comment", Yes),
            ("User core", Yes),
            ("user=core", Yes),
            ("User \"core\"", Yes),
            ("User bob", No),
            ("User bob,co?e", Yes),
            ("User *,!core", No),
            ("User !core", No),
            ("User !bob", No),
            ("User !bob,*", Yes),
            ("User [c]ore", No),
            ("User Core", No),
            ("User core # and more", Yes),
            ("Group wheel", Maybe),
            ("Address 10.0.0.0/8 User core", Maybe),
            ("Address 10.0.0.0/8 User bob", No),
            ("LocalPort 22", Maybe),
            ("invalid-user", No),
        ] {
            let found = Condition::parse(text).map(|condition| condition.applies("core"));
            assert_eq!(found, Some(applies), "{text}");
        }
        assert_eq!(Condition::parse("User"), None);
        assert_eq!(Condition::parse("User # core"), None);
        let condition = Condition::parse("User  core  # why").unwrap();
        assert_eq!(condition.text(), "User core");
    }
}
