//! Derives capabilities, conduct and source from the settings.

use std::{path::PathBuf, sync::Arc, time::Duration};

use super::{AgentError, host_install::HostInstall};
use crate::config_dir::{ConfigValidator, DirectorySource};
use machinist_base::{abs_path::AbsPath, error_chain::chain, reason::Reason};
use machinist_ignition::{ConfigRules, TextSource};
use machinist_plan::{Capabilities, Policies};
use machinist_rootfs::Root;
use machinist_status::settings::{AgentRole, DriftPolicy, Owners, Reboot, Settings, SourceSetting};
use machinist_systemd::Systemd;
use machinist_update::{
    boot_id,
    os::{self, OsError, OsProvider},
    reconciler::{
        DriftAction, DriftHandling, RebootPolicy, Reconciler, ReconcilerHooks, ReconcilerOptions,
        UpdateError,
    },
    service_port::{RecoveryInstaller, Services},
};

/// How often the deployments are listed before machinist leaves the host.
const MAX_OBSERVE_ATTEMPTS: u32 = 5;

/// Delay between two of these attempts.
const OBSERVE_RETRY_DELAY: Duration = Duration::from_secs(2);

/// The capabilities of this process on the root; an error if a live machine needs more.
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

/// Like [`capabilities`] for read-only commands: nothing is rejected.
pub fn read_only_capabilities(root: &Root, owners: Owners) -> Capabilities {
    let fallback = Capabilities {
        live: root.is_live(),
        chown: root.can_chown(),
        os: os::capabilities(root),
    };
    capabilities(root, owners).unwrap_or(fallback)
}

/// The service manager of a live root. Its userspace boot is read here, because the reconciler
/// compares boots from its start.
pub(super) async fn manager(root: &Root, capabilities: Capabilities) -> Option<Systemd> {
    let systemd = capabilities.live.then(|| Systemd::of(root))?;
    boot_id::record_userspace(root, &systemd).await;
    Some(systemd)
}

/// The provider of the host's operating system; none without a service manager that runs the host's programs.
pub(super) fn os_provider(root: &Root, systemd: Option<&Systemd>) -> Option<Arc<dyn OsProvider>> {
    os::provider(root, systemd?.clone())
}

/// Discards a deployment that an update has staged and that no update needs any more, and images of no deployment.
pub async fn discard_deployment(root: &Root) -> Result<(), OsError> {
    let Some(provider) = os_provider(root, Some(&Systemd::of(root))) else {
        return Ok(());
    };
    if !os::capabilities(root).has_provider() {
        return Ok(());
    }
    for _ in 1..MAX_OBSERVE_ATTEMPTS {
        match provider.observe().await {
            // Another program may be writing the boot loader's files.
            Err(error) if error.is_retryable() => tokio::time::sleep(OBSERVE_RETRY_DELAY).await,
            _ => break,
        }
    }
    os::leave_host(&*provider).await
}

/// What updates need of the host besides its service manager.
pub(super) struct HostParts {
    recovery: Option<Arc<dyn RecoveryInstaller>>,
    os: Option<Arc<dyn OsProvider>>,
}

impl HostParts {
    pub(super) fn add_to<S: Services, H: ReconcilerHooks>(
        self,
        driver: Reconciler<S, H>,
    ) -> Reconciler<S, H> {
        let driver = driver.with_recovery_install(self.recovery);
        driver.with_os_provider(self.os)
    }
}

/// Prepares the host before the journal is opened: connects to the service manager, and installs
/// the host part if the agent needs one.
pub(super) async fn on_host(
    root: &Root,
    settings: &Settings,
    capabilities: Capabilities,
) -> Result<(Option<Systemd>, HostParts), AgentError> {
    let systemd = manager(root, capabilities).await;
    let parts = HostParts {
        recovery: host_part(root, settings, systemd.as_ref()).await?,
        os: os_provider(root, systemd.as_ref()),
    };
    Ok((systemd, parts))
}

