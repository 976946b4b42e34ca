//! `readiness.own`: gates of the administrator's own.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{
    fragment::{Node, Shape},
    reader::{Misfit, Setting, Word},
};
use crate::{
    machine_config::UnitName,
    path::AbsPath,
    readiness::{Effect, Endpoint, GateName, OwnGate, Probe},
};

/// Each is a series of a metric and a line of every status.
const MOST: usize = 32;

const KEYS: &str = "name, effect and one of unit, http, file, taintAbsent";

/// What a gate is called, for messages.
const NAME: &str = "a name such as StorageReady: letters and digits, a letter first, at most 40, \
                    and no gate of machinist's own";

pub(super) fn distinct(gates: &[OwnGate]) -> Result<(), &'static str> {
    let names: Vec<_> = gates.iter().map(|gate| &gate.name).collect();
    match super::merge::has_twins(&names) {
        true => Err("each name once"),
        false if gates.len() > MOST => Err("at most 32 gates"),
        false => Ok(()),
    }
}

impl Setting for OwnGate {
    fn read(node: &Node) -> Result<Self, Misfit> {
        let whole = || Misfit::new(node, format!("a mapping with {KEYS}"));
        let Shape::Map(entries) = &node.shape else {
            return Err(whole());
        };
        let (mut name, mut effect, mut probe) = (None, None, None);
        for (key, value) in entries {
            let below = format!(".{key}");
            let misfit = |misfit: Misfit| misfit.below(&below);
            match key.as_str() {
                "name" => name = Some(GateWord::read(value).map_err(misfit)?.0),
                "effect" => effect = Some(Effect::read(value).map_err(misfit)?),
                _ => {
                    let Some(read) = asked(key, value) else {
                        return Err(misfit(Misfit::new(value, format!("{KEYS}, nothing else"))));
                    };
                    if probe.replace(read.map_err(misfit)?).is_some() {
                        let expected = "only one of unit, http, file, taintAbsent";
                        return Err(misfit(Misfit::new(value, expected)));
                    }
                }
            }
        }
        match (name, effect, probe) {
            (Some(name), Some(effect), Some(probe)) => Ok(Self {
                name,
                probe,
                effect,
            }),
            _ => Err(whole()),
        }
    }

    fn show(&self) -> serde_json::Value {
        let (key, value) = match &self.probe {
            Probe::Unit(name) => ("unit", name.clone()),
            Probe::Http(endpoint) => ("http", endpoint.to_string()),
            Probe::File(path) => ("file", path.to_string()),
            Probe::TaintAbsent(taint) => ("taintAbsent", taint.clone()),
        };
        serde_json::json!({"name": self.name, key: value, "effect": Word::show(&self.effect)})
    }
}

/// None: there is no such key.
fn asked(key: &str, value: &Node) -> Option<Result<Probe, Misfit>> {
    Some(match key {
        "unit" => UnitWord::read(value).map(|unit| Probe::Unit(unit.0)),
        "http" => Endpoint::read(value).map(Probe::Http),
        "file" => AbsPath::read(value).map(Probe::File),
        "taintAbsent" => TaintWord::read(value).map(|taint| Probe::TaintAbsent(taint.0)),
        _ => return None,
    })
}

struct GateWord(String);

