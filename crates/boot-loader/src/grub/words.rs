//! Splits a script into words and operators.

/// Why a text is no GRUB script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ScriptError {
    /// The line, from 1.
    pub line: usize,
    /// The fault.
    pub message: &'static str,
}

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WordPart {
    /// Literal text.
    Text(String),
    /// The value of a variable, split into words unless it is quoted.
    Variable { name: String, quoted: bool },
}

/// A word: its parts, joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Word(pub(super) Vec<WordPart>);

impl Word {
    pub(super) fn is_text(&self, text: &str) -> bool {
        matches!(&self.0[..], [WordPart::Text(own)] if own == text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Word { word: Word, plain: bool },
    Separator,
    Open,
    Close,
    End,
}

/// Reads tokens from a text.
pub(super) struct Lexer<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
}

impl Lexer<'_> {
    pub(super) fn error(&self, at: usize, message: &'static str) -> ScriptError {
        let before = self.text.get(..at).unwrap_or(self.text);
        let line = before.matches('\n').count() + 1;
        ScriptError { line, message }
    }

    /// Returns the next token and its position.
    pub(super) fn token(&mut self) -> Result<(usize, Token), ScriptError> {
        loop {
            let rest = self.text.get(self.at..).unwrap_or_default();
            let begin = self.at;
            let Some(c) = rest.chars().next() else {
                return Ok((begin, Token::End));
            };
            let single = match c {
                ' ' | '\t' => None,
                '\\' if rest.starts_with("\\\n") => {
                    self.at += 1;
                    None
                }
                '#' => {
                    self.at += rest.find('\n').unwrap_or(rest.len());
                    continue;
                }
                '\n' | ';' => Some(Token::Separator),
                '{' => Some(Token::Open),
                '}' => Some(Token::Close),
                '|' | '&' | '<' | '>' => return Err(self.error(begin, "operator not supported")),
                _ => return self.word(begin),
            };
            self.at += c.len_utf8();
            if let Some(token) = single {
                return Ok((begin, token));
            }
        }
    }

    fn word(&mut self, begin: usize) -> Result<(usize, Token), ScriptError> {
        let (mut word, mut text, mut plain) = (Word::default(), String::new(), true);
        while let Some(c) = self.char() {
            match c {
                ' ' | '\t' | '\n' | ';' | '{' | '}' | '|' | '&' | '<' | '>' => break,
                '\\' => {
                    self.at += 1;
                    let escaped = self.char();
                    let escaped = escaped.ok_or_else(|| self.error(begin, "text ends in \\"))?;
                    self.at += escaped.len_utf8();
                    plain = false;
                    if escaped != '\n' {
                        text.push(escaped);
                    }
                }
                '\'' => {
                    let rest = self.text.get(self.at + 1..).unwrap_or_default();
                    let end = rest.find('\'');
                    let end = end.ok_or_else(|| self.error(begin, "unclosed '"))?;
                    text.push_str(&rest[..end]);
                    self.at += end + 2;
                    plain = false;
                    keep_empty(&mut word, &text);
                }
                '"' => {
                    self.at += 1;
                    self.double_quoted(begin, &mut word, &mut text)?;
                    plain = false;
                    keep_empty(&mut word, &text);
                }
                '$' => {
                    plain = false;
                    self.variable(false, &mut word, &mut text)?;
                }
                other => {
                    self.at += other.len_utf8();
                    text.push(other);
                }
            }
        }
        if !text.is_empty() {
            word.0.push(WordPart::Text(text));
        }
        Ok((begin, Token::Word { word, plain }))
    }

    fn char(&self) -> Option<char> {
        self.text.get(self.at..)?.chars().next()
    }

    fn double_quoted(
        &mut self,
        begin: usize,
        word: &mut Word,
        text: &mut String,
    ) -> Result<(), ScriptError> {
        loop {
            let c = self.char();
            let c = c.ok_or_else(|| self.error(begin, "unclosed \""))?;
            match c {
                '"' => {
                    self.at += 1;
                    return Ok(());
                }
                '$' => self.variable(true, word, text)?,
                '\\' => {
                    self.at += 1;
                    let escaped = self.char();
                    let escaped = escaped.ok_or_else(|| self.error(begin, "unclosed \""))?;
                    self.at += escaped.len_utf8();
                    match escaped {
                        '\n' => {}
                        '$' | '"' | '\\' => text.push(escaped),
                        other => text.extend(['\\', other]),
                    }
                }
                other => {
                    self.at += other.len_utf8();
                    text.push(other);
                }
            }
        }
    }

    /// Reads a variable at a `$`; without a name, the `$` is text.
    fn variable(
        &mut self,
        quoted: bool,
        word: &mut Word,
        text: &mut String,
    ) -> Result<(), ScriptError> {
        let begin = self.at;
        let rest = self.text.get(begin + 1..).unwrap_or_default();
        let name_length = |text: &str| {
            let first = text.chars().next();
            let special = |c: char| "?#*@".contains(c);
            match first {
                Some(c) if special(c) => 1,
                Some(c) if c.is_ascii_digit() => {
                    let end = text.find(|c: char| !c.is_ascii_digit());
                    end.unwrap_or(text.len())
                }
                Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                    end.unwrap_or(text.len())
                }
                _ => 0,
            }
        };
        let (name, length) = match rest.strip_prefix('{') {
            Some(inner) => {
                let length = name_length(inner);
                let closed = length > 0 && inner[length..].starts_with('}');
                if !closed {
                    return Err(self.error(begin, "malformed variable"));
                }
                (&inner[..length], length + 2)
            }
            None => {
                let length = name_length(rest);
                (&rest[..length], length)
            }
        };
        self.at += 1 + length;
        if length == 0 {
            text.push('$');
            return Ok(());
        }
        if !text.is_empty() {
            word.0.push(WordPart::Text(std::mem::take(text)));
        }
        let name = name.to_owned();
        word.0.push(WordPart::Variable { name, quoted });
        Ok(())
    }
}

/// Records that an empty text was quoted: it is a word, too.
fn keep_empty(word: &mut Word, text: &str) {
    if text.is_empty() {
        word.0.push(WordPart::Text(String::new()));
    }
}
