//! Judges which of the two key files of a user sshd reads.

use super::{Certainty, SshdConfig, SshdSetting, SshdValue, Wildcards};
use machinist_base::abs_path::AbsPath;

/// The files of `AuthorizedKeysFile` unless the configuration sets others.
const DEFAULT_FILES: [&str; 2] = [".ssh/authorized_keys", ".ssh/authorized_keys2"];

/// The helper of Fedora CoreOS and its derivatives, which prints the files in `~/.ssh/authorized_keys.d`.
const HELPER: &str = "ssh-key-dir";

/// The user whose keys they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyOwner<'a> {
    pub(crate) name: &'a str,
    pub(crate) uid: u32,
    pub(crate) home: &'a AbsPath,
}

/// Which of the files that a config can write a user's keys to sshd reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyReading {
    /// Whether it reads the file in the directory of keys.
    pub(crate) directory: Certainty,
    /// Whether it reads the file that users edit as well.
    pub(crate) home: Certainty,
    /// What decides that, by file and line; empty if no line does.
    pub(crate) because: String,
}

/// One of the possible values of a keyword: that of a setting, or sshd's default.
pub(super) struct Case<'a, T> {
    setting: Option<&'a SshdSetting>,
    /// Whether the setting applies to some logins of the user only.
    doubtful: bool,
    pub(super) value: Option<T>,
}

impl<T> Case<'_, T> {
    fn describe(&self) -> Option<String> {
        self.setting.map(SshdSetting::describe)
    }

    /// The doubtful one of several cases, for a message.
    fn doubt(cases: &[Self]) -> Option<String> {
        let doubtful = cases.iter().find(|case| case.doubtful)?;
        doubtful.describe()
    }
}

impl SshdConfig {
    /// Judges the files at these paths below the home of a user. The helper prints the first one only.
    pub(crate) fn reading(&self, owner: &KeyOwner<'_>, [directory, home]: [&str; 2]) -> KeyReading {
        let user = owner.name;
        let files = self.files(user);
        let named = |below: &str| {
            let cases = files.iter();
            Certainty::over(cases.map(|case| self.names(case.value, owner, below)))
        };
        let commands = self.commands(user);
        let helps = commands.iter().map(|case| self.helps(case.value, user));
        let users = self.command_users(user);
        let helped = Certainty::over(helps).min(Certainty::over(users.iter().map(permits)));
        let because = Case::doubt(&files)
            .or_else(|| Case::doubt(&commands).filter(|_| helped != Certainty::No))
            .or_else(|| Case::doubt(&users).filter(|_| helped != Certainty::No))
            .or_else(|| {
                commands
                    .last()?
                    .describe()
                    .filter(|_| helped == Certainty::Maybe)
            })
            .or_else(|| files.last()?.describe());
        KeyReading {
            directory: named(directory).max(helped),
            home: named(home),
            because: because.unwrap_or_default(),
        }
    }

