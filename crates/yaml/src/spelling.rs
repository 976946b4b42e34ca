//! Parses the spellings of scalars that dialects share.

/// Whether a plain scalar is a null.
pub fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// Parses a boolean of YAML 1.2.
pub fn parse_flag(text: &str) -> Option<bool> {
    match text {
        "true" | "True" | "TRUE" => Some(true),
        "false" | "False" | "FALSE" => Some(false),
        _ => None,
    }
}

/// Parses the words that only YAML 1.1 has for true and false.
pub fn parse_flag_word(text: &str) -> Option<bool> {
    match text {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some(true),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some(false),
        _ => None,
    }
}

/// Parses an integer in which single underscores may separate digits. A leading zero means octal in
/// YAML 1.1 (`octal_zero`); in YAML 1.2 a number with one is not an integer.
pub fn parse_integer(text: &str, octal_zero: bool) -> Option<i128> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (base, digits) = match unsigned.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &unsigned[2..]),
        [b'0', b'o' | b'O', ..] => (8, &unsigned[2..]),
        [b'0', b'b' | b'B', ..] => (2, &unsigned[2..]),
        [b'0', _, ..] if octal_zero => (8, &unsigned[1..]),
        [b'0', _, ..] => return None,
        _ => (10, unsigned),
    };
    // Rust would accept a second sign.
    if digits.split('_').any(str::is_empty) || digits.contains(['+', '-']) {
        return None;
    }
    let size = i128::from_str_radix(&digits.replace('_', ""), base).ok()?;
    Some(if text.starts_with('-') { -size } else { size })
}

/// Parses a decimal floating-point number; one that is too large is infinite.
pub fn parse_float(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    match unsigned {
        ".nan" | ".NaN" | ".NAN" => Some(f64::NAN),
        ".inf" | ".Inf" | ".INF" if text.starts_with('-') => Some(f64::NEG_INFINITY),
        ".inf" | ".Inf" | ".INF" => Some(f64::INFINITY),
        // Rust also parses `inf` and `nan`, which are texts in YAML.
        _ if unsigned.starts_with(|c: char| c.is_ascii_digit() || c == '.') => text.parse().ok(),
        _ => None,
    }
}
