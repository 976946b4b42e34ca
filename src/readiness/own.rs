//! Gates of the administrator's own: which there may be, and their verdicts.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use super::{Effect, GateName, Inputs, verdict::Verdict};
use crate::{path::AbsPath, reason::Reason};

/// Which gate: one of the program's, or one of the administrator's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Name {
    /// One of the program's.
    Known(GateName),
    /// One of the administrator's; or, in a document of a newer agent, one that is not known here.
    Own(String),
}

impl Name {
    /// The name as it is written everywhere.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(name) => name.as_str(),
            Self::Own(name) => name,
        }
    }
}

impl From<GateName> for Name {
    fn from(name: GateName) -> Self {
        Self::Known(name)
    }
}

impl From<String> for Name {
    fn from(text: String) -> Self {
        let known = GateName::ALL.into_iter().find(|it| it.as_str() == text);
        known.map_or(Self::Own(text), Self::Known)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.as_str().to_owned()
    }
}

impl PartialEq<GateName> for Name {
    fn eq(&self, other: &GateName) -> bool {
        matches!(self, Self::Known(name) if name == other)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A gate that the administrator declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnGate {
    /// Its name; no other gate has it.
    pub name: String,
    /// What must be so for it to be open.
    pub probe: Probe,
    /// What it does while closed.
    pub effect: Effect,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Probe {
    /// This systemd unit is active.
    Unit(String),
    /// This address answers a GET with 200.
    Http(Endpoint),
    /// There is something at this path.
    File(AbsPath),
    /// The Node does not bear this taint: a key, or `key:effect`.
    TaintAbsent(String),
}

/// Where a GET goes: a port of this machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// A loopback address, `[::1]` without its brackets.
    pub address: String,
    /// The port.
    pub port: u16,
    /// The path with what follows it, from `/` on.
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
    /// As everybody may read it: what follows a `?` may be a token.
    pub fn without_query(&self) -> Self {
        let path = self.path.split('?').next().unwrap_or_default();
        Self {
            path: path.to_owned(),
            ..self.clone()
        }
    }
}

impl Probe {
    /// Whether somebody must go and ask; taints are seen with the Node.
    pub const fn is_asked(&self) -> bool {
        !matches!(self, Self::TaintAbsent(_))
    }
}

/// What was answered to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whether it is as it must be; none where nobody here can tell.
    pub open: Option<bool>,
    /// One sentence.
    pub message: String,
}

/// What was answered last, by probe.
pub type Answers = BTreeMap<Probe, Answer>;

/// What was not asked yet is closed: a gate that holds must not be passed by being faster.
pub(super) fn verdict(probe: &Probe, inputs: &Inputs) -> Verdict {
    if let Probe::TaintAbsent(taint) = probe {
        return untainted(taint, inputs);
    }
    let Some(answer) = inputs.own.get(probe) else {
        return Verdict::closed(Reason::OwnGateClosed, "not asked yet");
    };
    match answer.open {
        Some(true) => Verdict::fine(&*answer.message),
        Some(false) => Verdict::closed(Reason::OwnGateClosed, &*answer.message),
        None => Verdict::no_signal(&answer.message),
    }
}

/// As with the kubelet, not known is not closed: whoever lets pods come asks the API server first.
fn untainted(taint: &str, inputs: &Inputs) -> Verdict {
    let Some(borne) = &inputs.taints else {
        return Verdict::no_signal("the taints of the Node are not known");
    };
    let same = |one: &String| {
        let key = one.rsplit_once(':').map_or(one.as_str(), |(key, _)| key);
        one == taint || key == taint
    };
    match borne.iter().find(|one| same(one)) {
        Some(found) => {
            let message = format!("the Node bears the taint {found}");
            Verdict::closed(Reason::OwnGateClosed, message)
        }
        None => Verdict::fine(format!("the Node does not bear the taint {taint}")),
    }
}
