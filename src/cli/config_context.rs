//! Provides what the commands on configs share: settings, source, and the desired config.

use anyhow::{Context as _, bail};

use super::{ConfigArgs, Global};
use machinist_agent::{
    ConfigOrigin,
    admin::{self, DesiredConfigReply},
    config_dir::{DirectorySource, LocalFiles, STANDALONE_POOL},
};
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_cluster::ClusterEnv;
use machinist_ignition::{
    ConfigLoader, ConfigRules, MachineConfig, MergeOrder, Refusal, RejectedConfig, TextSource,
};
use machinist_plan::{Plan, Policies};
use machinist_rootfs::{Root, RootError};
use machinist_status::settings::{Fragment, Settings, SettingsLocation, SourceSetting};

/// The root with its settings.
#[derive(Debug)]
pub(super) struct ConfigContext {
    pub(super) root: Root,
    pub(super) place: SettingsLocation,
    pub(super) settings: Settings,
}

impl ConfigContext {
    /// Opens the root, or creates it if `create` is true, and reads the settings.
    pub(super) fn open(global: &Global, flags: Fragment, create: bool) -> anyhow::Result<Self> {
        let root = if create {
            Root::open_or_create(&global.root)?.0
        } else {
            global.open_root()?
        };
        let place = global.settings_place(&root, flags)?;
        let settings = place.read()?;
        Ok(Self {
            root,
            place,
            settings,
        })
    }

    /// The directory that configs come from; an error if a cluster determines the desired config.
    pub(super) fn source(&self) -> anyhow::Result<DirectorySource> {
        let access = machinist_agent::access(&self.root, &self.settings, &cluster_env(false));
        match self.settings.source.clone().resolve_auto(access.is_some()) {
            SourceSetting::Cluster => bail!(
                "the config source is the cluster and no agent is running: start the agent, or give files or --source dir:PATH"
            ),
            chosen => Ok(machinist_agent::source(
                &self.root,
                &self.settings,
                &chosen,
            )?),
        }
    }

    /// The source of the agent's configs.
    pub(super) fn origin(&self, pod_uid: Option<String>) -> anyhow::Result<ConfigOrigin> {
        let access = machinist_agent::access(&self.root, &self.settings, &cluster_env(true));
        match (
            self.settings.source.clone().resolve_auto(access.is_some()),
            access,
        ) {
            (SourceSetting::Cluster, Some(access)) => Ok(ConfigOrigin::Cluster { access, pod_uid }),
            (SourceSetting::Cluster, None) => bail!(
                "`source: cluster` outside a pod requires a kubeconfig: set --kubeconfig or `cluster.kubeconfig`"
            ),
            (chosen, _) => Ok(ConfigOrigin::Directory(machinist_agent::source(
                &self.root,
                &self.settings,
                &chosen,
            )?)),
        }
    }

    /// The config that the arguments select, or all its refusals.
    pub(super) fn selected_config(
        &self,
        wanted: &ConfigArgs,
    ) -> anyhow::Result<Result<MachineConfig, RejectedConfig>> {
        if wanted.files.is_empty() {
            if self.follows_a_cluster()? {
                return Ok(Ok(self.the_nodes()?));
            }
            let source = self.source()?;
            self.same_as_the_agents(&source)?;
            return Ok(source.read());
        }
        self.files(wanted)
    }

    /// Whether the settings leave the source to the running agent, and that is a cluster.
    fn follows_a_cluster(&self) -> anyhow::Result<bool> {
        if !matches!(
            self.settings.source,
            SourceSetting::Auto | SourceSetting::Cluster
        ) {
            return Ok(false);
        }
        let agent = super::status::running_agent(&self.root)?;
        Ok(agent.is_some_and(|agent| agent.source == ConfigOrigin::CLUSTER_SOURCE_NAME))
    }

