//! Refuses YAML 1.2 that the CDI library's YAML 1.1 parser would refuse.

use machinist_yaml::{Event, Marker, ScalarStyle, Span, StructureStyle};

/// Checks the events of one document against its text.
pub(super) struct DialectChecker<'t> {
    text: &'t str,
    /// For each open collection, whether it is in flow style.
    open: Vec<bool>,
    /// The byte offset at which the last scalar, alias or bracket ends.
    end: usize,
}

impl<'t> DialectChecker<'t> {
    pub(super) const fn new(text: &'t str) -> Self {
        Self {
            text,
            open: Vec::new(),
            end: 0,
        }
    }

    /// Refuses an event that the library would refuse. `is_key` is set for the key of a map.
    pub(super) fn check_event(
        &mut self,
        event: &Event<'_>,
        span: &Span,
        is_key: bool,
    ) -> Result<(), String> {
        if is_key && span.start.line() != span.end.line() {
            return Err("a key spans several lines".to_owned());
        }
        let offset = |mark: Marker| mark.byte_offset().unwrap_or_default();
        let (start, end) = (offset(span.start), offset(span.end));
        let (in_flow, before) = (self.in_flow(), self.end);
        let is_value = match event {
            Event::DocumentStart(_, Some(version)) if (version.major, version.minor) != (1, 1) => {
                let (major, minor) = (version.major, version.minor);
                let version = format!("%YAML {major}.{minor}");
                return Err(version + " is not supported; expected 1.1");
            }
            Event::DocumentStart(is_written, _) => {
                if *is_written {
                    check_directives(self.text.get(..start).unwrap_or_default())?;
                    self.end = end;
                }
                false
            }
            Event::Scalar(_, style, anchor, tag) => {
                if is_key {
                    let properties = usize::from(*anchor != 0) + usize::from(tag.is_some());
                    self.check_key_line((start, end), properties)?;
                }
                if tag.is_some() && start == end {
                    check_tag_end(self.text, start)?;
                }
                self.end = end;
                if *style == ScalarStyle::DoubleQuoted
                    && let Some(written) = self.text.get(start..end)
                {
                    check_escapes(written)?;
                }
                true
            }
            Event::Alias(_) => {
                self.end = end;
                true
            }
            Event::SequenceStart(style, ..) | Event::MappingStart(style, ..) => {
                let flow = *style == StructureStyle::Flow;
                self.open.push(flow);
                if flow {
                    self.end = end;
                }
                true
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if self.open.pop() == Some(true) {
                    self.end = end;
                }
                false
            }
            _ => false,
        };
        let between = self.text.get(before..start).unwrap_or_default();
        match is_value && !in_flow && has_tab(between, before == 0) {
            true => Err("a tab cannot be used for indentation".to_owned()),
            false => Ok(()),
        }
    }

    /// Checks that a key is on the same line as its tag, its anchor and its colon, as the library
    /// demands.
    fn check_key_line(&self, key: (usize, usize), properties: usize) -> Result<(), String> {
        let before = self.text.get(self.end..key.0).unwrap_or_default();
        let same_line = before.rsplit('\n').next().unwrap_or_default();
        if same_line.matches(['!', '&']).count() < properties {
            return Err("a key and its tag or anchor are on different lines".to_owned());
        }
        let explicit = before.trim_end().ends_with('?');
        if key.0 == key.1 && properties == 0 && !explicit {
            return Err("a key is missing before the colon".to_owned());
        }
        let after = self.text.get(key.1..).unwrap_or_default();
        let colon = after.trim_start();
        let blank = &after[..after.len() - colon.len()];
        match !explicit && colon.starts_with(':') && blank.contains('\n') {
            true => Err("a key and its colon are on different lines".to_owned()),
            false => Ok(()),
        }
    }

    fn in_flow(&self) -> bool {
        self.open.last() == Some(&true)
    }
}

/// Refuses directives before the first document that YAML 1.1 does not define.
fn check_directives(before: &str) -> Result<(), String> {
    let mut names = before
        .lines()
        .filter_map(|line| line.strip_prefix('%')?.split_whitespace().next());
    match names.find(|name| !["YAML", "TAG"].contains(name)) {
        Some(name) => Err(format!("%{name} is not a directive of YAML")),
        None => Ok(()),
    }
}

/// Refuses a tag without a value that is followed directly by a comma or bracket.
fn check_tag_end(text: &str, at: usize) -> Result<(), String> {
    let (before, after) = text.split_at_checked(at).unwrap_or_default();
    let spaced = before.ends_with(char::is_whitespace);
    match !spaced && after.starts_with([',', ']', '}']) {
        true => Err("a space is missing after a tag".to_owned()),
        false => Ok(()),
    }
}

/// Whether a tab indents the text that follows `between`: at the start of a line, or after the `-` of
/// a list item.
fn has_tab(between: &str, from_line_start: bool) -> bool {
    let mut lines = between.split('\n').enumerate();
    lines.any(|(number, line)| {
        let mut rest = line;
        if number == 0 && !from_line_start {
            let Some(dash) = line.find(['-', '?']) else {
                return false;
            };
            rest = &line[dash..];
        }
        loop {
            let after = rest.trim_start_matches([' ', '\t']);
            if rest[..rest.len() - after.len()].contains('\t') {
                return true;
            }
            match after.strip_prefix(['-', '?']) {
                Some(next) => rest = next,
                None => return false,
            }
        }
    })
}

/// Refuses `\/` and surrogate pairs, which JSON allows and YAML 1.1 does not.
fn check_escapes(written: &str) -> Result<(), String> {
    let mut rest = written;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at + 1..];
        let digits = escape.strip_prefix('u').and_then(|code| code.get(..4));
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        if escape.starts_with('/') {
            return Err("the escape \\/ is not supported".to_owned());
        }
        if code.is_some_and(|code| (0xd800..0xe000).contains(&code)) {
            return Err(
                "a character is escaped as a surrogate pair; use \\U and 8 digits".to_owned(),
            );
        }
        let mut after = escape.chars();
        after.next();
        rest = after.as_str();
    }
    Ok(())
}
