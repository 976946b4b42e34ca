//! Every path that a file names, in full.

use std::collections::{BTreeMap, BTreeSet};

use crate::layering::tokens::{
    Token::{self, Mark, Name},
    tokens,
};

/// A path as its segments. The first is `crate` for a crate of the workspace, whose name is the
/// second, or an outside crate.
pub(crate) type FullPath = Vec<String>;

/// Every path that a file names: those of `use` trees, those written in full, and those that begin
/// with an imported name. `file` is `CRATE/path.rs`, below the sources of the crate. Code that is
/// compiled only for tests is skipped.
pub(crate) fn paths(file: &str, text: &str) -> Vec<FullPath> {
    read(file, text, false).paths
}

/// What a file imports.
pub(crate) struct FileImports {
    /// Every path that it names, as from [`paths`], and those that begin with one of its modules.
    pub(crate) paths: Vec<FullPath>,
    /// Its imports and re-exports, by their local names.
    pub(crate) names: BTreeMap<String, FullPath>,
}

/// The imports of a file, including those from its own modules.
pub(crate) fn imports(file: &str, text: &str) -> FileImports {
    read(file, text, true)
}

fn read(file: &str, text: &str, own_modules: bool) -> FileImports {
    let mut reader = Reader {
        tokens: without_tests(tokens(text)),
        at: 0,
        member: file.split('/').next().unwrap_or_default().to_owned(),
        home: home(file),
        inner: Vec::new(),
        depth: 0,
        names: BTreeMap::new(),
        own_modules: own_modules.then(BTreeSet::new),
        found: Vec::new(),
    };
    // Twice: a `use` may come after the line that needs it.
    reader.read();
    (reader.at, reader.depth) = (0, 0);
    reader.found.clear();
    reader.read();
    FileImports {
        paths: reader.found,
        names: reader.names,
    }
}

/// The module path of a file.
fn home(file: &str) -> Vec<String> {
    let stem = file.trim_end_matches(".rs");
    let mut home: Vec<String> = stem.split('/').map(str::to_owned).collect();
    if matches!(
        home.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        home.pop();
    }
    home
}

/// Removes every item behind `#[cfg(test)]`.
pub(crate) fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    let test = ["#", "[", "(", ")", "]"].map(Mark);
    let is_test = |window: &[Token]| {
        let words = [Name("cfg".into()), Name("test".into())];
        *window
            == [
                test[0].clone(),
                test[1].clone(),
                words[0].clone(),
                test[2].clone(),
                words[1].clone(),
                test[3].clone(),
                test[4].clone(),
            ]
    };
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens.get(at..at + 7).is_some_and(is_test) {
            at += 7;
            at += item(&tokens[at..]);
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}

