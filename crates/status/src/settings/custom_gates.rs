//! Parses `readiness.customGates`: the gates that the administrator defines.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{
    extract::{Mismatches, Scalar, Setting, ValueMismatch},
    fragment::{ValueNode, ValueShape},
};
use crate::readiness::{CustomGate, CustomProbe, Endpoint, GateEffect, GateName};
use machinist_base::abs_path::AbsPath;
use machinist_ignition::UnitName;

/// The maximum number of gates. Each is a time series of a metric and a line in every status.
const MAX_GATES: usize = 32;

const EXPECTED_KEYS: &str = "name, effect and one of unit, http, file, taintAbsent";

/// The expected form of a gate's name, for messages.
const EXPECTED_NAME: &str = "a name such as StorageReady: letters and digits, a letter first, at most 40, \
                    and no built-in gate";

pub(super) fn distinct(gates: &[CustomGate]) -> Result<(), &'static str> {
    let names: Vec<_> = gates.iter().map(|gate| &gate.name).collect();
    match super::extract::has_duplicates(&names) {
        true => Err("each name once"),
        false if gates.len() > MAX_GATES => Err("at most 32 gates"),
        false => Ok(()),
    }
}

impl Setting for CustomGate {
    fn read(node: &ValueNode) -> Result<Self, Vec<ValueMismatch>> {
        let whole = || ValueMismatch::new(node, format!("a mapping with {EXPECTED_KEYS}"));
        let ValueShape::Map(entries) = &node.shape else {
            return Err(vec![whole()]);
        };
        let (mut name, mut effect, mut probe) = (None, None, None);
        let (mut wrong, mut probes) = (Mismatches::default(), 0);
        for (key, value) in entries {
            let below = format!(".{key}");
            match key.as_str() {
                "name" => name = wrong.take(&below, GateNameValue::read(value)),
                "effect" => effect = wrong.take(&below, GateEffect::read(value)),
                _ => {
                    let Some(read) = asked(key, value) else {
                        wrong.add(&below, value, format!("only {EXPECTED_KEYS}"));
                        continue;
                    };
                    probes += 1;
                    match probes {
                        1 => probe = wrong.take(&below, read),
                        _ => wrong.add(&below, value, "only one of unit, http, file, taintAbsent"),
                    }
                }
            }
        }
        let gate = name.zip(effect).zip(probe);
        let gate = gate.map(|((name, effect), probe)| Self {
            name: name.0,
            probe,
            effect,
        });
        wrong.or(gate, whole)
    }

    fn show(&self) -> serde_json::Value {
        let (key, value) = match &self.probe {
            CustomProbe::Unit(name) => ("unit", name.clone()),
            CustomProbe::Http(endpoint) => ("http", endpoint.to_string()),
            CustomProbe::File(path) => ("file", path.to_string()),
            CustomProbe::TaintAbsent(taint) => ("taintAbsent", taint.clone()),
        };
        serde_json::json!({"name": self.name, key: value, "effect": Scalar::show(&self.effect)})
    }
}

/// The probe in this key; none if there is no such key.
fn asked(key: &str, value: &ValueNode) -> Option<Result<CustomProbe, Vec<ValueMismatch>>> {
    Some(match key {
        "unit" => UnitNameValue::read(value).map(|unit| CustomProbe::Unit(unit.0)),
        "http" => Endpoint::read(value).map(CustomProbe::Http),
        "file" => AbsPath::read(value).map(CustomProbe::File),
        "taintAbsent" => TaintValue::read(value).map(|taint| CustomProbe::TaintAbsent(taint.0)),
        _ => return None,
    })
}

struct GateNameValue(String);

impl Scalar for GateNameValue {
    fn expected() -> String {
        EXPECTED_NAME.to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let letter = text.starts_with(|c: char| c.is_ascii_alphabetic());
        let plain = text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        // A name that differs from a built-in gate's only in case would be confused with it.
        let known = |name: GateName| name.as_str().eq_ignore_ascii_case(text);
        let ours = GateName::ALL.into_iter().any(known);
        (letter && plain && !ours).then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

struct UnitNameValue(String);

impl Scalar for UnitNameValue {
    fn expected() -> String {
        "the name of a unit with its suffix, such as iscsid.service".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let name = UnitName::new(text).ok()?;
        // A template without an instance cannot be a running unit.
        (name.template().as_ref() != Some(&name)).then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

struct TaintValue(String);

impl Scalar for TaintValue {
    fn expected() -> String {
        "a taint's key, such as example.com/not-ready, or key:effect".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        const TAINT_EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        let (key, effect) = match text.split_once(':') {
            Some((key, effect)) => (key, Some(effect)),
            None => (text, None),
        };
        let (prefix, name) = match key.split_once('/') {
            Some((prefix, name)) => (Some(prefix), name),
            None => (None, key),
        };
        let edges = |part: &str| {
            let sound = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            sound(part.chars().next()) && sound(part.chars().next_back())
        };
        let plain = |part: &str, more: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
            edges(part) && part.chars().all(fits)
        };
        let good = plain(name, "-_.")
            && name.len() <= 63
            && prefix.is_none_or(|it| plain(it, "-.") && it.len() <= 253)
            && effect.is_none_or(|it| TAINT_EFFECTS.contains(&it));
        good.then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

impl Scalar for Endpoint {
    fn expected() -> String {
        "a loopback address such as http://127.0.0.1:9100/healthz".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("http://")?;
        let (place, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (address, port) = match place.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                (address, port.strip_prefix(':'))
            }
            None => match place.split_once(':') {
                Some((address, port)) => (address, Some(port)),
                None => (place, None),
            },
        };
        // Names are not resolved: the result of a name server is not a property of this machine.
        let address = match address {
            "localhost" => Ipv4Addr::LOCALHOST.to_string(),
            text if place.starts_with('[') => {
                let address: Ipv6Addr = text.parse().ok()?;
                address.is_loopback().then(|| address.to_string())?
            }
            text => {
                let address: Ipv4Addr = text.parse().ok()?;
                address.is_loopback().then(|| address.to_string())?
            }
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port > 0)?,
            None => 80,
        };
        let plain = path
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'#');
        plain.then(|| Self {
            address,
            port,
            path: path.to_owned(),
        })
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

#[cfg(test)]
mod tests;
