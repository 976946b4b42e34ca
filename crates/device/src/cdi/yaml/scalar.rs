//! Resolves the type of scalars: YAML 1.2 plus YAML 1.1's octal numbers and, in boolean fields, its
//! words for true and false.

use machinist_yaml::{
    ScalarTag, ScalarValue, TypedScalar, is_null, parse_flag, parse_flag_word, parse_float,
    parse_integer,
};

/// A scalar with its original spelling, which text fields keep.
#[derive(Clone, Debug)]
pub(super) struct YamlScalar {
    pub(super) text: String,
    pub(super) meaning: ScalarType,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ScalarType {
    Null,
    Flag(bool),
    Integer(i128),
    Float(f64),
    /// `<<`, which merges another map into this one.
    Merge,
    Text,
}

impl AsRef<str> for YamlScalar {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl YamlScalar {
    /// Resolves `text`. An unknown tag makes it a text.
    pub(super) fn new(text: String, plain: bool, tag: ScalarTag) -> Result<Self, String> {
        let meaning = ScalarType::of(&text);
        let meaning = match (tag, meaning) {
            (ScalarTag::None | ScalarTag::NonSpecific, _) if plain => meaning,
            (ScalarTag::None | ScalarTag::NonSpecific, _)
            | (ScalarTag::Text | ScalarTag::Unknown, _) => ScalarType::Text,
            (ScalarTag::Null, ScalarType::Null)
            | (ScalarTag::Boolean, ScalarType::Flag(_))
            | (ScalarTag::Integer, ScalarType::Integer(_))
            | (ScalarTag::Float, ScalarType::Float(_) | ScalarType::Integer(_)) => meaning,
            _ => return Err(format!("{text:?} is not a value of its tag's type")),
        };
        Ok(Self { text, meaning })
    }
}

impl TypedScalar for YamlScalar {
    const NULL_IS_ABSENT: bool = true;

    fn is_null(&self) -> bool {
        self.meaning == ScalarType::Null
    }

    fn is_merge(&self) -> bool {
        self.meaning == ScalarType::Merge
    }

    fn text(&self) -> Option<&str> {
        (!self.is_null()).then_some(&self.text)
    }

    /// Accepts YAML 1.1 words such as `yes` and `off` too.
    fn flag(&self) -> Option<bool> {
        match self.meaning {
            ScalarType::Flag(flag) => Some(flag),
            ScalarType::Text => parse_flag_word(&self.text),
            _ => None,
        }
    }

    /// The fraction of a floating-point number is cut off.
    fn integer(&self) -> Option<i128> {
        match self.meaning {
            ScalarType::Integer(number) => Some(number),
            // An `i128` can represent every integer of this size.
            #[allow(clippy::cast_possible_truncation, reason = "the size was compared")]
            ScalarType::Float(number) if number.abs() <= 1e19 => Some(number as i128),
            _ => None,
        }
    }

    fn value(&self) -> Result<ScalarValue<'_>, String> {
        Ok(match self.meaning {
            ScalarType::Null => ScalarValue::Null,
            ScalarType::Flag(flag) => ScalarValue::Flag(flag),
            ScalarType::Integer(number) => ScalarValue::Integer(number),
            ScalarType::Float(number) => ScalarValue::Float(number),
            ScalarType::Merge | ScalarType::Text => ScalarValue::Text(&self.text),
        })
    }
}

impl ScalarType {
    fn of(text: &str) -> Self {
        if is_null(text) {
            return Self::Null;
        }
        if text == "<<" {
            return Self::Merge;
        }
        let digits = text.replace('_', "");
        // Of too large numbers, those with digits are texts.
        let is_number = |number: &f64| number.is_finite() || !text.contains(char::is_numeric);
        let number = || parse_float(&digits).filter(is_number).map(Self::Float);
        let flag = parse_flag(text).map(Self::Flag);
        flag.or_else(|| integer(&digits).map(Self::Integer))
            .or_else(number)
            .unwrap_or(Self::Text)
    }
}

/// Parses a 64-bit integer: signed if it has a sign, else unsigned.
fn integer(text: &str) -> Option<i128> {
    let number = parse_integer(text, true)?;
    let fits = match text.starts_with(['-', '+']) {
        true => i64::try_from(number).is_ok(),
        false => u64::try_from(number).is_ok(),
    };
    fits.then_some(number)
}
