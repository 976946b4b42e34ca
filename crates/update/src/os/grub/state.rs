//! Reads the deployments from GRUB's files.

use super::{
    changed_files::ChangedFiles,
    error::GrubError,
    host_files::{HostFiles, path},
    kept_entries::{NewestEntry, SAVED_ENTRY},
    menu_source::MenuSource,
    trial_entry::{self, staged_id},
};
use crate::os::{
    Deployment, MAX_COMMAND_LINE_BYTES, StagedDeployment,
    kept_arguments::{KeptArguments, besides_host, following_host, joined},
    trial_arguments::{id_of, without_trial},
};
use machinist_boot_loader::grub::{
    BootError, EnvironmentBlock, GrubFiles as _, KernelBoot, SimulatedGrub, kernel_command_line,
};
use machinist_ignition::KernelCommandLine;
use machinist_rootfs::Root;

/// The file that appends the arguments of kept deployments. Its name sorts after those of packages, such as
/// `kdump-tools.cfg`, which may set the variable again.
pub(super) const DEFAULT_FILE: &str = "/etc/default/grub.d/zz-machinist.cfg";

/// The variable that names the entry of the next boot.
pub(in crate::os) const NEXT_ENTRY: &str = "next_entry";

/// The variable of the environment block with the arguments of TuneD.
pub(super) const TUNED_VARIABLE: &str = "tuned_params";

/// The variable that Ubuntu's GRUB sets before each boot, and a boot that reaches userspace unsets.
pub(super) const RECORD_FAIL: &str = "recordfail";

/// Variables with which Ubuntu's grub.cfg repeats a boot that failed without an initial RAM disk, instead of entering
/// `next_entry`. A successful boot unsets them (grub-initrd-fallback.service).
const FAILED_BOOT: [&str; 2] = ["initrdfail", "prev_entry"];

/// The environment block with another entry for the next boot.
pub(in crate::os) fn environment_with_next(
    environment: &EnvironmentBlock,
    id: Option<&str>,
) -> EnvironmentBlock {
    let mut environment = environment.clone();
    match id {
        Some(id) => environment.set(NEXT_ENTRY, id),
        None => environment.unset(NEXT_ENTRY),
    }
    for name in FAILED_BOOT {
        environment.unset(name);
    }
    environment
}

/// A boot entry whose kernel was removed.
pub(super) struct DeadEntry {
    pub(super) file: String,
    /// The arguments that the entry in its place has.
    pub(super) kept: KeptArguments,
}

/// The deployments, as the files describe them.
pub(super) struct GrubState {
    /// The boot without `next_entry`.
    pub(super) selected: KernelBoot,
    pub(super) booted: KernelCommandLine,
    /// The arguments that the selected deployment has from machinist.
    pub(super) kept: KeptArguments,
    /// Where the entries of kernels are.
    pub(super) menu: MenuSource,
    /// The file of kept arguments is newer than what selects them: a keep was interrupted.
    pub(super) is_interrupted: bool,
    /// What the file of kept arguments held before a keep that is not finished, where grub-mkconfig reads the file.
    pub(super) unfinished: Option<KeptArguments>,
    /// GRUB would enter an entry with the arguments of a trial. `environment`, which is not written yet, selects the kept
    /// one instead.
    pub(super) is_diverted: bool,
    pub(super) host: Option<KernelCommandLine>,
    /// There is a boot entry of a kept deployment.
    pub(super) has_kept_entry: bool,
    /// The boot entry of a kept deployment names a kernel that was removed.
    pub(super) dead: Option<DeadEntry>,
    pub(super) environment: EnvironmentBlock,
    pub(super) custom: String,
}

