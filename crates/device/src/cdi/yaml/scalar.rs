//! Resolves the type of scalars: YAML 1.2 plus YAML 1.1's octal numbers and, in boolean fields, its
//! words for true and false.

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
    /// Resolves `text`; `tag` is its tag in the short form.
    pub(super) fn new(text: String, plain: bool, tag: Option<String>) -> Result<Self, String> {
        let meaning = match tag.as_deref() {
            None if plain => ScalarType::of(&text),
            None | Some("!!str") => ScalarType::Text,
            Some("!!binary") => return Err("the tag !!binary is not supported".to_owned()),
            Some(tag) if tag.starts_with("!!") => tagged(&text, tag)?,
            Some(_) => ScalarType::Text,
        };
        Ok(Self { text, meaning })
    }

    /// The value for a boolean field, which also accepts YAML 1.1 words such as `yes` and `off`.
    pub(super) fn flag(&self) -> Option<bool> {
        match (self.meaning, self.text.as_str()) {
            (ScalarType::Flag(flag), _) => Some(flag),
            (ScalarType::Text, "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON") => {
                Some(true)
            }
            (ScalarType::Text, "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF") => {
                Some(false)
            }
            _ => None,
        }
    }

    /// The value for an integer field; the fraction of a floating-point number is cut off.
    pub(super) fn integer(&self) -> Option<i128> {
        match self.meaning {
            ScalarType::Integer(number) => Some(number),
            // An `i128` can represent every integer of this size.
            #[allow(clippy::cast_possible_truncation, reason = "the size was compared")]
            ScalarType::Float(number) if number.abs() <= 1e19 => Some(number as i128),
            _ => None,
        }
    }
}

/// Resolves a scalar with one of YAML's core tags.
fn tagged(text: &str, tag: &str) -> Result<ScalarType, String> {
    let meaning = ScalarType::of(text);
    match (tag, meaning) {
        ("!!null", ScalarType::Null)
        | ("!!bool", ScalarType::Flag(_))
        | ("!!int", ScalarType::Integer(_))
        | ("!!float", ScalarType::Float(_) | ScalarType::Integer(_)) => Ok(meaning),
        _ => Err(format!("{text:?} is not a value of type {tag}")),
    }
}

impl ScalarType {
    fn of(text: &str) -> Self {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return Self::Null,
            "true" | "True" | "TRUE" => return Self::Flag(true),
            "false" | "False" | "FALSE" => return Self::Flag(false),
            "<<" => return Self::Merge,
            ".nan" | ".NaN" | ".NAN" => return Self::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
                return Self::Float(f64::INFINITY);
            }
            "-.inf" | "-.Inf" | "-.INF" => return Self::Float(f64::NEG_INFINITY),
            _ => {}
        }
        if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
            return Self::Text;
        }
        let digits = text.replace('_', "");
        integer(&digits)
            .map(Self::Integer)
            .or_else(|| float(&digits).map(Self::Float))
            .unwrap_or(Self::Text)
    }
}

/// Parses a signed or unsigned 64-bit integer.
fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let size = u64::from_str_radix(digits, base).ok().map(i128::from)?;
    // With a sign it must fit into a signed integer.
    match text.starts_with(['-', '+']) {
        true if negative => Some(-size).filter(|number| *number >= i64::MIN.into()),
        true => Some(size).filter(|number| *number <= i64::MAX.into()),
        false => Some(size),
    }
}

/// Parses a finite decimal floating-point number.
fn float(text: &str) -> Option<f64> {
    let known = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+' | '-');
    let number: f64 = text.chars().all(known).then(|| text.parse().ok())??;
    number.is_finite().then_some(number)
}
