//! From files, environment and flags to settings; and what happens when they change.

use std::sync::Arc;

use super::{
    fragment::Fragment,
    pool,
    problem::{Origin, Problem, SettingsError},
    settings::Settings,
};
use crate::{
    path::{AbsPath, BadPath},
    reason::Reason,
    root::{Root, RootError},
    telemetry::chain,
};

/// One settings file as it was found. Who reads it decides from which tree.
#[derive(Clone, Debug)]
pub struct SettingsFile {
    /// The file as the administrator knows it, for problems and origins.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
    /// The owner's uid.
    pub owner: u32,
    /// The permission bits.
    pub mode: u32,
}

impl SettingsFile {
    /// Where settings are below a root whose administrator said nothing else.
    pub const DEFAULT_DIR: &'static str = "/etc/machinist";

    /// Finds `machinist.yaml` and `machinist.yaml.d/*.yaml` in `dir`, in order of precedence. Hidden
    /// files are left out: editors and ConfigMap mounts put their own there. Links are followed, below
    /// the root only. Where `root_alone` says so, what others may write is an error.
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

    /// One file; none where there is none.
    fn read(root: &Root, path: &AbsPath, root_alone: bool) -> Result<Option<Self>, FindError> {
        if root_alone {
            root.check_trusted(path)?;
        }
        let (content, stat) = match root.read_with_stat(path, LARGEST_FILE) {
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
    /// A call failed.
    #[error("cannot read the settings")]
    Read(#[from] RootError),
    /// A name in the directory is no usable path.
    #[error("cannot read the settings")]
    Path(#[from] BadPath),
}

/// There are no settings to work with.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files could not be read.
    #[error(transparent)]
    Find(#[from] FindError),
    /// What they say cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// Where settings come from, so that they can be read again when something changed.
#[derive(Clone, Debug)]
pub struct Place {
    /// The tree that holds the directory: the root, or the caller's own for `--config DIR`.
    pub root: Root,
    /// The directory in it.
    pub dir: AbsPath,
    /// The pool whose own settings count, too; none where none is known.
    pub pool: Option<String>,
    /// The environment, as it was at the start.
    pub environment: Vec<(String, String)>,
    /// What flags said.
    pub flags: Fragment,
    /// The uid whose files are trusted beside root's.
    pub own_uid: u32,
    /// Whether what others than root may write is refused.
    pub root_alone: bool,
}

impl Place {
    /// Reads everything, or says everything that is wrong.
    pub fn read(&self) -> Result<Settings, LoadError> {
        let of_pool = match &self.pool {
            Some(name) => {
                let path = self.dir.join(&pool::file_name(name));
                SettingsFile::read(&self.root, &path.map_err(FindError::Path)?, self.root_alone)?
            }
            None => None,
        };
        Ok(load(Inputs {
            files: SettingsFile::find(&self.root, &self.dir, self.root_alone)?,
            of_pool,
            environment: self.environment.clone(),
            flags: self.flags.clone(),
            own_uid: self.own_uid,
        })?)
    }
}

/// Everything that settings are made of.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// `machinist.yaml` first, then `machinist.yaml.d/*.yaml` in name order.
    pub files: Vec<SettingsFile>,
    /// What is said for the nodes of one pool only.
    pub of_pool: Option<SettingsFile>,
    /// The environment; what is no setting is left alone.
    pub environment: Vec<(String, String)>,
    /// What flags say.
    pub flags: Fragment,
    /// The uid whose files are trusted beside root's.
    pub own_uid: u32,
}

/// The largest settings file that is read. A person writes a few KiB; a megabyte is a mistake.
const LARGEST_FILE: u64 = 1 << 20;

/// Merges everything, or says everything that is wrong.
pub fn load(inputs: Inputs) -> Result<Settings, SettingsError> {
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

fn fragment(file: &SettingsFile, own_uid: u32) -> Result<Fragment, Problem> {
    let refused = |message: String, expected: &str| Problem {
        at: Origin::File {
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
            "anybody may write the file (mode {:04o})",
            file.mode & 0o7777
        );
        return Err(refused(message, "a mode such as 0644"));
    }
    let text = str::from_utf8(&file.content)
        .map_err(|_| refused("the file is no UTF-8 text".to_owned(), "YAML"))?;
    Fragment::parse(&file.name, text)
}

/// What became of newly read settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offer {
    /// They say what held before.
    Same,
    /// They hold from now on; these keys changed.
    Taken(Vec<&'static str>),
    /// They cannot be used; the last good ones stay.
    Refused(String),
}

/// The settings of a running agent: the last good ones, and what is wrong with newer ones.
#[derive(Clone, Debug)]
pub struct Live {
    good: Arc<Settings>,
    warning: Option<String>,
}

impl Live {
    /// Starts with settings that could be used.
    pub fn new(settings: Settings) -> Self {
        Self {
            good: Arc::new(settings),
            warning: None,
        }
    }

    /// Considers newly read settings.
    pub fn offer(&mut self, read: Result<Settings, LoadError>) -> Offer {
        match read {
            Ok(settings) => {
                self.warning = None;
                let changed = self.good.changed(&settings);
                self.good = Arc::new(settings);
                match changed.is_empty() {
                    true => Offer::Same,
                    false => Offer::Taken(changed),
                }
            }
            Err(error) => {
                let text = chain(&error);
                self.warning = Some(text.clone());
                Offer::Refused(text)
            }
        }
    }

    /// The settings that hold.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.good
    }

    /// What is wrong with what the files say now, if anything is.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }
}
