//! Loads the settings from files, environment and flags, and reloads them when they change.

use std::sync::Arc;

use super::{
    error::{SettingOrigin, SettingsError, SettingsProblem},
    fragment::Fragment,
    model::Settings,
    pool,
};
use machinist_base::{
    abs_path::{AbsPath, BadPath},
    error_chain::chain,
    reason::Reason,
};
use machinist_rootfs::{Root, RootError};

/// One settings file as found; the caller decides from which tree it is read.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    /// The file name as the administrator knows it, for problems and origins.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
    /// The owner's uid.
    pub owner: u32,
    /// The permission bits.
    pub mode: u32,
}

impl SettingsFile {
    /// The default settings directory below a root.
    pub const DEFAULT_DIR: &'static str = "/etc/machinist";

    /// Finds `machinist.yaml` and `machinist.yaml.d/*.yaml` in `dir`, in order of precedence.
    /// Hidden files are skipped, because editors and ConfigMap mounts create their own. Links are
    /// followed only below the root. If `root_alone` is true, a file that users other than root may
    /// write is an error.
    pub fn find(root: &Root, dir: &AbsPath, root_alone: bool) -> Result<Vec<Self>, FindError> {
        let mut paths = vec![dir.join("machinist.yaml")?];
        let drop_ins = dir.join("machinist.yaml.d")?;
        if root_alone {
            root.check_trusted(&drop_ins)?;
        }
        match root.list(&drop_ins) {
            Err(error) if error.is_not_found() => {}
            listed => {
                for entry in listed? {
                    if entry.name.ends_with(".yaml") && !entry.name.starts_with('.') {
                        paths.push(drop_ins.join(&entry.name)?);
                    }
                }
            }
        }
        let mut found = Vec::new();
        for path in paths {
            found.extend(Self::read(root, &path, root_alone)?);
        }
        Ok(found)
    }

    /// Reads one file; none if it does not exist.
    fn read(root: &Root, path: &AbsPath, root_alone: bool) -> Result<Option<Self>, FindError> {
        if root_alone {
            root.check_trusted(path)?;
        }
        let (content, stat) = match root.read_with_stat(path, MAX_SETTINGS_FILE_BYTES) {
            Err(error) if error.is_not_found() => return Ok(None),
            read => read?,
        };
        Ok(Some(Self {
            name: root.host_path(path).display().to_string(),
            content,
            owner: stat.uid,
            mode: stat.mode,
        }))
    }
}