/// The length of an item: to the `;`, or to the brace that closes its body.
fn item(tokens: &[Token]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Mark(";") if depth == 0 => return at + 1,
            Mark("{" | "(" | "[") => depth += 1,
            Mark("}" | ")" | "]") => {
                depth -= 1;
                if depth == 0 && *token == Mark("}") {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

struct Reader {
    tokens: Vec<Token>,
    at: usize,
    /// The crate of the file.
    member: String,
    home: Vec<String>,
    /// Inline modules that are open, with the depth of braces they began at.
    inner: Vec<(String, usize)>,
    depth: usize,
    /// The imports of `use`, by their local names.
    names: BTreeMap<String, FullPath>,
    /// The modules that the file declares; none if paths that begin with them are not read.
    own_modules: Option<BTreeSet<String>>,
    found: Vec<FullPath>,
}

impl Reader {
    fn peek(&self, ahead: usize) -> Option<&Token> {
        self.tokens.get(self.at + ahead)
    }

    fn name(&self, ahead: usize) -> Option<String> {
        match self.peek(ahead) {
            Some(Name(name)) => Some(name.clone()),
            _ => None,
        }
    }

    fn read(&mut self) {
        while let Some(token) = self.peek(0).cloned() {
            match token {
                Name(word) if word == "use" && !self.in_path() => {
                    self.at += 1;
                    self.tree(&[]);
                }
                Name(word) if word == "mod" && self.peek(2) == Some(&Mark("{")) => {
                    let name = self.name(1).unwrap_or_default();
                    self.inner.push((name, self.depth));
                    self.at += 2;
                }
                Name(word) if word == "mod" && self.peek(2) == Some(&Mark(";")) => {
                    let name = self.name(1).unwrap_or_default();
                    if let Some(own) = &mut self.own_modules {
                        own.insert(name);
                    }
                    self.at += 3;
                }
                Name(_) if !self.in_path() => self.path(),
                Mark("{") => (self.depth, self.at) = (self.depth + 1, self.at + 1),
                Mark("}") => {
                    self.depth -= 1;
                    self.inner.retain(|(_, began)| *began < self.depth);
                    self.at += 1;
                }
                _ => self.at += 1,
            }
        }
    }

    /// Whether this name continues a path, or is a method or a field.
    fn in_path(&self) -> bool {
        let before = self.at.checked_sub(1).and_then(|at| self.tokens.get(at));
        matches!(before, Some(Mark("::" | ".")))
    }

    /// A path in the code: two names or more.
    fn path(&mut self) {
        let mut path = vec![self.name(0).unwrap_or_default()];
        self.at += 1;
        while self.peek(0) == Some(&Mark("::")) {
            let Some(next) = self.name(1) else { break };
            path.push(next);
            self.at += 2;
        }
        if let Some(full) = (path.len() > 1).then(|| self.full(path)).flatten() {
            self.found.push(full);
        }
    }

    /// A tree of a `use`, below `stem`.
    fn tree(&mut self, stem: &[String]) {
        let mut path = stem.to_vec();
        if self.peek(0) == Some(&Mark("::")) {
            self.at += 1;
        }
        loop {
            match self.peek(0).cloned() {
                Some(Name(word)) if word == "as" => {
                    let alias = self.name(1).unwrap_or_default();
                    self.at += 2;
                    return self.add_import(path, Some(alias));
                }
                Some(Name(word)) => {
                    path.push(word);
                    self.at += 1;
                }
                Some(Mark("::")) => self.at += 1,
                Some(Mark("{")) => {
                    self.at += 1;
                    while self.peek(0).is_some_and(|token| *token != Mark("}")) {
                        let before = self.at;
                        self.tree(&path);
                        // The comma, or a token that is no part of a tree (a macro's `$`).
                        if self.peek(0) == Some(&Mark(",")) || self.at == before {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                Some(Mark("*")) => {
                    self.at += 1;
                    return self.add_import(path, Some("*".to_owned()));
                }
                _ => return self.add_import(path, None),
            }
        }
    }

    fn add_import(&mut self, mut path: Vec<String>, alias: Option<String>) {
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = alias.or_else(|| path.last().cloned());
        if let (Some(name), Some(full)) = (name, self.full(path)) {
            self.names.insert(name, full.clone());
            self.found.push(full);
        }
    }

    /// The path from its crate on; `None` for one that begins with a type or module of this file.
    fn full(&self, path: Vec<String>) -> Option<FullPath> {
        let mut module = self.home.clone();
        module.extend(self.inner.iter().map(|(name, _)| name.clone()));
        let mut rest = path.as_slice();
        let begin = match rest.first()?.as_str() {
            "crate" => {
                rest = &rest[1..];
                vec!["crate".to_owned(), self.member.clone()]
            }
            "self" | "super" => {
                while let Some(word) = rest
                    .first()
                    .filter(|word| *word == "super" || *word == "self")
                {
                    if word == "super" {
                        module.pop();
                    }
                    rest = &rest[1..];
                }
                let mut begin = vec!["crate".to_owned()];
                begin.extend(module);
                begin
            }
            first if first.starts_with("machinist_") => {
                rest = &rest[1..];
                let member = first.trim_start_matches("machinist_");
                vec!["crate".to_owned(), member.to_owned()]
            }
            first if is_outside(first) => Vec::new(),
            first
                if self
                    .own_modules
                    .as_ref()
                    .is_some_and(|own| own.contains(first)) =>
            {
                let mut begin = vec!["crate".to_owned()];
                begin.extend(module);
                begin
            }
            first => {
                let known = self.names.get(first)?.clone();
                rest = &rest[1..];
                known
            }
        };
        Some([&begin, rest].concat())
    }
}

/// Whether a path with this first segment is outside the workspace.
fn is_outside(first: &str) -> bool {
    first == "std" || first == "core" || first == "alloc" || dependencies().contains(&first)
}

/// The crates that Cargo.toml names, as code spells them.
pub(crate) fn dependencies() -> &'static [&'static str] {
    static NAMES: std::sync::OnceLock<Vec<&'static str>> = std::sync::OnceLock::new();
    NAMES.get_or_init(|| {
        let manifest = include_str!("../../Cargo.toml");
        let section = manifest.split("[workspace.dependencies]\n").nth(1).unwrap();
        let section = section.split("\n[").next().unwrap();
        let names = section.lines().filter_map(|line| line.split_once(" = "));
        names
            .map(|(name, _)| &*name.trim().replace('-', "_").leak())
            .collect()
    })
}
