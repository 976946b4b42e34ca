//! Reads the deployments from the files and variables of systemd-boot.

pub(super) use super::menu_files::TRIAL_FILE;
use super::{
    efi_variables::{loader_variables, preferred},
    error::SystemdBootError,
    menu_files::MenuFiles,
};
use crate::os::{
    Deployment, DeploymentId, MAX_COMMAND_LINE_BYTES, StagedDeployment,
    boot_entry::{kept_file, kept_number},
    kept_arguments::{KeptArguments, besides_host, following_host, joined},
    trial_arguments::{id_of, without_trial},
};
use machinist_base::abs_path::AbsPath;
use machinist_boot_loader::systemd_boot::{LoaderVariables, MenuEntry, SimulatedSystemdBoot};
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::Root;

/// Arguments that boot loaders add.
const LOADER_ARGUMENTS: [&str; 2] = ["BOOT_IMAGE", "initrd"];

/// The architecture, as EFI names it.
const ARCHITECTURE: &str = if cfg!(target_arch = "x86_64") {
    "x64"
} else if cfg!(target_arch = "aarch64") {
    "aa64"
} else {
    ""
};

/// The deployments, as files and variables describe them.
pub(super) struct SystemdBootState {
    pub(super) files: MenuFiles,
    variables: LoaderVariables,
    /// The pattern of an entry that the loader may enter before the default one, which the simulation does not do.
    preferred: Option<String>,
    /// The entry of boots without a request.
    pub(super) default: MenuEntry,
    booted: KernelCommandLine,
    /// The arguments that the selected deployment has from machinist.
    pub(super) kept: KeptArguments,
    /// The other arguments of the selected deployment.
    pub(super) host: KernelCommandLine,
}

impl SystemdBootState {
    pub(super) fn read(root: &Root) -> Result<Self, SystemdBootError> {
        let mut files = MenuFiles::read(root)?;
        let variables = loader_variables(root);
        let default = default_of(&files, &variables).ok_or(SystemdBootError::NoEntry)?;
        files.beside(&default.file);
        let running = AbsPath::new("/proc/cmdline").map_err(|_| SystemdBootError::NoEntry)?;
        let running = root.read_text(&running, MAX_COMMAND_LINE_BYTES)?;
        let newest = files.newest_kept();
        let written = newest.and_then(|number| files.text(&kept_file(number)));
        let written = KeptArguments::parse(written.unwrap_or_default());
        let all = KernelCommandLine::parse(&default.options);
        let (kept, host) = written.among(&all).unwrap_or_else(|| {
            // The entry of a kernel that was installed without the arguments of machinist.
            (written.of_host_alone(&all), all.clone())
        });
        let in_config = || files.setting("preferred").map(str::to_owned);
        Ok(Self {
            preferred: preferred(root).or_else(in_config),
            files,
            variables,
            default,
            booted: without_loader(&KernelCommandLine::parse(&running)),
            kept,
            host,
        })
    }

    pub(super) fn selected(&self) -> Deployment {
        self.deployment(KernelCommandLine::parse(&self.default.options))
    }

    pub(super) fn booted(&self) -> Deployment {
        self.deployment(without_trial(&self.booted).0)
    }

    /// The deployment with these arguments. Its identifier is that of a kept entry, in which those of machinist are the
    /// last ones: kernel-install appends others to them.
    fn deployment(&self, arguments: KernelCommandLine) -> Deployment {
        let own = self.own_arguments(&arguments);
        let id = match own {
            Ok(own) => id_of(&joined(&self.host, &own)),
            Err(_) => id_of(&arguments),
        };
        Deployment::of_arguments(id, arguments)
    }

    /// Whether the running kernel was started for a trial.
    pub(super) fn is_trial_running(&self) -> bool {
        without_trial(&self.booted).1
    }

    pub(super) fn previous(&self) -> Option<Deployment> {
        let arguments = joined(&self.host, self.kept.previous.as_ref()?);
        Some(Deployment::of_arguments(id_of(&arguments), arguments))
    }

    /// The arguments of a boot besides those of the host. They may be among these: kernel-install appends
    /// `systemd.machine_id=` to those of /etc/kernel/cmdline.
    pub(super) fn own_arguments(
        &self,
        all: &KernelCommandLine,
    ) -> Result<KernelCommandLine, SystemdBootError> {
        let own = following_host(&self.host, all).or_else(|| besides_host(&self.host, all));
        own.ok_or_else(|| SystemdBootError::ForeignArguments(self.default.file.clone()))
    }

    /// Fails if an entry is preferred: later boots would not enter that of a kept deployment.
    pub(super) fn check_preferred(&self) -> Result<(), SystemdBootError> {
        match &self.preferred {
            None => Ok(()),
            Some(pattern) => Err(SystemdBootError::Preferred(pattern.clone())),
        }
    }

