//! Parses GRUB's script language.

use super::words::{Lexer, ScriptError, Token, Word, WordPart};

/// Maximum depth of nested blocks. A generated grub.cfg has five.
const MAX_BLOCK_DEPTH: usize = 64;

/// Commands between braces, with their text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) commands: Vec<Command>,
    pub(super) source: String,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// A command with its words, and the block at its end, as for `menuentry`.
    Simple {
        words: Vec<Word>,
        block: Option<Block>,
    },
    /// `if`: conditions with what follows them, and what follows `else`.
    If {
        branches: Vec<(Vec<Command>, Vec<Command>)>,
        otherwise: Vec<Command>,
    },
    /// `while` and `until`.
    Loop {
        condition: Vec<Command>,
        until: bool,
        body: Vec<Command>,
    },
    /// `for`.
    For {
        variable: String,
        values: Vec<Word>,
        body: Vec<Command>,
    },
    /// `function`.
    Function { name: String, body: Block },
}

/// Parses a script.
pub(super) fn parse(text: &str) -> Result<Vec<Command>, ScriptError> {
    let mut parser = Parser {
        lexer: Lexer { text, at: 0 },
        peeked: None,
        depth: 0,
    };
    let commands = parser.commands(&[])?;
    match parser.next()? {
        (_, Token::End) => Ok(commands),
        (at, _) => Err(parser.lexer.error(at, "unexpected end of a block")),
    }
}

struct Parser<'t> {
    lexer: Lexer<'t>,
    peeked: Option<(usize, Token)>,
    depth: usize,
}

impl Parser<'_> {
    fn next(&mut self) -> Result<(usize, Token), ScriptError> {
        match self.peeked.take() {
            Some(token) => Ok(token),
            None => self.lexer.token(),
        }
    }

    fn peek(&mut self) -> Result<&Token, ScriptError> {
        if self.peeked.is_none() {
            self.peeked = Some(self.lexer.token()?);
        }
        Ok(self.peeked.as_ref().map_or(&Token::End, |(_, token)| token))
    }

    /// Parses commands until one begins with one of these words, or a block ends.
    fn commands(&mut self, until: &[&str]) -> Result<Vec<Command>, ScriptError> {
        self.depth += 1;
        if self.depth > MAX_BLOCK_DEPTH {
            return Err(self
                .lexer
                .error(self.lexer.at, "blocks are nested too deeply"));
        }
        let mut commands = Vec::new();
        loop {
            match self.peek()? {
                Token::Separator => drop(self.next()?),
                Token::Word { word, plain } if *plain && until.iter().any(|t| word.is_text(t)) => {
                    break;
                }
                Token::Word { .. } => commands.push(self.command()?),
                Token::Open | Token::Close | Token::End => break,
            }
        }
        self.depth -= 1;
        Ok(commands)
    }

    fn command(&mut self) -> Result<Command, ScriptError> {
        let (at, first) = self.next()?;
        let Token::Word { word, plain } = first else {
            return Err(self.lexer.error(at, "a command was expected"));
        };
        let keyword = |text: &str| plain && word.is_text(text);
        if keyword("if") {
            return self.conditional();
        }
        if keyword("while") || keyword("until") {
            let until = keyword("until");
            let condition = self.commands(&["do"])?;
            self.keyword("do")?;
            let body = self.commands(&["done"])?;
            self.keyword("done")?;
            return Ok(Command::Loop {
                condition,
                until,
                body,
            });
        }
        if keyword("for") {
            let variable = self.name()?;
            self.keyword("in")?;
            let values = self.words()?.0;
            self.skip_separators()?;
            self.keyword("do")?;
            let body = self.commands(&["done"])?;
            self.keyword("done")?;
            return Ok(Command::For {
                variable,
                values,
                body,
            });
        }
        if keyword("function") {
            let name = self.name()?;
            self.skip_separators()?;
            let body = self.block()?;
            return Ok(Command::Function { name, body });
        }
        let (more, block) = self.words()?;
        let words = std::iter::once(word).chain(more).collect();
        Ok(Command::Simple { words, block })
    }

    fn conditional(&mut self) -> Result<Command, ScriptError> {
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let condition = self.commands(&["then"])?;
            self.keyword("then")?;
            let body = self.commands(&["elif", "else", "fi"])?;
            branches.push((condition, body));
            let (at, token) = self.next()?;
            match &token {
                Token::Word { word, .. } if word.is_text("elif") => {}
                Token::Word { word, .. } if word.is_text("else") => {
                    otherwise = self.commands(&["fi"])?;
                    self.keyword("fi")?;
                    break;
                }
                Token::Word { word, .. } if word.is_text("fi") => break,
                _ => return Err(self.lexer.error(at, "fi was expected")),
            }
        }
        Ok(Command::If {
            branches,
            otherwise,
        })
    }

    fn keyword(&mut self, keyword: &'static str) -> Result<(), ScriptError> {
        match self.next()? {
            (_, Token::Word { word, plain: true }) if word.is_text(keyword) => Ok(()),
            (at, _) => Err(self
                .lexer
                .error(at, "a keyword is missing: then, fi, in, do or done")),
        }
    }

    fn name(&mut self) -> Result<String, ScriptError> {
        match self.next()? {
            (_, Token::Word { word, plain: true }) => match &word.0[..] {
                [WordPart::Text(name)] => Ok(name.clone()),
                _ => Ok(String::new()),
            },
            (at, _) => Err(self.lexer.error(at, "a name was expected")),
        }
    }

    fn skip_separators(&mut self) -> Result<(), ScriptError> {
        while *self.peek()? == Token::Separator {
            self.next()?;
        }
        Ok(())
    }

    /// Reads words up to the end of the command, and a block.
    fn words(&mut self) -> Result<(Vec<Word>, Option<Block>), ScriptError> {
        let (mut words, mut block) = (Vec::new(), None);
        loop {
            match self.peek()? {
                Token::Word { .. } => {
                    if let (_, Token::Word { word, .. }) = self.next()? {
                        words.push(word);
                    }
                }
                Token::Open if block.is_none() => block = Some(self.block()?),
                Token::Open => return Err(self.lexer.error(self.lexer.at, "a second block")),
                Token::Separator | Token::Close | Token::End => return Ok((words, block)),
            }
        }
    }

    fn block(&mut self) -> Result<Block, ScriptError> {
        let (begin, Token::Open) = self.next()? else {
            return Err(self.lexer.error(self.lexer.at, "{ was expected"));
        };
        let commands = self.commands(&[])?;
        let (end, Token::Close) = self.next()? else {
            return Err(self.lexer.error(begin, "unclosed {"));
        };
        let source = self
            .lexer
            .text
            .get(begin + 1..end)
            .unwrap_or_default()
            .to_owned();
        Ok(Block { commands, source })
    }
}
