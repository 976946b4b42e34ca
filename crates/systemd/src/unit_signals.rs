//! Reports changes of unit states without polling.

use std::collections::HashMap;

use tokio_stream::StreamExt as _;
use zbus::{Message, MessageStream, Variant, match_rule::MatchRule, message::Type};

use super::{Systemd, SystemdError, error::SystemdErrorKind, manager::UNIT_INTERFACE};

impl Systemd {
    /// Calls `on_change` whenever a unit has reached a stable state, until the connection breaks.
    ///
    /// `on_change` must return at once: it blocks the reading of the connection.
    pub async fn follow_units(&self, on_change: impl Fn()) -> Result<(), SystemdError> {
        let follow = async {
            let live = self.link.to_manager().await?;
            let rule = rule(live.connection().is_bus())?;
            let mut changes = MessageStream::for_match_rule(rule, live.connection(), None).await?;
            live.subscribe().await?;
            while let Some(change) = changes.next().await {
                if change.is_ok_and(|change| lasts(&change)) {
                    on_change();
                }
            }
            Ok::<_, SystemdErrorKind>(())
        };
        follow
            .await
            .map_err(SystemdError::during("follow the units"))
    }
}

/// The D-Bus match rule. On PID 1's own socket peers have no names, so the rule has no sender
/// there.
fn rule(bus: bool) -> zbus::Result<MatchRule<'static>> {
    let rule = MatchRule::builder()
        .msg_type(Type::Signal)
        .interface("org.freedesktop.DBus.Properties")
        .member("PropertiesChanged")
        .path_namespace("/org/freedesktop/systemd1/unit")
        .arg(0, UNIT_INTERFACE);
    if bus {
        rule.sender("org.freedesktop.systemd1").build()
    } else {
        rule.build()
    }
}

/// Whether the unit is now active, inactive or failed; other states are transitional.
fn lasts(change: &Message) -> bool {
    let body = change.body();
    let Ok((_, changed, _)) = body.deserialize::<(&str, HashMap<&str, Variant<'_>>, Vec<&str>)>()
    else {
        return false;
    };
    let state = changed.get("ActiveState");
    matches!(state, Some(Variant::Str(state)) if ["active", "inactive", "failed"].contains(&state.as_str()))
}
