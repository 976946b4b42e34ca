//! Parses kernel arguments with the kernel's own rules.
//!
//! The rules are those of `next_arg` in the kernel's `lib/cmdline.c`: only `"` quotes, there are no
//! escapes, quotes around a value or around a whole argument are dropped, `-` and `_` are equal in
//! names, and arguments after `--` are passed to init.

use std::{cmp::Ordering, collections::BTreeSet, fmt};

/// The maximum length of a kernel command line in bytes, without the final NUL.
const MAX_COMMAND_LINE_BYTES: usize = if cfg!(target_arch = "s390x") {
    4095
} else {
    2047
};

/// The no-break space of Latin-1, which the kernel's `isspace` takes for a blank. It knows bytes, of which a character
/// in UTF-8 has several.
const KERNEL_BLANK: u8 = 0xa0;

/// Ends the arguments of the kernel; init gets the rest.
const INIT_SEPARATOR: &str = "--";

/// One argument. Two are equal if they mean the same to the kernel, even if they are spelled
/// differently.
#[derive(Clone, Debug)]
pub struct KernelArgument {
    text: String,
    name: String,
    value: Option<String>,
    for_init: bool,
}

impl KernelArgument {
    /// Splits one word into its name and its value.
    fn new(word: &str, for_init: bool) -> Self {
        let inner = word.strip_prefix('"').unwrap_or(word);
        // A name has at least one character.
        let equals = inner.char_indices().skip(1).find(|(_, c)| *c == '=');
        let (name, value) = match equals {
            None => (inner, None),
            Some((at, _)) => (&inner[..at], Some(&inner[at + 1..])),
        };
        let quoted = inner.len() < word.len();
        let value_quoted = value.is_some_and(|value| value.starts_with('"'));
        // A closing quote matches the one before the argument or the one before its value.
        let ended = |text| match quoted || value_quoted {
            true => str::strip_suffix(text, '"').unwrap_or(text),
            false => text,
        };
        let value = value.map(|value| ended(value.strip_prefix('"').unwrap_or(value)));
        let name = value.map_or_else(|| ended(name), |_| name);
        Self {
            text: word.to_owned(),
            name: match for_init {
                true => name.to_owned(),
                false => name.replace('-', "_"),
            },
            value: value.map(str::to_owned),
            for_init,
        }
    }

    /// The original text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The name, with `_` for `-`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text after the first `=`, without the quotes around it.
    pub fn value(&self) -> Option<&str> {
        self.value.as_deref()
    }

    /// Whether the kernel passes it to init: it follows `--`.
    pub const fn is_for_init(&self) -> bool {
        self.for_init
    }

    fn key(&self) -> (bool, &str) {
        (self.for_init, &self.name)
    }
}

impl PartialEq for KernelArgument {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for KernelArgument {}

impl PartialOrd for KernelArgument {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KernelArgument {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.key(), &self.value).cmp(&(other.key(), &other.value))
    }
}

/// Arguments in order. Those for init come last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelCommandLine(Vec<KernelArgument>);

impl KernelCommandLine {
    /// Parses a whole command line, such as `/proc/cmdline`.
    pub fn parse(text: &str) -> Self {
        let mut all = Vec::new();
        let mut for_init = false;
        for word in words(text) {
            if !for_init && word.trim_matches('"') == INIT_SEPARATOR {
                for_init = true;
                continue;
            }
            all.push(KernelArgument::new(word, for_init));
        }
        Self(all)
    }

    /// Parses the texts of a config, each of which may contain any number of arguments.
    pub fn of(texts: &[String]) -> Self {
        Self::parse(&texts.join(" "))
    }

