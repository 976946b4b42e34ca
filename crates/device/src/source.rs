//! The sources of resources.

use std::fmt;

use serde::{Deserialize, Serialize};

use machinist_base::abs_path::AbsPath;

/// The source of a resource. A name is owned by one source at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ResourceSource {
    /// A declaration file.
    File(AbsPath),
    /// A device driver that uses the vendor API, by the vendor's name.
    Vendor(String),
    /// An unmodified device plugin, by the vendor's name.
    Plugin(String),
}

/// The error for a text that is no source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a source; expected a path, `vendor NAME` or `plugin NAME`")]
pub struct BadResourceSource(String);

impl ResourceSource {
    /// Whether it is a running program, and not a declaration.
    pub const fn is_live(&self) -> bool {
        !matches!(self, Self::File(_))
    }
}

impl fmt::Display for ResourceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{path}"),
            Self::Vendor(name) => write!(f, "vendor {name}"),
            Self::Plugin(name) => write!(f, "plugin {name}"),
        }
    }
}

impl From<ResourceSource> for String {
    fn from(source: ResourceSource) -> Self {
        source.to_string()
    }
}

impl TryFrom<String> for ResourceSource {
    type Error = BadResourceSource;
    fn try_from(text: String) -> Result<Self, BadResourceSource> {
        if let Some(name) = text.strip_prefix("vendor ") {
            return Ok(Self::Vendor(name.to_owned()));
        }
        if let Some(name) = text.strip_prefix("plugin ") {
            return Ok(Self::Plugin(name.to_owned()));
        }
        AbsPath::new(text.clone())
            .map(Self::File)
            .map_err(|_| BadResourceSource(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_round_trips_through_text() {
        for source in [
            ResourceSource::File("/etc/machinist/devices.d/a.yaml".parse().unwrap()),
            ResourceSource::Vendor("acme".into()),
            ResourceSource::Plugin("acme".into()),
        ] {
            assert_eq!(
                ResourceSource::try_from(String::from(source.clone())),
                Ok(source)
            );
        }
        assert!(ResourceSource::try_from("acme".to_owned()).is_err());
    }
}
