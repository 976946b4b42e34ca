//! What the commands that work on configs share: settings, source, the config that is wanted.

use anyhow::Context as _;

use super::{Global, Wanted};
use crate::{
    agent,
    config::{Fragment, Place, Settings},
    machine_config::{self, MachineConfig, Order, Refusal, Rules},
    path::AbsPath,
    plan::{Plan, Policies},
    reason::Reason,
    root::Root,
    source::{DirectorySource, LocalFiles, POOL},
};

/// The root with its settings.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) root: Root,
    pub(super) place: Place,
    pub(super) settings: Settings,
}

impl Context {
    /// Opens the root, or makes it where `create` says so, and reads the settings.
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

    /// The directory that configs come from.
    pub(super) fn source(&self) -> anyhow::Result<DirectorySource> {
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        let chosen = self.settings.source.clone().settle(in_cluster)?;
        Ok(agent::source(&self.root, &self.settings, &chosen)?)
    }

    /// The config that the arguments ask for, or everything that is wrong with it.
    pub(super) fn wanted(
        &self,
        wanted: &Wanted,
    ) -> anyhow::Result<Result<MachineConfig, Vec<Refusal>>> {
        if wanted.files.is_empty() {
            return Ok(self.source()?.read());
        }
        self.files(wanted, Order::AsGiven)
    }

    /// The files that the arguments name, merged.
    pub(super) fn files(
        &self,
        wanted: &Wanted,
        order: Order,
    ) -> anyhow::Result<Result<MachineConfig, Vec<Refusal>>> {
        let slash = Root::open(std::path::Path::new("/"))?;
        let mut files = Vec::new();
        let mut local = LocalFiles::new(slash.clone());
        for file in &wanted.files {
            let shown = file.display().to_string();
            if !machine_config::is_config_name(&shown) {
                let message = "this name is no config's; expected one that ends in .yaml, .yml, .json, .ign or .bu";
                return Ok(Err(vec![refusal(shown, Reason::SourceUnreadable, message)]));
            }
            let whole =
                std::path::absolute(file).with_context(|| format!("cannot find {shown}"))?;
            let whole = agent::plain(&whole)?;
            local.text(&shown, whole.parent().unwrap_or_else(AbsPath::root));
            files.push((shown, slash.read(&whole, LARGEST)?));
        }
        let rules = Rules {
            users: self.settings.users_allowed.iter().cloned().collect(),
            groups: self.settings.groups_allowed.iter().cloned().collect(),
        };
        let merged = machine_config::documents_from_files(files, &rules, &local).and_then(
            |(documents, warnings)| {
                if documents.is_empty() {
                    let message = "the files hold no config; nothing is taken away because of it";
                    let first = wanted.files.first().map(|file| file.display().to_string());
                    let name = first.unwrap_or_default();
                    return Err(vec![refusal(name, Reason::SourceEmpty, message)]);
                }
                let (config, more) = machine_config::merge(documents, POOL, order)?;
                for warning in warnings.iter().chain(&more) {
                    super::output::warn(warning);
                }
                Ok(config)
            },
        );
        Ok(merged)
    }

    /// The disruption policies that hold here.
    pub(super) fn policies(&self) -> anyhow::Result<Policies> {
        Ok(agent::policies(
            &self.root,
            &self.settings,
            self.place.own_uid,
        )?)
    }

    /// The name of the root, for documents.
    pub(super) fn shown_root(&self) -> String {
        self.root.display().display().to_string()
    }
}

fn refusal(file: String, reason: Reason, message: &str) -> Refusal {
    Refusal {
        file: Some(file),
        ..Refusal::new(reason, message)
    }
}

/// The largest file that is read, as for a source.
const LARGEST: u64 = 8 << 20;

/// Prints refusals for people on stderr.
pub(super) fn complain_of(refusals: &[Refusal]) {
    let refused = Plan {
        refusals: refusals.to_vec(),
        ..Plan::default()
    };
    super::output::write_error(&refused.to_text(true));
}
