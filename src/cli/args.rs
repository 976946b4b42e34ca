//! Defines the arguments that several commands share.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use jiff::fmt::friendly::SpanParser;

use machinist_base::abs_path::AbsPath;
use machinist_rootfs::Root;
use machinist_status::settings::{
    Fragment, LogFormat, Owners, SettingsFile, SettingsLocation, SourceSetting,
};

/// Flags of every command, before or after its name.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// Root directory of the machine's file system
    #[arg(long, global = true, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Directory with machinist.yaml and machinist.yaml.d, on your own file system [default:
    /// etc/machinist below the root]
    #[arg(long, global = true, value_name = "DIR")]
    pub config: Option<PathBuf>,
    /// Format of log lines on stderr [default: log.format of the settings, auto]
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        hide_possible_values = true
    )]
    pub log_format: Option<LogFormat>,
    /// Log more; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl Global {
    /// Opens the root, which must exist.
    pub fn open_root(&self) -> anyhow::Result<Root> {
        Ok(Root::open(&self.root)?)
    }

    /// The sources of the settings, including flags.
    pub fn settings_place(&self, root: &Root, flags: Fragment) -> anyhow::Result<SettingsLocation> {
        let pool = machinist_agent::pool_settings::stored_pool(root);
        let root_alone = root.accepts_only_root();
        let (root, dir) = match &self.config {
            Some(own) => (open_config(own)?, AbsPath::root()),
            None => (root.clone(), AbsPath::new(SettingsFile::DEFAULT_DIR)?),
        };
        Ok(SettingsLocation {
            root,
            dir,
            pool,
            environment: environment()?,
            flags: self.log_flags(flags),
            own_uid: nix::unistd::geteuid().as_raw(),
            root_alone,
        })
    }

    fn log_flags(&self, mut flags: Fragment) -> Fragment {
        if let Some(format) = self.log_format {
            flags = flags.with_flag("--log-format", "log.format", format.as_str());
        }
        match self.verbose {
            0 => flags,
            1 => flags.with_flag("-v", "log.level", "debug"),
            _ => flags.with_flag("-vv", "log.level", "trace"),
        }
    }
}

fn open_config(dir: &Path) -> anyhow::Result<Root> {
    Root::open(dir).context("cannot open the directory given with --config")
}

/// A `MACHINIST_` variable is not UTF-8.
#[derive(Debug, thiserror::Error)]
#[error("environment variable {0} is not valid UTF-8")]
pub(super) struct NonUtf8Env(String);

/// The environment variables. Those that are not UTF-8 are skipped, except for `MACHINIST_`
/// variables, which are an error.
fn environment() -> Result<Vec<(String, String)>, NonUtf8Env> {
    let mut all = Vec::new();
    for (name, value) in std::env::vars_os() {
        let shown = name.to_string_lossy().into_owned();
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => all.push((name, value)),
            _ if shown.starts_with("MACHINIST_") => return Err(NonUtf8Env(shown)),
            _ => {}
        }
    }
    Ok(all)
}

/// The config that `plan`, `apply` and `render` work on.
#[derive(Clone, Debug, Args)]
pub struct ConfigArgs {
    /// MachineConfig, Ignition or Butane files; later ones override earlier ones. Files without a
    /// name of their own are merged in this order, MachineConfigs as in OpenShift: role worker
    /// first, then by name
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Source of configs: dir:PATH, or auto [default: source of the settings, auto]
    #[arg(long, value_name = "SOURCE", value_parser = SourceSetting::from_flag, conflicts_with = "files")]
    pub source: Option<SourceSetting>,
    /// The roles of the machine, such as worker,infra; MachineConfigs of other roles are skipped
    /// [default: source.role of the settings]
    #[arg(long, value_name = "ROLE", value_delimiter = ',')]
    pub role: Vec<String>,
}

impl ConfigArgs {
    /// The settings that the flags set.
    pub fn flags(&self) -> Fragment {
        let flags = source_flag(Fragment::default(), self.source.as_ref());
        role_flag(flags, &self.role)
    }
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = SpanParser::new().parse_unsigned_duration(text);
    match (text, parsed) {
        ("0", _) => Ok(Duration::ZERO),
        (_, parsed) => parsed.map_err(|_| "not a duration such as 90s or 15m".to_owned()),
    }
}

pub(super) fn source_flag(flags: Fragment, source: Option<&SourceSetting>) -> Fragment {
    match source {
        Some(source) => flags.with_flag("--source", "source", source.to_string()),
        None => flags,
    }
}

pub(super) fn role_flag(flags: Fragment, roles: &[String]) -> Fragment {
    match roles {
        [] => flags,
        roles => flags.with_flag("--role", "source.role", roles.join(",")),
    }
}

pub(super) fn owners_flag(flags: Fragment, owners: Option<Owners>) -> Fragment {
    match owners {
        Some(owners) => flags.with_flag("--owners", "owners", owners.as_str()),
        None => flags,
    }
}