    /// The desired config of the Node, from the agent that has read it.
    fn the_nodes(&self) -> anyhow::Result<MachineConfig> {
        let DesiredConfigReply { name, config } = admin::fetch_desired_config(&self.root)?;
        let mut config = machinist_ignition::from_portable_json(config.as_slice())?;
        let status = super::status::running_agent(&self.root)?;
        let warnings = status.filter(|status| status.config.desired == name);
        config.notes.0.extend(
            warnings
                .into_iter()
                .flat_map(|status| status.config.warnings),
        );
        config.name = name;
        Ok(config)
    }

    /// If an agent was started with `--source`, the settings alone may name a different source.
    fn same_as_the_agents(&self, source: &DirectorySource) -> anyhow::Result<()> {
        let chosen = !matches!(self.settings.source, SourceSetting::Auto);
        let agent = match chosen {
            true => return Ok(()),
            false => super::status::running_agent(&self.root)?,
        };
        match agent.map(|agent| agent.source) {
            Some(theirs) if theirs != format!("dir:{}", source.shown) => bail!(
                "the agent's source is {theirs}, but the settings select dir:{}: choose one with --source, or give files",
                source.shown
            ),
            _ => Ok(()),
        }
    }

    /// The merged config of the files in the arguments.
    pub(super) fn files(
        &self,
        wanted: &ConfigArgs,
    ) -> anyhow::Result<Result<MachineConfig, RejectedConfig>> {
        let slash = Root::open(std::path::Path::new("/"))?;
        let (mut files, mut missing) = (Vec::new(), Vec::new());
        let mut local = LocalFiles::new(slash.clone());
        for file in &wanted.files {
            let shown = file.display().to_string();
            let whole =
                std::path::absolute(file).with_context(|| format!("cannot find {shown}"))?;
            let whole = machinist_agent::plain(&whole)?;
            local.text(&shown, whole.parent().unwrap_or_else(AbsPath::root));
            match read(&slash, &whole, &shown) {
                Ok(bytes) => {
                    if let Err(RootError::Untrusted { path, writer }) = slash.check_trusted(&whole)
                    {
                        let path = path.display();
                        super::output::warn(&format!(
                            "{shown}: writable by other users: {path}: {writer}"
                        ));
                    }
                    files.push((shown, bytes));
                }
                Err(refusal) => missing.push(refusal.file(shown)),
            }
        }
        let rules = ConfigRules {
            users: self.settings.users_allowed.iter().cloned().collect(),
            groups: self.settings.groups_allowed.iter().cloned().collect(),
            source: TextSource::File,
        };
        let all: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        let gathering = ConfigLoader {
            shown: &all.join(", "),
            rules: &rules,
            local: &local,
            pool: STANDALONE_POOL,
            order: MergeOrder::WorkerFirst,
            roles: &self.settings.source_roles,
        };
        let merged = machinist_agent::config_validator(&self.settings)
            .judged(gathering.config(files, missing));
        Ok(merged.map(|(config, warnings)| {
            for warning in &warnings {
                super::output::warn(warning);
            }
            config
        }))
    }

    /// The refusals of a config, including those of this machine for the part that could be parsed.
    /// If the machine cannot be checked, its refusals are omitted: they are not the reason why the
    /// config is not accepted.
    pub(super) fn all_refusals(&self, refused: RejectedConfig) -> Vec<Refusal> {
        let RejectedConfig { mut refusals, rest } = refused;
        let of_the_host = rest.and_then(|rest| {
            let capabilities =
                machinist_agent::read_only_capabilities(&self.root, self.settings.owners);
            let policies = self.policies().ok()?;
            let looked = machinist_agent::plan(&self.root, &rest, capabilities, &policies);
            super::short().ok()?.block_on(looked).ok()?.err()
        });
        let stands =
            |refusal: &Refusal| self.is_independent(refusal) && !refusals.contains(refusal);
        let more: Vec<_> = of_the_host.into_iter().flatten().filter(stands).collect();
        refusals.extend(more);
        refusals
    }

