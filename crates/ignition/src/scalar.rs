//! Interprets scalars like Kubernetes' own YAML reader.
//!
//! That reader follows YAML 1.1: `yes` and `on` are true, `0644` is octal. A manifest must mean the
//! same here as in a cluster, so these rules apply and not those of YAML 1.2.

use machinist_yaml::{is_null, parse_flag, parse_flag_word, parse_float, parse_integer};

/// The value of a scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ScalarValue<'t> {
    Null,
    Flag(bool),
    Integer(i64),
    /// A number that is not a 64-bit integer.
    Number,
    Text(&'t str),
}

impl<'t> ScalarValue<'t> {
    /// The value of `text`; quoted text is always a string.
    pub(super) fn of(text: &'t str, plain: bool) -> Self {
        if !plain {
            return Self::Text(text);
        }
        if is_null(text) {
            return Self::Null;
        }
        if let Some(flag) = parse_flag(text).or_else(|| parse_flag_word(text)) {
            return Self::Flag(flag);
        }
        let number = parse_integer(&text.replace('_', ""), true);
        match number.and_then(|number| i64::try_from(number).ok()) {
            Some(number) => Self::Integer(number),
            None if parse_float(text).is_some() => Self::Number,
            None => Self::Text(text),
        }
    }

    /// A description of the type for messages.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Flag(_) => "true or false",
            Self::Integer(_) | Self::Number => "a number",
            Self::Text(_) => "text",
        }
    }
}

/// The shortest number, in digits, that is none of 64 bits.
const MIN_TOO_LARGE_DIGITS: usize = 19;

/// Describes the integer that was expected in place of `text`.
pub(super) fn expected_integer(text: &str) -> &'static str {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_long = digits.len() >= MIN_TOO_LARGE_DIGITS;
    match is_long && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        true => "a whole number that fits into 64 bits",
        false => "a whole number",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_scalars_are_read_as_by_kubernetes() {
        for (text, meaning) in [
            ("", ScalarValue::Null),
            ("~", ScalarValue::Null),
            ("yes", ScalarValue::Flag(true)),
            ("Off", ScalarValue::Flag(false)),
            ("420", ScalarValue::Integer(420)),
            ("0644", ScalarValue::Integer(420)),
            ("0o644", ScalarValue::Integer(420)),
            ("0x1a4", ScalarValue::Integer(420)),
            ("-1", ScalarValue::Integer(-1)),
            ("0", ScalarValue::Integer(0)),
            ("1.5", ScalarValue::Number),
            ("08", ScalarValue::Number),
            ("99999999999999999999", ScalarValue::Number),
            ("--1", ScalarValue::Text("--1")),
            ("0x+1", ScalarValue::Text("0x+1")),
            ("inf", ScalarValue::Text("inf")),
            ("1.2.3", ScalarValue::Text("1.2.3")),
            ("/etc/x", ScalarValue::Text("/etc/x")),
        ] {
            assert_eq!(ScalarValue::of(text, true), meaning, "{text}");
        }
        assert_eq!(ScalarValue::of("420", false), ScalarValue::Text("420"));
    }
}