impl Word for GateWord {
    fn expected() -> String {
        NAME.to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let letter = text.starts_with(|c: char| c.is_ascii_alphabetic());
        let plain = text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
        // What differs in its letters' case alone would be taken for ours by whoever reads it.
        let known = |name: GateName| name.as_str().eq_ignore_ascii_case(text);
        let ours = GateName::ALL.into_iter().any(known);
        (letter && plain && !ours).then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

struct UnitWord(String);

impl Word for UnitWord {
    fn expected() -> String {
        "the name of a unit with its suffix, such as iscsid.service".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let name = UnitName::new(text).ok()?;
        // A template without an instance is no unit that could run.
        (name.template().as_ref() != Some(&name)).then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

struct TaintWord(String);

impl Word for TaintWord {
    fn expected() -> String {
        "a taint's key, such as example.com/not-ready, or key:effect".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
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
            && effect.is_none_or(|it| EFFECTS.contains(&it));
        good.then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

impl Word for Endpoint {
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
        // No name is resolved: what a name server says is not what this machine is.
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
mod tests {
    use super::*;
    use crate::config::{Fragment, Settings};

    fn read(text: &str) -> Result<Vec<OwnGate>, String> {
        let text = format!("readiness:\n  own:\n{text}");
        let fragment = Fragment::parse("machinist.yaml", &text).unwrap();
        match Settings::from_fragments([fragment]) {
            Ok(settings) => Ok(settings.readiness.policy.own),
            Err(error) => Err(error.problems[0].to_string()),
        }
    }

    #[test]
    fn each_kind_of_gate_is_read_and_shown_as_it_was_written() {
        let gates = read(
            "  - {name: Storage, unit: iscsid.service, effect: hold}\n\
             \x20 - {name: Exporter, http: 'http://localhost:9100/healthz?full', effect: warn}\n\
             \x20 - {name: V6, http: 'http://[::1]', effect: off}\n\
             \x20 - {name: Licence, file: /etc/acme/licence, effect: warn}\n\
             \x20 - {name: Network, taintAbsent: 'node.cilium.io/agent-not-ready', effect: hold}\n\
             \x20 - {name: Storage2, taintAbsent: 'a:NoExecute', effect: hold}\n",
        )
        .unwrap();
        let shown: Vec<_> = gates.iter().map(|gate| gate.show().to_string()).collect();
        assert_eq!(
            shown[0],
            r#"{"effect":"hold","name":"Storage","unit":"iscsid.service"}"#
        );
        assert!(shown[1].contains("http://127.0.0.1:9100/healthz?full"));
        assert!(shown[2].contains("http://[::1]:80/"));
        assert_eq!(gates[3].effect, Effect::Warn);
        assert_eq!(gates.len(), 6);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let cases = [
            ("{name: a, unit: a.service}", "a mapping with name, effect"),
            ("{name: DiskSpace, file: /a, effect: warn}", ".name"),
            ("{name: diskspace, file: /a, effect: warn}", ".name"),
            ("{name: 1a, file: /a, effect: warn}", ".name"),
            ("{name: a, file: a, effect: warn}", ".file"),
            (
                "{name: a, file: /a, effect: never}",
                "one of hold, warn, off",
            ),
            ("{name: a, unit: a, effect: warn}", ".unit"),
            ("{name: a, unit: a@.service, effect: warn}", ".unit"),
            (
                "{name: a, http: 'https://127.0.0.1', effect: warn}",
                ".http",
            ),
            ("{name: a, http: 'http://10.0.0.1', effect: warn}", ".http"),
            (
                "{name: a, http: 'http://127.0.0.1:0/', effect: warn}",
                ".http",
            ),
            (
                "{name: a, http: \"http://127.0.0.1/ HTTP/1.0\\r\\nX\", effect: warn}",
                ".http",
            ),
            (
                "{name: a, taintAbsent: 'a/b/c', effect: warn}",
                ".taintAbsent",
            ),
            (
                "{name: a, taintAbsent: 'a:Never', effect: warn}",
                ".taintAbsent",
            ),
            (
                "{name: a, unit: a.service, file: /a, effect: warn}",
                "only one of unit",
            ),
            ("{name: a, dns: a, effect: warn}", "nothing else"),
        ];
        for (gate, expected) in cases {
            let told = read(&format!("  - {gate}\n")).unwrap_err();
            assert!(told.starts_with("machinist.yaml:3:"), "{gate}: {told}");
            assert!(told.contains("readiness.own"), "{gate}: {told}");
            assert!(told.contains(expected), "{gate}: {told}");
        }
        let twice = "  - {name: a, file: /a, effect: warn}\n".repeat(2);
        assert!(read(&twice).unwrap_err().contains("each name once"));
    }
}