    /// Fails if the default entry has a boot counter, which only a boot that succeeds removes: an entry of a kept
    /// deployment would start its kernel without one.
    pub(super) fn check_confirmed(&self) -> Result<(), SystemdBootError> {
        match self.default.counter {
            None => Ok(()),
            Some(_) => Err(SystemdBootError::Unconfirmed(self.default.file.clone())),
        }
    }

    /// Fails while the kernel of the default entry is being installed: it lacks a file, or the initial RAM disk that the
    /// trial has.
    pub(super) fn check_complete(&self) -> Result<(), SystemdBootError> {
        let trial = self.entry_of(&self.files, TRIAL_FILE);
        let trial = trial.filter(|entry| entry.file == TRIAL_FILE);
        let needs_initrd = trial.is_some_and(|entry| !entry.initrds.is_empty());
        let lacks_initrd = needs_initrd && self.default.initrds.is_empty();
        match !lacks_initrd && self.files.is_complete(&self.default) {
            true => Ok(()),
            false => Err(SystemdBootError::Incomplete(self.default.file.clone())),
        }
    }

    /// Whether the next boot enters the staged deployment.
    pub(super) fn is_unlocked(&self) -> bool {
        let requested = self.variables.one_shot.as_deref();
        requested.is_some_and(|file| file.eq_ignore_ascii_case(TRIAL_FILE))
    }

    /// The entry that another program has selected for the next boot.
    pub(super) fn one_shot_of_others(&self) -> Option<&str> {
        let requested = self.variables.one_shot.as_deref();
        requested.filter(|_| !self.is_unlocked())
    }

    fn staged_arguments(&self) -> Option<KernelCommandLine> {
        let entry = self.entry_of(&self.files, TRIAL_FILE);
        let entry = entry.filter(|entry| entry.file == TRIAL_FILE)?;
        let (arguments, is_trial) = without_trial(&KernelCommandLine::parse(&entry.options));
        is_trial.then_some(arguments)
    }

    pub(super) fn staged_id(&self) -> Option<DeploymentId> {
        let arguments = self.staged_arguments()?;
        Some(DeploymentId::new(id_of(&arguments)))
    }

    pub(super) fn staged(&self) -> Option<StagedDeployment> {
        let arguments = self.staged_arguments()?;
        Some(StagedDeployment {
            deployment: Deployment::of_arguments(id_of(&arguments), arguments),
            locked: !self.is_unlocked(),
            is_deselected: false,
        })
    }

    /// The entry that a boot would enter for which this one is requested.
    pub(super) fn entry_of(&self, files: &MenuFiles, requested: &str) -> Option<MenuEntry> {
        let variables = LoaderVariables {
            one_shot: Some(requested.to_owned()),
            ..self.variables.clone()
        };
        next_of(files, &variables)
    }

    /// The entry of the kept deployment, if it has no arguments of machinist, and boots without it would enter an entry
    /// of the host with the same kernel and the same arguments, which the running kernel has as well.
    pub(super) fn unneeded_entry(&self) -> Option<String> {
        let file = kept_file(self.files.newest_kept()?);
        let kept = KeptArguments::parse(self.files.text(&file)?);
        let files = self.files.without(&file);
        let next = self.default_with(&files)?;
        let is_running =
            |entry: &MenuEntry| KernelCommandLine::parse(&entry.options) == self.booted;
        let is_same = next.kernel == self.default.kernel
            && [&self.default, &next].into_iter().all(is_running);
        let is_unneeded = kept.current.iter().next().is_none()
            && self.check_preferred().is_ok()
            && kept_number(&next.file).is_none()
            && is_same
            && files.is_complete(&next);
        is_unneeded.then_some(file)
    }

    /// Fails if the default entry with these files may be one that the loader finds itself.
    pub(super) fn check_matched(&self, files: &MenuFiles) -> Result<(), SystemdBootError> {
        let loader = SimulatedSystemdBoot::new(files, &self.variables, ARCHITECTURE);
        match loader.unmatched_default() {
            None => Ok(()),
            Some(pattern) => Err(SystemdBootError::UnmatchedDefault(pattern.to_owned())),
        }
    }

    /// The entry of boots without a request, with other files.
    pub(super) fn default_with(&self, files: &MenuFiles) -> Option<MenuEntry> {
        default_of(files, &self.variables)
    }
}

fn next_of(files: &MenuFiles, variables: &LoaderVariables) -> Option<MenuEntry> {
    let loader = SimulatedSystemdBoot::new(files, variables, ARCHITECTURE);
    loader.next().cloned()
}

fn default_of(files: &MenuFiles, variables: &LoaderVariables) -> Option<MenuEntry> {
    let variables = LoaderVariables {
        one_shot: None,
        ..variables.clone()
    };
    next_of(files, &variables)
}

fn without_loader(all: &KernelCommandLine) -> KernelCommandLine {
    let own = all
        .iter()
        .filter(|one| !LOADER_ARGUMENTS.contains(&one.name()));
    own.cloned().collect()
}