impl GrubState {
    pub(super) fn read(root: &Root) -> Result<Self, GrubError> {
        let files = HostFiles::new(root);
        let ChangedFiles {
            mut environment,
            custom,
        } = ChangedFiles::read(root)?;
        let running = root.read_text(&path("/proc/cmdline")?, MAX_COMMAND_LINE_BYTES)?;
        let menu = MenuSource::of(root);
        let newest = match menu {
            MenuSource::GrubConfig => {
                let text = files.text(DEFAULT_FILE).unwrap_or_default();
                NewestEntry::of(KeptArguments::parse(&text))
            }
            MenuSource::BlsConfig => NewestEntry::read(root)?,
        };
        let (selected, is_diverted) = select(files, &mut environment, &newest)?;
        let written = newest.kept.clone();
        let all = without_trial(&selected.arguments()).0;
        // A finished keep has removed the entry of the trial, whose arguments the file has.
        let is_tried = staged_id(&custom)
            .is_some_and(|id| id == id_of(&joined(&written.host, &written.current)));
        let unfinished = written
            .before()
            .filter(|_| is_tried && menu == MenuSource::GrubConfig);
        let in_config = match menu {
            MenuSource::GrubConfig => written.in_config(&all, unfinished.is_some()),
            MenuSource::BlsConfig => written.among(&all),
        };
        let is_older = in_config
            .as_ref()
            .is_some_and(|(kept, _)| kept.current != written.current);
        let has_kept_entry = newest.id.is_some();
        let is_selected = newest.id.is_some_and(|id| selected.entry == [id]);
        let is_interrupted = is_older && !is_selected;
        let (kept, host) = match (in_config, menu) {
            (Some((kept, host)), _) => (kept, Some(host)),
            (None, MenuSource::GrubConfig) => (written, None),
            // The entry of a kernel that was installed without the arguments of machinist.
            (None, MenuSource::BlsConfig) => (written.of_host_alone(&all), Some(all)),
        };
        let dead = newest.dead_file.map(|file| DeadEntry {
            file,
            kept: KeptArguments {
                host: host.clone().unwrap_or_default(),
                ..newest.kept
            },
        });
        Ok(Self {
            dead,
            has_kept_entry,
            booted: kernel_command_line(&running, selected.tries_without_initrd),
            selected,
            menu,
            is_interrupted,
            unfinished,
            is_diverted,
            host,
            kept,
            environment,
            custom,
        })
    }

    pub(super) fn selected(&self) -> Deployment {
        let (arguments, _) = without_trial(&self.selected.arguments());
        Deployment::of_arguments(id_of(&arguments), arguments)
    }

    pub(super) fn booted(&self) -> Deployment {
        let (arguments, _) = without_trial(&self.booted);
        Deployment::of_arguments(id_of(&arguments), arguments)
    }

    /// Whether the running kernel was started as a trial.
    pub(super) fn is_trial_running(&self) -> bool {
        without_trial(&self.booted).1
    }

    /// The arguments without those of TuneD, which it adds to each entry itself.
    pub(super) fn without_tuned(&self, arguments: &KernelCommandLine) -> KernelCommandLine {
        let tuned = self.environment.get(TUNED_VARIABLE).unwrap_or_default();
        let mut all = arguments.clone();
        for one in KernelCommandLine::parse(tuned).iter() {
            all.remove_last(one);
        }
        all
    }

    /// The arguments of the selected deployment that the host sets itself.
    pub(super) fn of_host(&self) -> Result<&KernelCommandLine, GrubError> {
        let foreign = || {
            let all = self.selected().kernel_arguments;
            GrubError::ForeignArguments(all.to_string())
        };
        self.host.as_ref().ok_or_else(foreign)
    }

    pub(super) fn previous(&self) -> Option<Deployment> {
        let arguments = joined(self.host.as_ref()?, self.kept.previous.as_ref()?);
        Some(Deployment::of_arguments(id_of(&arguments), arguments))
    }

    /// The staged deployment, if it can be booted.
    pub(super) fn staged(&self, root: &Root) -> Option<StagedDeployment> {
        self.staged_in(HostFiles::new(root))
    }

