//! The environment block: variables that GRUB reads and writes at boot (`grubenv`).

use std::collections::BTreeMap;

/// The first line of the block.
const SIGNATURE: &str = "# GRUB Environment Block\n";

/// The length of a block in bytes. GRUB writes it in place and never changes its length.
const BLOCK_BYTES: usize = 1024;

/// Why a block cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The first line is another one.
    #[error("not a GRUB environment block")]
    NoSignature,
    /// The variables do not fit.
    #[error("the variables do not fit into {BLOCK_BYTES} bytes")]
    TooLong,
    /// A name or value cannot be stored.
    #[error("a name must not be empty or contain = or a line break, a value no line break")]
    Malformed,
}

/// The variables of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvironmentBlock {
    /// Comments, such as the warning of grub-editenv.
    comments: Vec<String>,
    variables: BTreeMap<String, String>,
    /// The length of the block that was read.
    length: usize,
}

impl EnvironmentBlock {
    /// Parses a block.
    pub fn parse(text: &str) -> Result<Self, BlockError> {
        let body = text
            .strip_prefix(SIGNATURE)
            .ok_or(BlockError::NoSignature)?;
        let (mut comments, mut variables, mut rest) = (Vec::new(), BTreeMap::new(), body);
        while !rest.is_empty() {
            // GRUB skips lines that begin with #. The padding is the last one, and has no line break.
            if let Some(after) = rest.strip_prefix('#') {
                let Some((comment, after)) = after.split_once('\n') else {
                    break;
                };
                comments.push(comment.to_owned());
                rest = after;
                continue;
            }
            // A backslash escapes the next character of a value.
            let (line, after) = split_line(rest);
            rest = after;
            if let Some((name, value)) = line.split_once('=') {
                variables.insert(name.to_owned(), unescape(value));
            }
        }
        Ok(Self {
            comments,
            variables,
            length: text.len(),
        })
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// All variables.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.variables.iter();
        all.map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    /// Removes a variable.
    pub fn unset(&mut self, name: &str) {
        self.variables.remove(name);
    }

    /// Formats the block, padded to its length.
    pub fn to_text(&self) -> Result<String, BlockError> {
        let mut text = SIGNATURE.to_owned();
        for comment in &self.comments {
            text.push_str(&format!("#{comment}\n"));
        }
        for (name, value) in &self.variables {
            if name.is_empty() || name.contains(['=', '\n', '#', '\\']) || value.contains('\n') {
                return Err(BlockError::Malformed);
            }
            let value = value.replace('\\', "\\\\");
            text.push_str(&format!("{name}={value}\n"));
        }
        let length = match self.length {
            0 => BLOCK_BYTES,
            length => length,
        };
        let padding = length.checked_sub(text.len()).ok_or(BlockError::TooLong)?;
        text.extend(std::iter::repeat_n('#', padding));
        Ok(text)
    }
}

/// Splits at the first line break that no backslash escapes.
fn split_line(text: &str) -> (&str, &str) {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '\n' if !escaped => return (&text[..at], &text[at + 1..]),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    (text, "")
}

fn unescape(value: &str) -> String {
    let mut text = String::new();
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.extend(chars.next()),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_length_and_its_other_variables() {
        let mut block = EnvironmentBlock::default();
        block.set("saved_entry", "a b>c");
        block.set("next_entry", "machinist-1");
        let text = block.to_text().unwrap();
        assert_eq!(text.len(), 1024);
        assert!(text.starts_with(
            "# GRUB Environment Block\nnext_entry=machinist-1\nsaved_entry=a b>c\n###"
        ));
        let mut again = EnvironmentBlock::parse(&text).unwrap();
        assert_eq!(again.get("next_entry"), Some("machinist-1"));
        again.unset("next_entry");
        let after = again.to_text().unwrap();
        assert_eq!(after.len(), 1024);
        assert_eq!(EnvironmentBlock::parse(&after).unwrap().iter().count(), 1);
        block.set("odd", "back\\slash");
        let again = EnvironmentBlock::parse(&block.to_text().unwrap()).unwrap();
        assert_eq!(again.get("odd"), Some("back\\slash"));
    }

    /// grub-editenv 2.06 writes this warning.
    #[test]
    fn comments_before_the_variables_stay() {
        let comment = "# WARNING: Do not edit this file by tools other than grub-editenv!!!\n";
        let text = format!("{SIGNATURE}{comment}saved_entry=x\n");
        let text = format!("{text}{}", "#".repeat(1024 - text.len()));
        let mut block = EnvironmentBlock::parse(&text).unwrap();
        assert_eq!(block.get("saved_entry"), Some("x"));
        assert_eq!(block.to_text().as_ref(), Ok(&text));
        block.set("next_entry", "machinist-1");
        let after = block.to_text().unwrap();
        let variables = format!("{SIGNATURE}{comment}next_entry=machinist-1\nsaved_entry=x\n#");
        assert!(
            after.starts_with(&variables) && after.len() == 1024,
            "{after}"
        );
    }

    #[test]
    fn a_block_refuses_what_it_cannot_hold() {
        assert_eq!(EnvironmentBlock::parse(""), Err(BlockError::NoSignature));
        let mut block = EnvironmentBlock::default();
        block.set("long", &"x".repeat(1000));
        assert_eq!(block.to_text(), Err(BlockError::TooLong));
        let mut block = EnvironmentBlock::default();
        block.set("a", "two\nlines");
        assert_eq!(block.to_text(), Err(BlockError::Malformed));
    }
}
