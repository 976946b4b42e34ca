//! Parses the modes of files and directories.

use super::super::{
    field_reader::ObjectReader, ignition_dialect::IgnitionDialect, parse_context::ParseContext,
    scalar::ScalarValue,
};
use machinist_base::reason::Reason;

/// Set-user-id, set-group-id and the sticky bit.
const SPECIAL_MODE_BITS: u32 = 0o7000;

/// Usual octal modes whose digits are also a possible but uncommon mode in decimal (0620, 0764).
const USUAL_OCTAL_MODES: [&str; 2] = ["400", "500"];

pub(super) fn read(
    object: &mut ObjectReader<'_>,
    dialect: IgnitionDialect,
    reading: &mut ParseContext<'_>,
) -> Option<u32> {
    let field = object.get("mode")?;
    let digits = field.spelling();
    if let Some((message, expected)) = field.scalar().and_then(|value| misspelled(digits, value)) {
        let reason = Reason::ValueInvalid;
        field.refuse(&mut reading.problems, reason, message, Some(&expected));
        return None;
    }
    let number = field.integer(&mut reading.problems)?;
    let mut refuse = |message: String, expected: String| {
        let reason = Reason::ValueInvalid;
        field.refuse(&mut reading.problems, reason, message, Some(&expected));
        None
    };
    let mode = u32::try_from(number).ok().filter(|mode| *mode <= 0o7777);
    if let Some(meant) = other_base(digits)
        && mode.is_none_or(|mode| is_slip(digits, mode, meant))
    {
        let (what, good) = match digits.starts_with('0') {
            false => (
                "a decimal number",
                format!("{meant} (or 0{meant:o} in YAML)"),
            ),
            true => ("an octal number", format!("{meant} (or 0{meant:o})")),
        };
        return refuse(
            format!("{digits} is {what} and would be mode {number:04o}"),
            format!("{good} for mode {meant:04o}"),
        );
    }
    let Some(mode) = mode else {
        return refuse(
            format!("{digits} is not a valid mode"),
            "0 to 4095 (07777 in octal)".to_owned(),
        );
    };
    if dialect.has_special_modes() || mode & SPECIAL_MODE_BITS == 0 {
        return Some(mode);
    }
    let kept = mode & !SPECIAL_MODE_BITS;
    let message = format!(
        "set-id and sticky bits have no effect before Ignition 3.6.0, and this is {dialect}: the mode is {kept:04o}"
    );
    field.warn(&mut reading.problems, message);
    Some(kept)
}

/// The message and the expected value for digits that look like a mode and are none: in quotes, or with an 8 or 9.
fn misspelled(digits: &str, value: ScalarValue<'_>) -> Option<(String, String)> {
    let is_mode =
        (3..=5).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let meant = u32::from_str_radix(digits, 8).ok().filter(|_| is_mode);
    match (value, meant) {
        (ScalarValue::Text(_), Some(meant)) if digits.starts_with('0') || is_plausible(meant) => {
            let message = format!("{digits:?} is text");
            let expected =
                format!("{meant} (or 0{meant:o} without quotes in YAML) for mode {meant:04o}");
            Some((message, expected))
        }
        (ScalarValue::Number, None) if is_mode && digits.starts_with('0') => {
            let wrong = digits.bytes().find(|byte| matches!(byte, b'8' | b'9'))?;
            let message = format!(
                "{digits} is not an octal number, because {} is not an octal digit",
                char::from(wrong)
            );
            Some((
                message,
                "digits from 0 to 7 after the first 0, such as 0644".to_owned(),
            ))
        }
        _ => None,
    }
}

/// The mode that the same digits mean in the other base, decimal or octal.
fn other_base(digits: &str) -> Option<u32> {
    let octal = digits.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
    let (bare, base, shortest, largest) = match digits.strip_prefix('0') {
        // Set-id and sticky bits are not written in decimal.
        Some(bare) => (bare, 10, 3, 0o777),
        // A single digit is the same mode in both bases.
        None => (digits, 8, 2, 0o7777),
    };
    let fits = octal && (shortest..=4).contains(&bare.len());
    let other = u32::from_str_radix(bare, base).ok().filter(|_| fits)?;
    (other <= largest).then_some(other)
}

/// Whether the digits were certainly meant in the other base.
fn is_slip(digits: &str, mode: u32, other: u32) -> bool {
    let decimal = !digits.starts_with('0');
    USUAL_OCTAL_MODES.contains(&digits)
        || (!is_plausible(mode) && is_plausible(other))
        // Decimal 100 is mode 0144, which gives others more than the owner; mode 0100 does not.
        || (decimal && !is_descending(mode) && is_descending(other))
}

/// Whether others have no permission that the group lacks, and the group none that the owner lacks;
/// an owner without any permission (077) is not compared.
const fn is_descending(mode: u32) -> bool {
    let (owner, group, others) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
    mode & 0o777 != 0 && others & !group == 0 && (owner == 0 || group & !owner == 0)
}

/// Whether the owner may read, the group has no permission that the owner lacks, and others have
/// none that the group lacks.
const fn is_plausible(mode: u32) -> bool {
    let (owner, group, others) = (mode >> 6 & 7, mode >> 3 & 7, mode & 7);
    owner & 4 != 0 && group & !owner == 0 && others & !group == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_are_no_mode_are_explained() {
        for (digits, plain, expected) in [
            ("0999", true, Some("9 is not an octal digit")),
            ("0648", true, Some("8 is not an octal digit")),
            ("0644", false, Some("420 (or 0644 without quotes in YAML)")),
            ("644", false, Some("420 (or 0644 without quotes in YAML)")),
            ("0644", true, None),
            ("420", false, None),
            ("x", false, None),
        ] {
            let found = misspelled(digits, ScalarValue::of(digits, plain));
            let found = found.map(|(message, expected)| message + &expected);
            assert_eq!(found.is_some(), expected.is_some(), "{digits}: {found:?}");
            let expected = expected.unwrap_or_default();
            assert!(found.unwrap_or_default().contains(expected), "{digits}");
        }
    }

    /// The intended mode, if the digits are in the wrong base.
    fn slip(digits: &str) -> Option<u32> {
        let bare = digits.strip_prefix('0');
        let mode = match bare {
            Some(bare) => u32::from_str_radix(bare, 8),
            None => digits.parse(),
        };
        other_base(digits).filter(|other| is_slip(digits, mode.unwrap(), *other))
    }

    #[test]
    fn a_file_mode_in_the_wrong_base_is_detected() {
        for (digits, meant) in [
            ("644", 0o644),
            ("755", 0o755),
            ("751", 0o751),
            ("620", 0o620),
            ("400", 0o400),
            ("500", 0o500),
            ("1777", 0o1777),
            ("2755", 0o2755),
            ("10", 0o010),
            ("77", 0o077),
            ("100", 0o100),
            ("110", 0o110),
            ("111", 0o111),
            ("222", 0o222),
            ("1111", 0o1111),
            ("0420", 0o644),
            ("0256", 0o400),
            ("0436", 0o664),
        ] {
            assert_eq!(slip(digits), Some(meant), "{digits}");
        }
        for right in [
            "0", "1", "7", "40", "56", "63", "64", "72", "73", "420", "416", "436", "438", "493",
            "256", "288", "292", "320", "384", "448", "453", "457", "511", "365", "1023", "2541",
            "0644", "0755", "0511", "0222", "0111", "0100", "010", "0144", "0730", "01777",
            "04755", "02000",
        ] {
            assert_eq!(slip(right), None, "{right}");
        }
    }
}