/// Installs the host part of an agent that runs in a container and updates the machine. This
/// happens before the journal is opened, because an older copy might not be able to read what this
/// agent writes. A failure is logged here, and reported with each plan that needs the host part.
async fn host_part(
    root: &Root,
    settings: &Settings,
    systemd: Option<&Systemd>,
) -> Result<Option<Arc<dyn RecoveryInstaller>>, AgentError> {
    if !root.is_seen_from_a_container() || !settings.has_role(AgentRole::Config) {
        return Ok(None);
    }
    let host: Arc<dyn RecoveryInstaller> = Arc::new(HostInstall::new(root));
    let bringing = Arc::clone(&host);
    let brought = tokio::task::spawn_blocking(move || bringing.install());
    match brought
        .await
        .map_err(|lost| AgentError::Update(Box::new(UpdateError::Lost(lost))))?
    {
        Ok(false) => {}
        Ok(true) => {
            // The next boot reads the units in any case.
            if let Some(systemd) = systemd
                && let Err(error) = systemd.daemon_reload().await
            {
                tracing::warn!(reason = %error.reason(), "{}", chain(&error));
            }
        }
        Err(error) => {
            let why = chain(&*error);
            tracing::warn!(reason = %Reason::RecoveryMissing, "{why}; no updates until then");
        }
    }
    Ok(Some(host))
}

/// The reconciler's conduct, from the settings.
pub fn reconciler_options(
    settings: &Settings,
    capabilities: Capabilities,
    policies: Arc<Policies>,
) -> ReconcilerOptions {
    let act = |policy| match policy {
        DriftPolicy::Report => DriftAction::Report,
        DriftPolicy::Repair => DriftAction::Repair,
        DriftPolicy::Ignore => DriftAction::Ignore,
    };
    let rules = settings.drift.rules.iter();
    ReconcilerOptions {
        reboot: match settings.update.reboot {
            Reboot::Auto => RebootPolicy::Auto,
            Reboot::Ask => RebootPolicy::Ask,
            Reboot::Never => RebootPolicy::Never,
        },
        verify_timeout: settings.update.verify_timeout,
        boot_attempts: settings.update.boot_attempts,
        os_boot_attempts: settings.update.os_boot_attempts,
        reboot_timeout: settings.update.reboot_timeout,
        os_step_timeout: settings.update.os_step_timeout,
        job_timeout: settings.actions.job_timeout,
        settle: settings.actions.settle,
        full_pass: settings.drift.full_pass,
        windows: settings.update.windows.clone(),
        drift: DriftHandling {
            default: act(settings.drift.default),
            rules: rules
                .map(|rule| (rule.path.clone(), act(rule.policy)))
                .collect(),
        },
        capabilities,
        policies,
    }
}

/// Checks for what a config must not contain on this machine.
pub fn config_validator(settings: &Settings) -> ConfigValidator {
    ConfigValidator {
        policies: settings.update.policies.clone(),
        refusals: super::managed_settings::refusals,
    }
}

/// The users and groups that a config may manage.
pub(super) fn rules(settings: &Settings) -> ConfigRules {
    ConfigRules {
        users: settings.users_allowed.iter().cloned().collect(),
        groups: settings.groups_allowed.iter().cloned().collect(),
        source: TextSource::File,
    }
}

/// The config source directory that the settings name.
pub fn source(
    root: &Root,
    settings: &Settings,
    chosen: &SourceSetting,
) -> Result<DirectorySource, AgentError> {
    let rules = rules(settings);
    let (tree, dir, shown) = match chosen {
        SourceSetting::Directory(dir) => (
            root.clone(),
            dir.clone(),
            root.host_path(dir).display().to_string(),
        ),
        SourceSetting::CallersDirectory(given) => {
            let given = given.trim_end_matches('/');
            let whole = std::path::absolute(PathBuf::from(given))
                .map_err(|e| AgentError::System("determine the config source", e))?;
            let slash = Root::open(std::path::Path::new("/")).map_err(AgentError::Socket)?;
            (slash, plain(&whole)?, given.to_owned())
        }
        // Resolved by the caller; the default directory is used.
        SourceSetting::Auto | SourceSetting::Cluster => (
            root.clone(),
            AbsPath::new(SourceSetting::DEFAULT_DIR)?,
            SourceSetting::DEFAULT_DIR.to_owned(),
        ),
    };
    Ok(DirectorySource {
        tree,
        dir,
        shown,
        root_alone: root.accepts_only_root(),
        rules,
        judge: config_validator(settings),
        roles: settings.source_roles.clone(),
    })
}

/// Normalises a path of a shell user: absolute, without `.` and `..`.
pub fn plain(path: &std::path::Path) -> Result<AbsPath, machinist_base::abs_path::BadPath> {
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
