//! Expands words into arguments.

use std::collections::BTreeMap;

use super::words::{Word, WordPart};

/// The variables, and the arguments of the function or menu entry that runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Variables {
    pub(super) values: BTreeMap<String, String>,
    pub(super) arguments: Vec<String>,
    pub(super) status: bool,
}

impl Variables {
    pub(super) fn get(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.values.insert(name.to_owned(), value.to_owned());
    }

    fn special(&self, name: &str) -> Option<String> {
        Some(match name {
            "?" => u8::from(!self.status).to_string(),
            "#" => self.arguments.len().to_string(),
            "*" | "@" => self.arguments.join(" "),
            digits if digits.starts_with(|c: char| c.is_ascii_digit()) => {
                let index = digits.parse::<usize>().ok()?.checked_sub(1)?;
                self.arguments.get(index).cloned().unwrap_or_default()
            }
            _ => return None,
        })
    }

    /// Expands words: the values of variables without quotes are split at blanks.
    pub(super) fn expand(&self, words: &[Word]) -> Vec<String> {
        words
            .iter()
            .flat_map(|word| self.expand_one(word))
            .collect()
    }

    fn expand_one(&self, word: &Word) -> Vec<String> {
        let mut done = Vec::new();
        // `None` until a part has a value: an empty variable is no argument.
        let mut current: Option<String> = None;
        for part in &word.0 {
            match part {
                WordPart::Text(text) => current.get_or_insert_default().push_str(text),
                WordPart::Variable { name, quoted: true } if name == "@" => {
                    let mut all = self.arguments.iter();
                    let first = all.next().map_or("", String::as_str);
                    current.get_or_insert_default().push_str(first);
                    for next in all {
                        done.extend(current.replace(next.clone()));
                    }
                }
                WordPart::Variable { name, quoted } => {
                    let special = self.special(name);
                    let value = special.unwrap_or_else(|| self.get(name).to_owned());
                    if *quoted {
                        current.get_or_insert_default().push_str(&value);
                        continue;
                    }
                    let blank = |c: char| " \t\n".contains(c);
                    // Blanks at the ends do not separate.
                    let mut fields = value.split(blank).filter(|field| !field.is_empty());
                    if let Some(first) = fields.next() {
                        current.get_or_insert_default().push_str(first);
                    }
                    for next in fields {
                        done.extend(current.replace(next.to_owned()));
                    }
                }
            }
        }
        done.extend(current);
        done
    }
}
