//! Expands the specifiers that systemd allows in `[Install]` (systemd.unit(5), "SPECIFIERS").
//!
//! `systemctl enable` writes the value of the moment into the name of a link. A value that can change
//! while the machine runs or with its next boot would change what the config wants there, so a word
//! with such a specifier is skipped with a warning.

use super::unit_name::{self, UnitNameShape};
use crate::machine_facts::SpecifierFacts;

/// Expands one word of `[Install]` of `unit`.
///
/// # Errors
/// Why the word cannot be expanded.
pub(super) fn expand(
    word: &str,
    unit: &str,
    default_instance: Option<&str>,
    machine: &SpecifierFacts,
) -> Result<String, String> {
    let instanced = match (unit_name::shape(unit), default_instance) {
        (Some(UnitNameShape::Template), Some(instance)) => unit_name::with_instance(unit, instance),
        _ => unit.to_owned(),
    };
    let mut out = String::with_capacity(word.len());
    let mut rest = word.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('n') => out.push_str(&instanced),
            Some('N') => out.push_str(unit_name::stem(&instanced)),
            Some('p') => out.push_str(unit_name::prefix(unit)),
            Some('i') => out.push_str(unit_name::instance(&instanced)),
            Some('j') => {
                let prefix = unit_name::prefix(unit);
                out.push_str(prefix.rsplit('-').next().unwrap_or(prefix));
            }
            // systemctl keeps a percent sign at the end.
            Some('%') | None => out.push('%'),
            Some(other) => out.push_str(&of_machine(other, machine)?),
        }
    }
    Ok(out)
}

/// The value of a specifier that does not depend on the unit.
fn of_machine(specifier: char, machine: &SpecifierFacts) -> Result<String, String> {
    let changes = |what: &str| {
        Err(format!(
            "%{specifier} is {what}, which may change after this plan"
        ))
    };
    match specifier {
        'm' => machine
            .machine_id
            .clone()
            .ok_or_else(|| "%m is not known: /etc/machine-id contains no ID".to_owned()),
        'a' => Ok(architecture().to_owned()),
        'u' | 'g' => Ok("root".to_owned()),
        'U' | 'G' => Ok("0".to_owned()),
        'A' => os_release("IMAGE_VERSION", specifier, machine),
        'B' => os_release("BUILD_ID", specifier, machine),
        'M' => os_release("IMAGE_ID", specifier, machine),
        'o' => os_release("ID", specifier, machine),
        'w' => os_release("VERSION_ID", specifier, machine),
        'W' => os_release("VARIANT_ID", specifier, machine),
        'H' | 'l' | 'q' => changes("the host name"),
        'v' => changes("the release of the running kernel"),
        'b' => changes("the ID of this boot"),
        other => Err(format!("%{other} is not allowed in [Install]")),
    }
}

fn os_release(key: &str, specifier: char, machine: &SpecifierFacts) -> Result<String, String> {
    match &machine.os_release {
        // A field that the file does not set is empty.
        Some(fields) => Ok(fields.get(key).cloned().unwrap_or_default()),
        None => Err(format!(
            "%{specifier} is not known: there is no os-release file"
        )),
    }
}

/// systemd's name of the architecture that this program is built for.
const fn architecture() -> &'static str {
    if cfg!(target_arch = "x86_64") {
        "x86-64"
    } else if cfg!(target_arch = "aarch64") {
        "arm64"
    } else if cfg!(all(target_arch = "powerpc64", target_endian = "little")) {
        "ppc64-le"
    } else if cfg!(target_arch = "powerpc64") {
        "ppc64"
    } else if cfg!(target_arch = "s390x") {
        "s390x"
    } else {
        "riscv64"
    }
}
