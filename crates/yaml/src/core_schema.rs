//! The scalars of YAML 1.2's core schema: `true` and `false` are the only booleans, `0o17` is octal.

use granit_parser::{Event, ScalarStyle, Span, Tag};

use crate::{
    Dialect, NODE_OVERHEAD_BYTES, ScalarTag, ScalarValue, TypedScalar,
    error::quoted,
    is_null, parse_flag, parse_float, parse_integer,
    scalar_tag::{is_standard, unsupported},
};

/// The dialect of machinist's own documents. Merge keys (`<<`) are supported.
#[derive(Clone, Copy, Debug)]
pub struct CoreSchema;

/// A scalar whose type depends on the field that it is for.
#[derive(Clone, Debug)]
pub struct CoreScalar {
    text: String,
    plain: bool,
    tag: ScalarTag,
}

impl Dialect for CoreSchema {
    type Scalar = CoreScalar;

    /// As many values as the largest document of 64 KiB may have without aliases.
    const MAX_ALIASED_BYTES: usize = 10_000 * NODE_OVERHEAD_BYTES;

    fn check(&mut self, event: &Event<'_>, _: &Span, _: bool) -> Result<(), String> {
        let (tag, own) = match event {
            Event::SequenceStart(.., Some(tag)) => (tag, "seq"),
            Event::MappingStart(.., Some(tag)) => (tag, "map"),
            _ => return Ok(()),
        };
        match ScalarTag::of(Some(tag)) {
            Ok(ScalarTag::Unknown | ScalarTag::NonSpecific) => Ok(()),
            Err(_) if is_standard(tag, own) => Ok(()),
            _ => Err(unsupported(tag)),
        }
    }

    fn scalar(text: String, style: ScalarStyle, tag: Option<&Tag>) -> Result<CoreScalar, String> {
        let (plain, tag) = (style == ScalarStyle::Plain, ScalarTag::of(tag)?);
        Ok(CoreScalar { text, plain, tag })
    }

    fn key_fault(key: &CoreScalar) -> Option<&'static str> {
        key.text().is_none().then_some("a key must be a text")
    }
}

impl AsRef<str> for CoreScalar {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl CoreScalar {
    /// The text without the white space that a quoted number or boolean may have around it.
    fn trimmed(&self) -> &str {
        self.text.trim_matches([' ', '\t', '\r', '\n'])
    }

    /// Whether the tag allows a type whose own tag is `tag`.
    fn may_be(&self, tag: ScalarTag) -> bool {
        match self.tag {
            ScalarTag::None | ScalarTag::Unknown => true,
            ScalarTag::NonSpecific => tag != ScalarTag::Null,
            own => own == tag,
        }
    }

    /// The value of an untyped field by its spelling alone.
    fn by_spelling(&self) -> Result<ScalarValue<'_>, String> {
        if let Some(flag) = self.flag() {
            return Ok(ScalarValue::Flag(flag));
        }
        // A number that no 64-bit integer holds is a floating-point number.
        let fits = |number: &i128| i64::try_from(*number).is_ok() || u64::try_from(*number).is_ok();
        if let Some(number) = self.integer().filter(fits) {
            return Ok(ScalarValue::Integer(number));
        }
        match parse_float(self.trimmed()) {
            Some(number) => finite(number, &self.text),
            None => Ok(ScalarValue::Text(&self.text)),
        }
    }
}

impl TypedScalar for CoreScalar {
    const NULL_IS_ABSENT: bool = false;

    fn is_null(&self) -> bool {
        let empty = self.plain && is_null(&self.text) && self.may_be(ScalarTag::Null);
        empty || self.tag == ScalarTag::Null
    }

    fn is_merge(&self) -> bool {
        let plain = self.plain && self.tag == ScalarTag::None;
        self.text == "<<" && (plain || self.tag == ScalarTag::Merge)
    }

    fn text(&self) -> Option<&str> {
        let is_text = self.may_be(ScalarTag::Text) || self.tag == ScalarTag::Merge;
        (is_text && !self.is_null()).then_some(&self.text)
    }

    /// Quoted booleans are accepted in a boolean field.
    fn flag(&self) -> Option<bool> {
        parse_flag(self.trimmed()).filter(|_| self.may_be(ScalarTag::Boolean))
    }

    /// Quoted numbers are accepted in a number field.
    fn integer(&self) -> Option<i128> {
        parse_integer(self.trimmed(), false).filter(|_| self.may_be(ScalarTag::Integer))
    }

    fn value(&self) -> Result<ScalarValue<'_>, String> {
        let wrong = || format!("{} has a tag of another type", quoted(&self.text));
        match self.tag {
            _ if self.is_null() => Ok(ScalarValue::Null),
            ScalarTag::Boolean => self.flag().map(ScalarValue::Flag).ok_or_else(wrong),
            ScalarTag::Integer => self.integer().map(ScalarValue::Integer).ok_or_else(wrong),
            ScalarTag::Float => {
                let number = parse_float(self.trimmed()).ok_or_else(wrong)?;
                finite(number, &self.text)
            }
            ScalarTag::None | ScalarTag::Unknown if self.plain => self.by_spelling(),
            _ => Ok(ScalarValue::Text(&self.text)),
        }
    }
}

fn finite(number: f64, text: &str) -> Result<ScalarValue<'_>, String> {
    match number.is_finite() {
        true => Ok(ScalarValue::Float(number)),
        false => Err(format!("{} is not a finite number", quoted(text))),
    }
}
