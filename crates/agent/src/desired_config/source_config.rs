//! The config of the source, and the exchange of configs with the commands.

use std::sync::Arc;

use super::SOURCE_NOT_READ_MESSAGE;
use crate::admin::DesiredConfigReply;
use machinist_base::{digest::Digest, error_chain::chain};
use machinist_ignition::MachineConfig;
use machinist_update::reconciler::DesiredConfig;

/// Returns the desired config of the source. If an operator has rolled back to it, its OS image may be lower than the
/// running one.
pub(super) fn of_source(source: DesiredConfig, rolled_back_to: Option<Digest>) -> DesiredConfig {
    match source {
        DesiredConfig::Config(config, digest) if rolled_back_to == Some(digest) => {
            let mut config = MachineConfig::clone(&config);
            config.allow_downgrade();
            DesiredConfig::Config(Arc::new(config), digest)
        }
        other => other,
    }
}

/// Returns the config that an operator has rolled back to, unless the source has another one now.
pub(super) fn still_rolled_back_to(
    source: &DesiredConfig,
    rolled_back_to: Option<Digest>,
) -> Option<Digest> {
    rolled_back_to.filter(|back| source.digest().is_none_or(|digest| digest == *back))
}

/// The desired config of the source, in its external representation.
pub(super) fn wanted(source_config: &DesiredConfig) -> Result<DesiredConfigReply, String> {
    match source_config {
        DesiredConfig::Unknown | DesiredConfig::Nothing => Err(SOURCE_NOT_READ_MESSAGE.to_owned()),
        DesiredConfig::Refused(refusals) => {
            let all: Vec<_> = refusals.iter().map(ToString::to_string).collect();
            Err(format!(
                "the source's config is rejected: {}",
                all.join("; ")
            ))
        }
        DesiredConfig::Config(config, _) | DesiredConfig::Blocked(config, ..) => {
            Ok(DesiredConfigReply {
                name: config.name.clone(),
                config: machinist_ignition::to_portable_json(config)
                    .map_err(|error| chain(&error))?,
            })
        }
    }
}

pub(super) fn read(name: &str, config: &[u8]) -> Result<(MachineConfig, Digest), String> {
    let mut config =
        machinist_ignition::from_portable_json(config).map_err(|error| chain(&error))?;
    name.clone_into(&mut config.name);
    let digest = machinist_ignition::digest(&config);
    Ok((config, digest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_config_that_an_operator_has_rolled_back_to_may_have_a_lower_image() {
        let config = MachineConfig::default();
        let digest = machinist_ignition::digest(&config);
        let source = DesiredConfig::Config(Arc::new(config), digest);
        let other = Digest::of(b"other");
        for (rolled_back_to, expected) in
            [(None, false), (Some(other), false), (Some(digest), true)]
        {
            let DesiredConfig::Config(config, same) = of_source(source.clone(), rolled_back_to)
            else {
                panic!("a config");
            };
            let release = config.release.as_ref();
            assert_eq!(
                release.is_some_and(|release| release.may_be_lower),
                expected
            );
            assert_eq!(same, digest);
        }
    }

    #[test]
    fn a_rollback_to_the_config_of_the_source_ends_when_the_source_changes() {
        let config = Arc::new(MachineConfig::default());
        let (digest, other) = (Digest::of(b"one"), Digest::of(b"other"));
        let source = |digest| DesiredConfig::Config(Arc::clone(&config), digest);
        let after = |source| still_rolled_back_to(&source, Some(digest));
        assert_eq!(after(source(digest)), Some(digest));
        assert_eq!(after(source(other)), None);
        // A source that cannot be read may have the same config again.
        assert_eq!(after(DesiredConfig::Unknown), Some(digest));
        let refused = DesiredConfig::Refused(Arc::default());
        assert_eq!(after(refused), Some(digest));
    }
}