    pub(super) fn files(&self, user: &str) -> Vec<Case<'_, &[String]>> {
        self.cases(user, |value| match value {
            SshdValue::Files(files) => Some(files.as_slice()),
            _ => None,
        })
    }

    pub(super) fn commands(&self, user: &str) -> Vec<Case<'_, (&str, &[String])>> {
        self.cases(user, |value| match value {
            SshdValue::Command(text, words) => Some((text.as_str(), words.as_slice())),
            _ => None,
        })
    }

    fn command_users(&self, user: &str) -> Vec<Case<'_, &str>> {
        self.cases(user, |value| match value {
            SshdValue::CommandUser(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// The values that a keyword may have for a user. The first `Match` block that applies overrides the global section,
    /// also where it comes later; in the global section, the first line counts.
    fn cases<'a, T>(
        &'a self,
        user: &str,
        pick: impl Fn(&'a SshdValue) -> Option<T>,
    ) -> Vec<Case<'a, T>> {
        let (global, blocks): (Vec<_>, Vec<_>) = self
            .settings
            .iter()
            .partition(|one| one.conditions.is_empty());
        let mut cases = Vec::new();
        for setting in blocks.into_iter().chain(global) {
            let applies = setting.applies(user);
            let Some(value) = pick(&setting.value).filter(|_| applies != Certainty::No) else {
                continue;
            };
            cases.push(Case {
                setting: Some(setting),
                doubtful: applies == Certainty::Maybe,
                value: Some(value),
            });
            if applies == Certainty::Yes {
                return cases;
            }
        }
        let (setting, doubtful, value) = (None, false, None);
        cases.push(Case {
            setting,
            doubtful,
            value,
        });
        cases
    }

    /// Whether these files, or sshd's default, include the one at `below` in the home of the user.
    fn names(&self, files: Option<&[String]>, owner: &KeyOwner<'_>, below: &str) -> Certainty {
        let Ok(wanted) = owner.home.join(below) else {
            return Certainty::No;
        };
        let wanted = self.real(&wanted);
        let one = |file: &str| match expand(file, owner) {
            None => Certainty::No,
            Some(path) if path == wanted || self.real(&path) == wanted => Certainty::Yes,
            // OpenSSH 9.2 takes a pattern as a name; a later one may accept it.
            Some(path) if is_found(&self.real(&path), &wanted) => Certainty::Maybe,
            Some(_) => Certainty::No,
        };
        match files {
            Some(files) => files.iter().map(|file| one(file)).max(),
            None => DEFAULT_FILES.into_iter().map(one).max(),
        }
        .unwrap_or(Certainty::No)
    }

    /// The path with the links in its directories resolved, where they are known.
    fn real(&self, path: &AbsPath) -> AbsPath {
        let moved = path.ancestors().find_map(|above| {
            let real = self.links.get(&above)?;
            let rest = path.as_str().strip_prefix(above.as_str())?;
            real.join(rest.trim_start_matches('/')).ok()
        });
        moved.unwrap_or_else(|| path.clone())
    }

    /// Whether a command prints the keys in the directory: it is the helper, is there, and gets the name of the user.
    fn helps(&self, command: Option<(&str, &[String])>, user: &str) -> Certainty {
        let Some((program, arguments)) = command.and_then(|(_, words)| words.split_first()) else {
            return Certainty::No;
        };
        let helper = program.rsplit('/').next() == Some(HELPER);
        if !helper || !self.programs.contains(program) {
            return Certainty::No;
        }
        match arguments {
            // sshd adds the name of the user if there are no arguments.
            [] => Certainty::Yes,
            [name] if name == "%u" || name == user => Certainty::Yes,
            _ => Certainty::Maybe,
        }
    }
}

/// Whether sshd runs a command as this user: without one, it runs none.
fn permits(user: &Case<'_, &str>) -> Certainty {
    match user.value {
        Some(name) if !name.eq_ignore_ascii_case("none") => Certainty::Yes,
        _ => Certainty::No,
    }
}

/// The path of a value of `AuthorizedKeysFile`: tokens are replaced, and a relative path is below the home.
/// Returns none if sshd rejects it.
fn expand(file: &str, owner: &KeyOwner<'_>) -> Option<AbsPath> {
    let KeyOwner { name, uid, home } = owner;
    let mut text = String::new();
    let mut letters = file.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '%' => match letters.next()? {
                '%' => text.push('%'),
                'h' => text.push_str(home.as_str()),
                'u' => text.push_str(name),
                'U' => text.push_str(&uid.to_string()),
                _ => return None,
            },
            other => text.push(other),
        }
    }
    // sshd reads its configuration as root.
    if let Some(below) = text.strip_prefix("~/") {
        text = format!("/root/{below}");
    }
    if !text.starts_with('/') {
        text = format!("{home}/{text}");
    }
    let parts: Vec<&str> = text
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
        .collect();
    // A path with `..` may lead anywhere behind a link.
    AbsPath::new(format!("/{}", parts.join("/"))).ok()
}

/// Whether glob(3) finds `path` with this pattern.
fn is_found(pattern: &AbsPath, path: &AbsPath) -> bool {
    let (patterns, names): (Vec<&str>, Vec<&str>) =
        (pattern.components().collect(), path.components().collect());
    let mut pairs = patterns.iter().zip(&names);
    patterns.len() == names.len()
        && pairs.all(|(pattern, name)| Wildcards::of_path(pattern).finds(name))
}

#[cfg(test)]
mod tests;
