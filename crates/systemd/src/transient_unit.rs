//! Starts programs as transient units.

use zbus::{OwnedObjectPath, Variant};

use super::dbus_proxies::{ManagerProxy, Property};

/// Starts a program as a oneshot unit, with these further properties.
pub(super) async fn start_transient(
    manager: &ManagerProxy<'_>,
    name: &str,
    argv: &[&str],
    description: &str,
    own: &[Property<'_>],
) -> zbus::Result<OwnedObjectPath> {
    let program = argv.first().copied().unwrap_or_default();
    // Path, arguments including argv[0], whether to ignore a failure.
    let exec = vec![(program, argv.to_vec(), false)];
    let mut properties = vec![
        ("Description", Variant::from(description)),
        ("Type", "oneshot".into()),
        // In emergency mode sysinit.target is not active; depending on it would start it and end
        // that mode.
        ("DefaultDependencies", false.into()),
        ("CollectMode", "inactive-or-failed".into()),
        ("ExecStart", exec.into()),
    ];
    for (property, value) in own {
        properties.push((property, value.try_clone()?));
    }
    // `fail`: a second start while the first one runs is refused instead of queued.
    manager
        .start_transient_unit(name, "fail", &properties, &[])
        .await
}