    /// Whether the host would refuse this independent of the part of the config that could not be
    /// parsed.
    fn is_independent(&self, refusal: &Refusal) -> bool {
        // An entry that seems to leave the config may be in the part that could not be parsed.
        let asked = refusal.file.is_some();
        let others = self
            .settings
            .users_allowed
            .iter()
            .any(|user| user != "core")
            || !self.settings.groups_allowed.is_empty();
        asked
            && match refusal.reason {
                Reason::ReadOnly
                | Reason::Immutable
                | Reason::TargetIsMountPoint
                | Reason::NoProviderForKernelArguments
                | Reason::NoProviderForOSImage
                | Reason::NoProviderForExtensions
                | Reason::ImageNotByDigest
                | Reason::DowngradeRefused
                | Reason::KubeletNotManaged => true,
                // Other users or groups may be declared in the part that could not be parsed.
                Reason::FileOwnerUnknown => !others,
                _ => false,
            }
    }

    /// The effective disruption policies.
    pub(super) fn policies(&self) -> anyhow::Result<Policies> {
        Ok(machinist_agent::policies(
            &self.root,
            &self.settings,
            self.place.own_uid,
        )?)
    }

    /// The name of the root in documents.
    pub(super) fn shown_root(&self) -> String {
        self.root.display().display().to_string()
    }
}

/// The environment of this process that refers to a cluster. `KUBECONFIG` is used only for an
/// agent: for a command it belongs to the user and need not be the cluster of the machine that the
/// command is about.
pub(super) fn cluster_env(agent: bool) -> ClusterEnv {
    let listed = std::env::var_os("KUBECONFIG").filter(|_| agent);
    let listed = listed.unwrap_or_default();
    ClusterEnv {
        flag: None,
        context: None,
        kubeconfig: std::env::split_paths(&listed)
            .filter(|path| !path.as_os_str().is_empty())
            .collect(),
        pod: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        home: None,
    }
}

/// The text of a config file in the arguments, or why it is none.
pub(super) fn config_text(file: &std::path::Path) -> anyhow::Result<Result<String, Refusal>> {
    let shown = file.display().to_string();
    let whole = std::path::absolute(file).with_context(|| format!("cannot find {shown}"))?;
    let whole = machinist_agent::plain(&whole)?;
    let slash = Root::open(std::path::Path::new("/"))?;
    let text = read(&slash, &whole, &shown).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|error| {
            Refusal::new(Reason::SyntaxInvalid, format!("not UTF-8 text: {error}"))
        })
    });
    Ok(text.map_err(|refusal| refusal.file(shown)))
}

/// The content of one of the caller's files, or why it is not a config.
fn read(slash: &Root, whole: &AbsPath, shown: &str) -> Result<Vec<u8>, Refusal> {
    let refuse = |message: String| Refusal::new(Reason::SourceUnreadable, message);
    if slash.list(whole).is_ok() {
        let refusal = refuse("is a directory".to_owned());
        return Err(refusal.expected(format!("a file, or --source dir:{shown}")));
    }
    if !machinist_ignition::is_config_name(shown) {
        let refusal = refuse("not a config file name".to_owned());
        return Err(refusal.expected("a name that ends in .yaml, .yml, .json, .ign or .bu"));
    }
    slash
        .read(whole, MAX_MANIFEST_BYTES)
        .map_err(|error| refuse(machinist_base::error_chain::chain(&error)))
}

/// The maximum file size in bytes, as for a source.
const MAX_MANIFEST_BYTES: u64 = 8 << 20;

/// Prints refusals as text on stderr.
pub(super) fn print_refusals(refusals: &[Refusal]) {
    let refused = Plan {
        refusals: refusals.to_vec(),
        ..Plan::default()
    };
    super::output::write_error(&refused.to_text(true));
}
