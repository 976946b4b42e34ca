//! The text of a menu entry of the Boot Loader Specification.

/// The text of an entry with some lines replaced, in the order of the first text, and without comments.
pub(super) fn with_lines(text: &str, lines: &[(&str, String)], dropped: &[&str]) -> String {
    let key = |line: &str| {
        let key = line.trim_start().split([' ', '\t']).next();
        key.unwrap_or_default().trim_end().to_owned()
    };
    let mut all = String::new();
    for line in text.lines() {
        let key = key(line);
        let is_replaced = lines.iter().any(|(name, _)| *name == key);
        if !is_replaced && !dropped.contains(&key.as_str()) && !key.starts_with('#') {
            all.push_str(line);
            all.push('\n');
        }
    }
    for (key, value) in lines {
        all.push_str(&format!("{key} {value}\n"));
    }
    all
}

/// The value of a key in an entry; of several ones, the first.
pub(super) fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let (found, value) = line.trim().split_once([' ', '\t'])?;
        (found == key).then(|| value.trim_start())
    })
}

/// The number in the file name of an entry of a kept deployment.
pub(super) fn kept_number(file: &str) -> Option<u32> {
    let number = file.strip_prefix("machinist-")?.strip_suffix(".conf")?;
    number.parse().ok()
}

/// The file name of an entry of a kept deployment.
pub(super) fn kept_file(number: u32) -> String {
    format!("machinist-{number}.conf")
}
