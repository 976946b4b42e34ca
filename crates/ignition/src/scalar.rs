//! Interprets scalars like Kubernetes' own YAML reader.
//!
//! That reader follows YAML 1.1: `yes` and `on` are true, `0644` is octal. A manifest must mean the
//! same here as in a cluster, so these rules apply and not those of YAML 1.2.

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
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return Self::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
                return Self::Flag(true);
            }
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off"
            | "OFF" => return Self::Flag(false),
            _ => {}
        }
        if let Some(number) = integer(text) {
            Self::Integer(number)
        } else if is_float(text) {
            Self::Number
        } else {
            Self::Text(text)
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

fn integer(text: &str) -> Option<i64> {
    let text = text.replace('_', "");
    let (sign, digits) = match text.as_bytes().first()? {
        b'-' => (-1, &text[1..]),
        b'+' => (1, &text[1..]),
        _ => (1, &*text),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // from_str_radix would accept a second sign.
    if !digits.bytes().next()?.is_ascii_alphanumeric() {
        return None;
    }
    i64::from_str_radix(digits, base).ok()?.checked_mul(sign)
}

/// Whether Kubernetes would read a floating-point number. Rust's own parser also accepts `inf`,
/// `nan` and `1.`, which are strings there; only the precision of the refusal message depends on
/// it.
fn is_float(text: &str) -> bool {
    let bare = text.trim_start_matches(['-', '+']);
    matches!(bare, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN")
        || (bare.starts_with(|c: char| c.is_ascii_digit() || c == '.')
            && text.parse::<f64>().is_ok())
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