    /// The arguments.
    pub fn iter(&self) -> std::slice::Iter<'_, KernelArgument> {
        self.0.iter()
    }

    /// Whether an equivalent argument is among them.
    pub fn contains(&self, argument: &KernelArgument) -> bool {
        self.0.contains(argument)
    }

    /// Appends the arguments of another command line.
    pub fn append(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
        self.0.sort_by_key(|argument| argument.for_init);
    }

    /// Removes the last equivalent argument.
    pub fn remove_last(&mut self, argument: &KernelArgument) {
        if let Some(at) = self.0.iter().rposition(|one| one == argument) {
            self.0.remove(at);
        }
    }

    /// Those of its arguments that a kernel started with `running` does not have, in their order.
    /// An argument that occurs several times needs to be present only once. The order of arguments
    /// with the same name matters, since a later one may override an earlier one: those that follow a missing one are
    /// missing, too.
    pub fn missing_from(&self, running: &Self) -> Vec<&KernelArgument> {
        let mut later = BTreeSet::new();
        let last = self.0.iter().rev().filter(|one| later.insert(*one));
        let mut wanted: Vec<_> = last.collect();
        wanted.reverse();
        missing(wanted, running)
    }

    /// Like [`Self::missing_from`] for a message: without those that follow a missing one and are there, unless only the
    /// order differs.
    pub fn absent_from(&self, running: &Self) -> Vec<&KernelArgument> {
        let missing = self.missing_from(running);
        let is_absent = |one: &&KernelArgument| !running.contains(one);
        match missing.iter().any(is_absent) {
            true => missing.into_iter().filter(is_absent).collect(),
            false => missing,
        }
    }

    /// Like [`Self::missing_from`], but an argument that occurs several times must be present as often.
    pub fn missing_with_repeats_from(&self, running: &Self) -> Vec<&KernelArgument> {
        missing(self.0.iter().collect(), running)
    }

    /// Whether a kernel would truncate it.
    pub fn is_too_long(&self) -> bool {
        self.is_too_long_with(0)
    }

    /// Whether a kernel would truncate it if a boot loader adds arguments of this length.
    pub fn is_too_long_with(&self, added_bytes: usize) -> bool {
        let lengths = self.0.iter().map(|argument| argument.text.len() + 1);
        lengths.sum::<usize>() + added_bytes > MAX_COMMAND_LINE_BYTES
    }

    /// The maximum length of a command line in bytes.
    pub const fn longest() -> usize {
        MAX_COMMAND_LINE_BYTES
    }
}

fn missing<'a>(
    mut wanted: Vec<&'a KernelArgument>,
    running: &KernelCommandLine,
) -> Vec<&'a KernelArgument> {
    let mut present = PresentArguments::of(running);
    wanted.retain(|one| {
        let is_missing = !present.take(one);
        if is_missing {
            present.clear(one);
        }
        is_missing
    });
    wanted
}

/// The arguments of a running kernel that were not compared yet, in their order.
struct PresentArguments<'a>(Vec<&'a KernelArgument>);

impl<'a> PresentArguments<'a> {
    fn of(running: &'a KernelCommandLine) -> Self {
        Self(running.0.iter().collect())
    }

    /// Takes the argument, and those of its name before it. Returns whether it was there.
    fn take(&mut self, argument: &KernelArgument) -> bool {
        let Some(at) = self.0.iter().position(|one| *one == argument) else {
            return false;
        };
        let mut later = self.0.split_off(at + 1);
        self.clear(argument);
        self.0.append(&mut later);
        true
    }

    /// Takes all arguments of this name.
    fn clear(&mut self, argument: &KernelArgument) {
        self.0.retain(|one| one.key() != argument.key());
    }
}

impl FromIterator<KernelArgument> for KernelCommandLine {
    fn from_iter<I: IntoIterator<Item = KernelArgument>>(arguments: I) -> Self {
        let mut all = Self(arguments.into_iter().collect());
        all.append(&Self::default());
        all
    }
}

/// The format that a boot loader passes to the kernel.
impl fmt::Display for KernelCommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before: Option<&KernelArgument> = None;
        for argument in &self.0 {
            if before.is_some() {
                f.write_str(" ")?;
            }
            if argument.for_init && !before.is_some_and(|before| before.for_init) {
                write!(f, "{INIT_SEPARATOR} ")?;
            }
            f.write_str(&argument.text)?;
            before = Some(argument);
        }
        Ok(())
    }
}

/// Why a text cannot be passed to a kernel unchanged; none if it can.
pub fn kernel_argument_fault(text: &str) -> Option<&'static str> {
    match text {
        _ if text.contains('\0') => Some("contains a NUL, which ends the kernel command line"),
        _ if text.contains(['\n', '\r']) => Some("contains a line break"),
        _ if text.matches('"').count() % 2 == 1 => Some("has an unclosed \""),
        // Also within quotes: GRUB writes them again only around real blanks.
        _ if text.bytes().any(|byte| byte == KERNEL_BLANK) => Some(
            "contains the byte A0, as in a no-break space or in à: the kernel splits arguments there",
        ),
        _ => None,
    }
}

/// The words separated by blanks outside of quotes.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut in_quotes = false;
    let blank = |c: char| c.is_ascii_whitespace() || c == '\u{b}';
    let between = move |c: char| {
        in_quotes ^= c == '"';
        blank(c) && !in_quotes
    };
    text.split(between).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests;
