//! What settings mean for this machine: capabilities, conduct, source.

use std::{path::PathBuf, sync::Arc};

use super::AgentError;
use crate::{
    config::{DriftPolicy, Owners, Reboot, Settings, Source},
    machine_config::Rules,
    os,
    path::AbsPath,
    plan::{Capabilities, Policies},
    root::Root,
    source::{DirectorySource, Judge},
    systemd::Systemd,
    update::{
        run::{Conduct, DriftAct, DriftConduct, RebootConduct},
        userspace,
    },
};

/// What this process can do to that root; refused where a live machine needs more.
pub fn capabilities(root: &Root, owners: Owners) -> Result<Capabilities, AgentError> {
    let live = root.is_live();
    let chown = match (owners, live, root.can_chown()) {
        (Owners::Record, true, _) => return Err(AgentError::RecordOnLive),
        (_, true, false) => return Err(AgentError::NotRoot),
        (Owners::Record, ..) => false,
        (Owners::Set, ..) => true,
        (Owners::Auto, _, may) => may,
    };
    Ok(Capabilities {
        live,
        chown,
        os: os::capabilities(root),
    })
}

/// As [`capabilities`], for those who only look: nothing is refused.
pub fn look_capabilities(root: &Root, owners: Owners) -> Capabilities {
    let fallback = Capabilities {
        live: root.is_live(),
        chown: root.can_chown(),
        os: os::capabilities(root),
    };
    capabilities(root, owners).unwrap_or(fallback)
}

/// The service manager of a live root, asked already which userspace runs there: the driver compares boots
/// from its first moment on.
pub(super) async fn manager(root: &Root, capabilities: Capabilities) -> Option<Systemd> {
    let systemd = capabilities.live.then(|| Systemd::of(root))?;
    userspace::know(root, &systemd).await;
    Some(systemd)
}

/// The driver's conduct, from the settings.
pub fn conduct(
    settings: &Settings,
    capabilities: Capabilities,
    policies: Arc<Policies>,
) -> Conduct {
    let act = |policy| match policy {
        DriftPolicy::Report => DriftAct::Report,
        DriftPolicy::Repair => DriftAct::Repair,
        DriftPolicy::Ignore => DriftAct::Ignore,
    };
    let rules = settings.drift.rules.iter();
    Conduct {
        reboot: match settings.update.reboot {
            Reboot::Auto => RebootConduct::Auto,
            Reboot::Ask => RebootConduct::Ask,
            Reboot::Never => RebootConduct::Never,
        },
        verify_timeout: settings.update.verify_timeout,
        boot_attempts: settings.update.boot_attempts,
        reboot_timeout: settings.update.reboot_timeout,
        job_timeout: settings.actions.job_timeout,
        settle: settings.actions.settle,
        full_pass: settings.drift.full_pass,
        windows: settings.update.windows.clone(),
        drift: DriftConduct {
            default: act(settings.drift.default),
            rules: rules
                .map(|rule| (rule.path.clone(), act(rule.policy)))
                .collect(),
        },
        capabilities,
        policies,
    }
}

/// What no config may bring here.
pub fn judge(settings: &Settings) -> Judge {
    Judge {
        policies: settings.update.policies.clone(),
        refusals: super::brought::refusals,
    }
}

/// Whom a config may manage.
pub(super) fn rules(settings: &Settings) -> Rules {
    Rules {
        users: settings.users_allowed.iter().cloned().collect(),
        groups: settings.groups_allowed.iter().cloned().collect(),
    }
}

/// The directory that the settings name.
pub fn source(
    root: &Root,
    settings: &Settings,
    chosen: &Source,
) -> Result<DirectorySource, AgentError> {
    let rules = rules(settings);
    let (tree, dir, shown) = match chosen {
        Source::Directory(dir) => (
            root.clone(),
            dir.clone(),
            root.host_path(dir).display().to_string(),
        ),
        Source::CallersDirectory(given) => {
            let given = given.trim_end_matches('/');
            let whole = std::path::absolute(PathBuf::from(given))
                .map_err(|e| AgentError::System("find the source", e))?;
            let slash = Root::open(std::path::Path::new("/")).map_err(AgentError::Socket)?;
            (slash, plain(&whole)?, given.to_owned())
        }
        // Settled before this; a directory is asked for.
        Source::Auto | Source::Cluster => (
            root.clone(),
            AbsPath::new(Source::DEFAULT_DIR)?,
            Source::DEFAULT_DIR.to_owned(),
        ),
    };
    Ok(DirectorySource {
        tree,
        dir,
        shown,
        rules,
        judge: judge(settings),
    })
}

/// An absolute path without the `.` and `..` that a shell user may write.
pub fn plain(path: &std::path::Path) -> Result<AbsPath, crate::path::BadPath> {
    let mut parts: Vec<String> = Vec::new();
    for part in path.components() {
        match part {
            std::path::Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            std::path::Component::ParentDir => drop(parts.pop()),
            _ => {}
        }
    }
    AbsPath::new(format!("/{}", parts.join("/")))
}
