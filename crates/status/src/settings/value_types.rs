//! Parses settings with a unit or a special form: durations, sizes, shares, addresses, paths,
//! sources.

use std::{fmt, net::SocketAddr, time::Duration};

use jiff::fmt::friendly::{Spacing, SpanParser, SpanPrinter};

use super::extract::Scalar;
use crate::readiness::MinFree;
use machinist_base::abs_path::AbsPath;

/// The source of the desired config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceSetting {
    /// The cluster if there is one, otherwise [`SourceSetting::DEFAULT_DIR`].
    Auto,
    /// The MachineConfig that the Node's annotation names.
    Cluster,
    /// A directory below the root, from settings files.
    Directory(AbsPath),
    /// A directory of the caller's own file system, absolute or relative, from `--source`.
    CallersDirectory(String),
}

impl SourceSetting {
    /// The directory for `auto` outside a cluster.
    pub const DEFAULT_DIR: &'static str = "/etc/machinist/machine.d";

    /// Resolves `auto`. `in_cluster`: the process runs in a pod, or a kubeconfig is set.
    #[must_use]
    pub fn resolve_auto(self, in_cluster: bool) -> Self {
        match (self, in_cluster, AbsPath::new(Self::DEFAULT_DIR)) {
            (Self::Auto, true, _) => Self::Cluster,
            (Self::Auto, false, Ok(path)) => Self::Directory(path),
            (chosen, ..) => chosen,
        }
    }

    /// Parses the value of `--source`: `auto`, `cluster` or `dir:PATH`, with a path of the caller's
    /// file system.
    pub fn from_flag(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("dir:")) {
            ("auto", _) => Ok(Self::Auto),
            ("cluster", _) => Ok(Self::Cluster),
            (_, Some(path)) if !path.is_empty() => Ok(Self::CallersDirectory(path.to_owned())),
            _ => Err("it is auto, cluster or dir:PATH".to_owned()),
        }
    }
}

impl fmt::Display for SourceSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cluster => f.write_str("cluster"),
            Self::Directory(path) => write!(f, "dir:{path}"),
            Self::CallersDirectory(path) => write!(f, "dir:{path}"),
        }
    }
}

impl Scalar for SourceSetting {
    fn expected() -> String {
        "auto, cluster or dir:/absolute/path below the root".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "cluster" => Some(Self::Cluster),
            other => AbsPath::new(other.strip_prefix("dir:")?)
                .ok()
                .map(Self::Directory),
        }
    }

    fn parse_flag(text: &str) -> Option<Self> {
        Self::from_flag(text).ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Scalar for Duration {
    fn expected() -> String {
        "a duration such as 30s, 5m or 1h30m".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        SpanParser::new().parse_unsigned_duration(text).ok()
    }

    fn show(&self) -> String {
        SpanPrinter::new()
            .spacing(Spacing::None)
            .unsigned_duration_to_string(self)
    }
}

impl Scalar for bool {
    fn expected() -> String {
        "true or false".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Scalar for u32 {
    fn expected() -> String {
        "a whole number".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Percent(pub(super) u8);

impl Scalar for Percent {
    fn expected() -> String {
        "a share from 0% to 100%".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        let share = text.strip_suffix('%')?.trim_end().parse().ok()?;
        (share <= 100).then_some(Self(share))
    }

    fn show(&self) -> String {
        format!("{}%", self.0)
    }
}

/// The units of Kubernetes quantities: binary with `i`, decimal without.
const SIZE_UNITS: &[(&str, u64)] = &[
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("B", 1),
    ("", 1),
];

impl Scalar for MinFree {
    fn expected() -> String {
        "a share such as 5% or a size such as 1GiB".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        if text.ends_with('%') {
            return Percent::parse(text).map(|share| Self::Percent(share.0));
        }
        let digits = text.find(|c: char| !c.is_ascii_digit());
        let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
        let (_, factor) = SIZE_UNITS
            .iter()
            .find(|(name, _)| *name == unit.trim_start())?;
        let bytes = number.parse::<u64>().ok()?.checked_mul(*factor)?;
        // A share whose % was forgotten: so few bytes are no limit.
        if unit.is_empty() && (1..=100).contains(&bytes) {
            return None;
        }
        Some(Self::Bytes(bytes))
    }

    fn show(&self) -> String {
        match self {
            Self::Percent(share) => Percent(*share).show(),
            Self::Bytes(bytes) => {
                let whole = |unit: &&(&str, u64)| bytes % unit.1 == 0 && *bytes >= unit.1;
                let binary = SIZE_UNITS[..4].iter().rev().find(whole);
                binary.map_or_else(
                    || format!("{bytes}B"),
                    |(name, factor)| format!("{}{name}", bytes / factor),
                )
            }
        }
    }
}

impl Scalar for SocketAddr {
    fn expected() -> String {
        "an address and a port such as 127.0.0.1:10480".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

impl Scalar for AbsPath {
    fn expected() -> String {
        "an absolute path without . or ..".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        Self::new(text).ok()
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

/// The expected form of a name, for messages.
const EXPECTED_NAME: &str = "a-z, 0-9, - and _, at most 32, no digit or - first";

/// A name that useradd(8) and groupadd(8) accept by default.
fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    let first = |c: char| c.is_ascii_lowercase() || c == '_';
    text.len() <= 32 && text.starts_with(first) && text.chars().all(plain)
}

/// A login name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UserName(pub(super) String);

impl Scalar for UserName {
    fn expected() -> String {
        format!("a user name: {EXPECTED_NAME}")
    }

    fn parse(text: &str) -> Option<Self> {
        is_name(text).then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

/// The name of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupName(pub(super) String);

impl Scalar for GroupName {
    fn expected() -> String {
        format!("the name of a group: {EXPECTED_NAME}")
    }

    fn parse(text: &str) -> Option<Self> {
        is_name(text).then(|| Self(text.to_owned()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}