    /// The staged deployment, also one whose kernel was removed, so that its boot has failed.
    pub(super) fn staged_or_stale(&self, root: &Root) -> Option<StagedDeployment> {
        let files = trial_entry::loaded_files(&self.custom);
        let there = files.fold(HostFiles::new(root), |there, file| {
            there.with(file, Some(String::new()))
        });
        self.staged_in(there)
    }

    fn staged_in(&self, files: HostFiles<'_>) -> Option<StagedDeployment> {
        let id = staged_id(&self.custom)?;
        let environment = environment_with_next(&self.environment, Some(id));
        let files = files.with_environment(&environment).ok()?;
        let boot = boot(&files).ok().filter(|boot| boot.entry == [id])?;
        let (arguments, _) = without_trial(&boot.arguments());
        Some(StagedDeployment {
            deployment: Deployment::of_arguments(id.to_owned(), arguments),
            locked: self.environment.get(NEXT_ENTRY) != Some(id),
            is_deselected: false,
        })
    }
}

/// Returns the boot without `next_entry`, and whether the environment block was changed to select the kept entry instead of
/// one with the arguments of a trial. A dead entry is not there.
fn select(
    files: HostFiles<'_>,
    environment: &mut EnvironmentBlock,
    newest: &NewestEntry,
) -> Result<(KernelBoot, bool), GrubError> {
    let files = match &newest.dead_file {
        Some(file) => files.with(file, None),
        None => files,
    };
    if newest.dead_file.is_some() && newest.id.as_deref() == environment.get(SAVED_ENTRY) {
        // GRUB would wait for a keystroke. Without the variable, it enters the newest kernel.
        environment.unset(SAVED_ENTRY);
    }
    let selected = boot(&files.clone().with_default(environment)?)?;
    // kernel-install copies the arguments of the running kernel, also those of a trial, and selects the new entry.
    let is_trial = without_trial(&selected.arguments()).1;
    match &newest.id {
        Some(id) if is_trial && newest.dead_file.is_none() => {
            environment.set(SAVED_ENTRY, id);
            Ok((boot(&files.with_default(environment)?)?, true))
        }
        _ => Ok((selected, false)),
    }
}

impl<'r> HostFiles<'r> {
    /// The files with this environment block.
    pub(in crate::os) fn with_environment(
        self,
        environment: &EnvironmentBlock,
    ) -> Result<Self, GrubError> {
        let text = environment.to_text().map_err(BootError::from)?;
        Ok(self.with_config("grubenv", Some(text)))
    }

    /// The files without a request for the next boot.
    pub(super) fn with_default(self, environment: &EnvironmentBlock) -> Result<Self, GrubError> {
        self.with_environment(&environment_with_next(environment, None))
    }
}

pub(super) fn boot(files: &HostFiles<'_>) -> Result<KernelBoot, GrubError> {
    Ok(SimulatedGrub::new(files, files.directory()).boot()?)
}

/// The arguments of a boot besides those of the host. Where GRUB reads boot entries, they may be among those of the host:
/// programs such as TuneD append to the entries of new kernels.
pub(super) fn own_arguments(
    menu: MenuSource,
    host: &KernelCommandLine,
    all: &KernelCommandLine,
) -> Result<KernelCommandLine, GrubError> {
    let own = following_host(host, all).or_else(|| match menu {
        MenuSource::GrubConfig => None,
        MenuSource::BlsConfig => besides_host(host, all),
    });
    own.ok_or_else(|| GrubError::ForeignArguments(all.to_string()))
}

pub(super) fn has_arguments(
    found: &KernelCommandLine,
    wanted: &KernelCommandLine,
) -> Result<(), GrubError> {
    match found == wanted {
        true => Ok(()),
        false => Err(GrubError::OtherArguments {
            found: found.to_string(),
            wanted: wanted.to_string(),
        }),
    }
}
