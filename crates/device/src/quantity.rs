//! Kubernetes quantities: `40Gi`, `500m`, `2e3`.
//!
//! Quantities are kept in the API server's canonical form, without a fraction and with the largest
//! suffix that loses nothing, so that a value read back from the server compares equal.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The API server's resolution is one billionth.
const NANOS_PER_UNIT: u128 = 1_000_000_000;
/// The maximum in billionths: the API server stores 64-bit integers.
const MAX_NANOS: u128 = i64::MAX as u128 * NANOS_PER_UNIT;
/// The maximum number of characters; no valid quantity is longer.
const MAX_CHARS: usize = 40;

const DECIMAL_SUFFIXES: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// A quantity, zero or more, in its canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Quantity(String);

/// The error for a text that is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadQuantity {
    /// The syntax is invalid.
    #[error("{0:?} is not a quantity")]
    Form(String),
    /// The API server would round or cap the value.
    #[error("{0:?} is out of range: too large for the API server, or finer than a billionth")]
    Size(String),
}

/// The notation of a quantity, which the canonical form keeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Decimal,
    Exponent,
    Binary,
}

impl Quantity {
    /// Parses a quantity. Signs are not accepted, since no capacity is negative.
    pub fn new(given: &str) -> Result<Self, BadQuantity> {
        let form = || BadQuantity::Form(given.chars().take(MAX_CHARS).collect());
        let size = || BadQuantity::Size(given.to_owned());
        if given.len() > MAX_CHARS {
            return Err(form());
        }
        let number = |c: char| c.is_ascii_digit() || c == '.';
        let end = given.find(|c| !number(c)).unwrap_or(given.len());
        let (digits, suffix) = given.split_at(end);
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(form());
        }
        let (style, factor) = suffixed(suffix).ok_or_else(form)?;
        let mantissa: u128 = format!("{whole}{fraction}").parse().map_err(|_| size())?;
        let decimals = i32::try_from(fraction.len()).map_err(|_| size())?;
        let nano = match factor {
            Factor::Ten(exponent) => scaled(mantissa, exponent + 9 - decimals),
            Factor::Two(bits) => mantissa
                .checked_mul(1 << bits)
                .and_then(|amount| scaled(amount, 9 - decimals)),
        };
        let nano = nano.filter(|nano| *nano <= MAX_NANOS).ok_or_else(size)?;
        Ok(Self(written(nano, style)))
    }

    /// The canonical form.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Quantity {
    type Error = BadQuantity;

    fn try_from(given: String) -> Result<Self, BadQuantity> {
        Self::new(&given)
    }
}

impl From<Quantity> for String {
    fn from(quantity: Quantity) -> Self {
        quantity.0
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

enum Factor {
    /// Ten to this power.
    Ten(i32),
    /// Two to this power.
    Two(u32),
}

fn suffixed(suffix: &str) -> Option<(Style, Factor)> {
    if let Some((_, exponent)) = DECIMAL_SUFFIXES.iter().find(|(known, _)| *known == suffix) {
        return Some((Style::Decimal, Factor::Ten(*exponent)));
    }
    if let Some(at) = BINARY_SUFFIXES.iter().position(|known| *known == suffix) {
        let bits = u32::try_from(at * 10).ok()?;
        return Some((Style::Binary, Factor::Two(bits)));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    // `parse` accepts only digits with an optional sign.
    let exponent: i32 = exponent.parse().ok()?;
    (-99..=99)
        .contains(&exponent)
        .then_some((Style::Exponent, Factor::Ten(exponent)))
}

/// `amount` times ten to this power, if that is an integer that fits.
fn scaled(amount: u128, power: i32) -> Option<u128> {
    if amount == 0 {
        return Some(0);
    }
    let factor = 10_u128.checked_pow(power.unsigned_abs())?;
    match power >= 0 {
        true => amount.checked_mul(factor),
        false => amount.is_multiple_of(factor).then(|| amount / factor),
    }
}

fn written(nano: u128, style: Style) -> String {
    if nano == 0 {
        return "0".to_owned();
    }
    let units = nano / NANOS_PER_UNIT;
    if style == Style::Binary && nano.is_multiple_of(NANOS_PER_UNIT) && units >= 1024 {
        let (number, steps) = reduced(units, 1024, BINARY_SUFFIXES.len() - 1);
        return format!("{number}{}", BINARY_SUFFIXES[steps]);
    }
    let (number, steps) = reduced(nano, 1000, DECIMAL_SUFFIXES.len() - 1);
    let (suffix, exponent) = DECIMAL_SUFFIXES[steps];
    match style {
        Style::Exponent if exponent != 0 => format!("{number}e{exponent}"),
        _ => format!("{number}{suffix}"),
    }
}

/// Divides by `base` as often as that is possible without remainder, at most `most` times.
fn reduced(mut number: u128, base: u128, most: usize) -> (u128, usize) {
    let mut steps = 0;
    while steps < most && number.is_multiple_of(base) {
        number /= base;
        steps += 1;
    }
    (number, steps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_keep_the_canonical_form_of_the_api_server() {
        for (given, kept) in [
            ("40Gi", "40Gi"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1023", "1023"),
            ("1024", "1024"),
            ("1000", "1k"),
            ("2000000", "2M"),
            ("0.5", "500m"),
            (".25", "250m"),
            ("3.", "3"),
            ("007", "7"),
            ("0Gi", "0"),
            ("1500m", "1500m"),
            ("1000m", "1"),
            ("1u", "1u"),
            ("1E", "1E"),
            ("1e3", "1e3"),
            ("1E3", "1e3"),
            ("12000e3", "12e6"),
            ("5e-1", "500e-3"),
            ("100e-2", "1"),
            ("1.0001Ki", "1024102400u"),
            ("9223372036854775807", "9223372036854775807"),
        ] {
            let read = Quantity::new(given).unwrap();
            assert_eq!(read.as_str(), kept, "{given}");
            assert_eq!(Quantity::new(kept).unwrap(), read, "{given}");
        }
    }

    #[test]
    fn invalid_quantities_are_rejected() {
        for bad in [
            "", ".", "Gi", "-1", "+1", "1 Gi", "1GB", "1gi", "1KI", "1K", "1e", "1e1.5", "1.2.3",
            "1e+", "ten", "1Gi ", "1e100",
        ] {
            let refused = Quantity::new(bad).unwrap_err();
            assert!(matches!(refused, BadQuantity::Form(_)), "{bad}: {refused}");
        }
        for large in ["9223372036854775808", "8Ei", "1e20", "0.1n", "1e-10"] {
            let refused = Quantity::new(large).unwrap_err();
            assert!(
                matches!(refused, BadQuantity::Size(_)),
                "{large}: {refused}"
            );
        }
        assert!(Quantity::new(&"9".repeat(41)).is_err());
    }
}