/// The settings files could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// A system call failed.
    #[error("cannot read the settings")]
    Read(#[from] RootError),
    /// A name in the directory is not a usable path.
    #[error("cannot read the settings")]
    Path(#[from] BadPath),
}

/// The settings could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files could not be read.
    #[error(transparent)]
    Find(#[from] FindError),
    /// Their content is invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// The sources of the settings, so that they can be read again after a change.
#[derive(Clone, Debug)]
pub struct SettingsLocation {
    /// The tree that contains the directory: the root, or the caller's own for `--config DIR`.
    pub root: Root,
    /// The directory in it.
    pub dir: AbsPath,
    /// The pool whose own settings apply as well; none if no pool is known.
    pub pool: Option<String>,
    /// The environment at process start.
    pub environment: Vec<(String, String)>,
    /// The settings from flags.
    pub flags: Fragment,
    /// A uid whose files are trusted in addition to root's.
    pub own_uid: u32,
    /// Whether files that users other than root may write are refused.
    pub root_alone: bool,
}

impl SettingsLocation {
    /// Reads and merges all sources, or returns all problems.
    pub fn read(&self) -> Result<Settings, LoadError> {
        let of_pool = match &self.pool {
            Some(name) => {
                let path = self.dir.join(&pool::file_name(name));
                SettingsFile::read(&self.root, &path.map_err(FindError::Path)?, self.root_alone)?
            }
            None => None,
        };
        Ok(load(SettingsInputs {
            files: SettingsFile::find(&self.root, &self.dir, self.root_alone)?,
            of_pool,
            environment: self.environment.clone(),
            flags: self.flags.clone(),
            own_uid: self.own_uid,
        })?)
    }
}

/// All inputs of the settings.
#[derive(Clone, Debug, Default)]
pub struct SettingsInputs {
    /// `machinist.yaml` first, then `machinist.yaml.d/*.yaml` in name order.
    pub files: Vec<SettingsFile>,
    /// The settings file of the node's pool.
    pub of_pool: Option<SettingsFile>,
    /// The environment; variables that are not settings are ignored.
    pub environment: Vec<(String, String)>,
    /// The settings from flags.
    pub flags: Fragment,
    /// A uid whose files are trusted in addition to root's.
    pub own_uid: u32,
}

/// The maximum size of a settings file in bytes. Typical files have a few KiB; a megabyte is a
/// mistake.
const MAX_SETTINGS_FILE_BYTES: u64 = 1 << 20;

/// Merges all inputs, or returns all problems.
pub fn load(inputs: SettingsInputs) -> Result<Settings, SettingsError> {
    let mut problems = Vec::new();
    let mut fragments = Vec::new();
    for file in &inputs.files {
        match fragment(file, inputs.own_uid) {
            Ok(fragment) => fragments.push(fragment),
            Err(problem) => problems.push(problem),
        }
    }
    match inputs
        .of_pool
        .map(|file| fragment(&file, inputs.own_uid))
        .transpose()
    {
        Ok(of_pool) => fragments.extend(of_pool.map(|mut fragment| {
            problems.extend(pool::judge(&mut fragment));
            fragment
        })),
        Err(problem) => problems.push(problem),
    }
    fragments.push(Fragment::from_env(inputs.environment));
    fragments.push(inputs.flags);
    match Settings::from_fragments(fragments) {
        Ok(settings) if problems.is_empty() => Ok(settings),
        Ok(_) => Err(SettingsError::new(problems)),
        Err(more) => {
            problems.extend(more.problems);
            Err(SettingsError::new(problems))
        }
    }
}

fn fragment(file: &SettingsFile, own_uid: u32) -> Result<Fragment, SettingsProblem> {
    let refused = |message: String, expected: &str| SettingsProblem {
        at: SettingOrigin::File {
            name: file.name.clone(),
            line: 0,
            column: 0,
        },
        field: String::new(),
        reason: Reason::SourceUnreadable,
        message,
        expected: expected.to_owned(),
    };
    if file.owner != 0 && file.owner != own_uid {
        let message = format!("the file belongs to uid {}", file.owner);
        return Err(refused(message, "root or the agent's own user as owner"));
    }
    if file.mode & 0o002 != 0 {
        let message = format!(
            "the file is world-writable (mode {:04o})",
            file.mode & 0o7777
        );
        return Err(refused(message, "a mode such as 0644"));
    }
    let text = str::from_utf8(&file.content)
        .map_err(|_| refused("the file is not valid UTF-8".to_owned(), "YAML"))?;
    Fragment::parse(&file.name, text)
}

/// The result of reloading the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReloadOutcome {
    /// Nothing changed.
    Same,
    /// They are effective from now on; these keys changed.
    Taken(Vec<&'static str>),
    /// They are invalid; the last valid ones stay effective.
    Refused(String),
}

/// The settings of a running agent: the last valid ones, and the problems of newer ones.
#[derive(Clone, Debug)]
pub struct ReloadableSettings {
    good: Arc<Settings>,
    warning: Option<String>,
}

impl ReloadableSettings {
    /// Starts with valid settings.
    pub fn new(settings: Settings) -> Self {
        Self {
            good: Arc::new(settings),
            warning: None,
        }
    }

    /// Applies newly read settings, if they are valid.
    pub fn offer(&mut self, read: Result<Settings, LoadError>) -> ReloadOutcome {
        match read {
            Ok(settings) => {
                self.warning = None;
                let changed = self.good.changed(&settings);
                self.good = Arc::new(settings);
                match changed.is_empty() {
                    true => ReloadOutcome::Same,
                    false => ReloadOutcome::Taken(changed),
                }
            }
            Err(error) => {
                let text = chain(&error);
                self.warning = Some(text.clone());
                ReloadOutcome::Refused(text)
            }
        }
    }

    /// The effective settings.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.good
    }

    /// The problems of the current files, if there are any.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }
}
