//! The gates that the administrator defines, and their probes.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{GateEffect, GateName};
use machinist_base::abs_path::AbsPath;

/// Name of a gate: a built-in one, or one of the administrator's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum GateId {
    /// A built-in gate.
    Known(GateName),
    /// A gate of the administrator, or an unknown built-in one in a document of a newer agent.
    Custom(String),
}

impl GateId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(name) => name.as_str(),
            Self::Custom(name) => name,
        }
    }
}

impl From<GateName> for GateId {
    fn from(name: GateName) -> Self {
        Self::Known(name)
    }
}

impl From<String> for GateId {
    fn from(text: String) -> Self {
        let known = GateName::ALL.into_iter().find(|it| it.as_str() == text);
        known.map_or(Self::Custom(text), Self::Known)
    }
}

impl From<GateId> for String {
    fn from(name: GateId) -> Self {
        name.as_str().to_owned()
    }
}

impl PartialEq<GateName> for GateId {
    fn eq(&self, other: &GateName) -> bool {
        matches!(self, Self::Known(name) if name == other)
    }
}

impl fmt::Display for GateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A gate that the administrator declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomGate {
    /// Its name, which is unique among all gates.
    pub name: String,
    /// The condition under which it is open.
    pub probe: CustomProbe,
    /// Its effect while closed.
    pub effect: GateEffect,
}

/// The condition that a gate checks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CustomProbe {
    /// This systemd unit is active.
    Unit(String),
    /// A GET of this address returns 200.
    Http(Endpoint),
    /// This path exists.
    File(AbsPath),
    /// The Node does not have this taint: a key, or `key:effect`.
    TaintAbsent(String),
}

/// The target of a GET: a port of this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// A loopback address, `[::1]` without its brackets.
    pub address: String,
    /// The port.
    pub port: u16,
    /// The path with the query, starting with `/`.
    pub path: String,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            port,
            path,
        } = self;
        match address.contains(':') {
            true => write!(f, "http://[{address}]:{port}{path}"),
            false => write!(f, "http://{address}:{port}{path}"),
        }
    }
}

impl Endpoint {
    /// A copy that is safe to display: the query may contain a token.
    pub fn without_query(&self) -> Self {
        let path = self.path.split('?').next().unwrap_or_default();
        Self {
            path: path.to_owned(),
            ..self.clone()
        }
    }
}

impl CustomProbe {
    /// Whether it needs active probing; taints are observed with the Node.
    pub const fn is_asked(&self) -> bool {
        !matches!(self, Self::TaintAbsent(_))
    }
}

/// The result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    /// Whether the condition holds; none if unknown.
    pub open: Option<bool>,
    /// One sentence.
    pub message: String,
}

/// The latest results, by probe.
pub type ProbeResults = BTreeMap<CustomProbe, ProbeResult>;
