//! The formats that share Ignition's fields, and their versions.

use std::borrow::Cow;

/// Which fields exist, and how they are spelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IgnitionDialect {
    /// Ignition 2 with this minor version.
    Two(u8),
    /// Ignition 3 with this minor version.
    Three(u8),
    /// Butane, which generates Ignition 3 with this minor version: snake case, and content without
    /// data URLs.
    Butane(u8),
}

impl std::fmt::Display for IgnitionDialect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Two(minor) => write!(f, "2.{minor}.0"),
            Self::Three(minor) | Self::Butane(minor) => write!(f, "3.{minor}.0"),
        }
    }
}

impl IgnitionDialect {
    pub(super) fn is_two(self) -> bool {
        matches!(self, Self::Two(_))
    }

    pub(super) fn is_butane(self) -> bool {
        matches!(self, Self::Butane(_))
    }

    /// Whether set-id and sticky bits have an effect; versions before 3.6 never set them.
    pub(super) fn has_special_modes(self) -> bool {
        matches!(self, Self::Three(6..) | Self::Butane(6..))
    }

    /// A field's name in this dialect; `camel` is Ignition's spelling.
    pub(super) fn key(self, camel: &'static str) -> Cow<'static, str> {
        if !self.is_butane() {
            return camel.into();
        }
        let mut snake = String::with_capacity(camel.len() + 2);
        for c in camel.chars() {
            if c.is_ascii_uppercase() {
                snake.push('_');
            }
            snake.push(c.to_ascii_lowercase());
        }
        snake.into()
    }
}

/// The Ignition config that is being parsed.
#[derive(Clone, Debug)]
pub(super) struct IgnitionSchema {
    pub(super) dialect: IgnitionDialect,
    /// The path of its root in the document.
    pub(super) root: String,
}
