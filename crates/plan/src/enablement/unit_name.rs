//! Parses unit names as systemd does: prefix, instance, type.

/// The shape of a unit name (systemd.unit(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitNameShape {
    /// `foo.service`.
    Plain,
    /// `foo@.service`.
    Template,
    /// `foo@bar.service`.
    Instance,
}

/// Unit types whose names may be aliases. Mounts, swaps, slices and automounts are excluded because
/// their names are derived from a path.
const ALIASABLE_TYPES: [&str; 6] = ["service", "socket", "target", "device", "timer", "path"];

/// Every unit type, for names that come from `[Install]` and not from a config.
const UNIT_TYPES: [&str; 11] = [
    "service",
    "socket",
    "device",
    "mount",
    "automount",
    "swap",
    "target",
    "path",
    "timer",
    "slice",
    "scope",
];

/// The shape of `name`; none if systemd would reject it as a unit name.
pub(crate) fn shape(name: &str) -> Option<UnitNameShape> {
    let (stem, kind) = name.rsplit_once('.')?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if name.len() > 255 || !UNIT_TYPES.contains(&kind) || !stem.chars().all(allowed) {
        return None;
    }
    match stem.split_once('@') {
        None if stem.is_empty() => None,
        None => Some(UnitNameShape::Plain),
        Some(("", _)) => None,
        Some((_, "")) => Some(UnitNameShape::Template),
        Some(_) => Some(UnitNameShape::Instance),
    }
}

/// `service` for `foo@bar.service`.
pub(crate) fn kind(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

/// `foo` for `foo@bar.service` and for `foo.service`.
pub(crate) fn prefix(name: &str) -> &str {
    let stem = stem(name);
    stem.split_once('@').map_or(stem, |(prefix, _)| prefix)
}

/// `bar` for `foo@bar.service`, empty otherwise.
pub(crate) fn instance(name: &str) -> &str {
    stem(name).split_once('@').map_or("", |(_, rest)| rest)
}

/// `foo@.service` for `foo@bar.service` and itself; none for a plain name.
pub(crate) fn template(name: &str) -> Option<String> {
    let (prefix, _) = stem(name).split_once('@')?;
    Some(format!("{prefix}@.{}", kind(name)))
}

/// `foo@bar.service` for a template or instance and `bar`; the name itself for a plain one.
pub(crate) fn with_instance(name: &str, instance: &str) -> String {
    match stem(name).split_once('@') {
        Some((prefix, _)) => format!("{prefix}@{instance}.{}", kind(name)),
        None => name.to_owned(),
    }
}

/// The name without its type: `foo@bar`.
pub(crate) fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// Whether units of this name's type may have other names.
pub(crate) fn may_alias(name: &str) -> bool {
    ALIASABLE_TYPES.contains(&kind(name))
}

/// The alias that `Alias=alias` gives to `unit`, with the instance carried over to a template; none
/// if systemd refuses it or if it is the unit's own name.
pub(super) fn alias_of(unit: &str, alias: &str) -> Option<String> {
    let alias = match (shape(alias)?, shape(unit)?) {
        (UnitNameShape::Template, UnitNameShape::Instance) => with_instance(alias, instance(unit)),
        _ => alias.to_owned(),
    };
    let fits = match (shape(&alias)?, shape(unit)?) {
        (UnitNameShape::Instance, UnitNameShape::Instance) => instance(&alias) == instance(unit),
        (UnitNameShape::Instance, UnitNameShape::Template) => true,
        (one, other) => one == other,
    };
    (fits && kind(&alias) == kind(unit) && may_alias(unit) && alias != unit).then_some(alias)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_names_are_split_at_the_first_at_sign_and_last_dot() {
        assert_eq!(shape("a.b@c@d.e.service"), Some(UnitNameShape::Instance));
        assert_eq!(prefix("a.b@c@d.e.service"), "a.b");
        assert_eq!(instance("a.b@c@d.e.service"), "c@d.e");
        assert_eq!(template("a@x.service").as_deref(), Some("a@.service"));
        for bad in ["a", "@.service", ".service", "a.conf", "a b.service"] {
            assert_eq!(shape(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_alias_has_the_shape_of_its_unit() {
        assert_eq!(
            alias_of("a.service", "b.service").as_deref(),
            Some("b.service")
        );
        assert_eq!(
            alias_of("a@x.service", "b@.service").as_deref(),
            Some("b@x.service")
        );
        assert_eq!(
            alias_of("a@.service", "b@x.service").as_deref(),
            Some("b@x.service")
        );
        for (unit, alias) in [
            ("a.service", "a.service"),
            ("a.service", "b.socket"),
            ("a.service", "b@.service"),
            ("a@.service", "b.service"),
            ("a@x.service", "b@y.service"),
            ("a.slice", "b.slice"),
        ] {
            assert_eq!(alias_of(unit, alias), None, "{unit} {alias}");
        }
    }
}
