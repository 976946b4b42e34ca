//! Determines from its configuration (sshd_config(5)) where sshd reads users' keys.

use machinist_rootfs::RootError;

use super::planned_texts::PlannedTexts;

const SSHD_CONFIG_PATH: &str = "/etc/ssh/sshd_config";

/// Directories that the main file includes, or that are read in its place by distributions that ship it below /usr.
const SSHD_CONFIG_DIRS: [&str; 2] = ["/etc/ssh/sshd_config.d", "/usr/lib/ssh/sshd_config.d"];

/// The values for all users, of which the first occurrence applies, and those of `Match` blocks.
#[derive(Debug, Default)]
pub(super) struct SshdKeys {
    files: Option<Vec<String>>,
    command: Option<String>,
    /// The files of `Match` blocks for some users, with the condition of the block.
    blocks: Vec<(String, Vec<String>)>,
}

pub(super) fn keys(mut texts: PlannedTexts<'_, '_, '_>) -> Result<SshdKeys, RootError> {
    let mut found = SshdKeys::default();
    let main = texts.text(SSHD_CONFIG_PATH)?;
    let mut included = false;
    for (block, keyword, words) in settings(&main) {
        if !keyword.eq_ignore_ascii_case("Include") {
            found.take(block, keyword, words);
            continue;
        }
        if block.is_some() {
            continue;
        }
        for pattern in words {
            let pattern = match pattern.starts_with('/') {
                true => pattern.to_owned(),
                false => format!("/etc/ssh/{pattern}"),
            };
            included |= SSHD_CONFIG_DIRS.iter().any(|dir| pattern.starts_with(dir));
            found.include(&mut texts, &pattern)?;
        }
    }
    if !included {
        for directory in SSHD_CONFIG_DIRS {
            found.include(&mut texts, &format!("{directory}/*.conf"))?;
        }
    }
    Ok(found)
}

impl SshdKeys {
    /// Returns whether sshd reads keys from `~/.ssh/authorized_keys.d/ignition`: because the configuration names
    /// it, or through the helper that Fedora CoreOS and its derivatives configure for that directory.
    pub(super) fn reads_directory(&self) -> bool {
        self.files.as_deref().is_some_and(name_directory) || self.has_helper()
    }

    fn has_helper(&self) -> bool {
        let command = self.command.as_ref();
        command.is_some_and(|command| command.ends_with("/ssh-key-dir"))
    }

    /// Returns the value of `AuthorizedKeysFile` if sshd reads none of the key files that a config can write.
    pub(super) fn elsewhere(&self) -> Option<String> {
        let files = self.files.as_ref()?;
        let read = name_home(files) || self.reads_directory();
        (!read).then(|| files.join(" "))
    }

    /// Returns the conditions of the `Match` blocks whose `AuthorizedKeysFile` does not contain the file that a
    /// config writes keys to, and that value.
    pub(super) fn elsewhere_for_some(&self) -> Vec<(String, String)> {
        let read = |files: &[String]| match self.reads_directory() {
            true => self.has_helper() || name_directory(files),
            false => name_home(files),
        };
        let blocks = self.blocks.iter().filter(|(_, files)| !read(files));
        blocks
            .map(|(condition, files)| (condition.clone(), files.join(" ")))
            .collect()
    }

    fn take(&mut self, block: Option<String>, keyword: &str, mut words: Words<'_>) {
        if keyword.eq_ignore_ascii_case("AuthorizedKeysFile") {
            let files = || words.map(str::to_owned).collect();
            match block {
                Some(condition) => self.blocks.push((condition, files())),
                None => self.files = self.files.take().or_else(|| Some(files())),
            }
        } else if block.is_none() && keyword.eq_ignore_ascii_case("AuthorizedKeysCommand") {
            // The helper may get the user's name as an argument.
            let command = words.next().unwrap_or_default();
            self.command.get_or_insert_with(|| command.to_owned());
        }
    }

    /// Reads a file, or the files in a directory that match the pattern's ending.
    fn include(
        &mut self,
        texts: &mut PlannedTexts<'_, '_, '_>,
        pattern: &str,
    ) -> Result<(), RootError> {
        let paths = match pattern.rsplit_once("/*") {
            Some((directory, ending)) => texts
                .files(directory, ending)?
                .into_iter()
                .map(|path| path.to_string())
                .collect(),
            None => vec![pattern.to_owned()],
        };
        for path in paths {
            let text = texts.text(&path)?;
            for (block, keyword, words) in settings(&text) {
                self.take(block, keyword, words);
            }
        }
        Ok(())
    }
}

type Words<'t> = Box<dyn Iterator<Item = &'t str> + 't>;

/// Returns the lines of a file as keyword and values, with the condition of their `Match` block; none for lines that
/// apply to all users.
fn settings(text: &str) -> impl Iterator<Item = (Option<String>, &str, Words<'_>)> {
    let mut block = None;
    text.lines().filter_map(move |line| {
        let words = line.split([' ', '\t', '=', '"']);
        let mut words = words.filter(|word| !word.is_empty());
        let keyword = words.next()?;
        if keyword.eq_ignore_ascii_case("Match") {
            let condition: Vec<&str> = words.collect();
            let first = condition.first();
            let all = first.is_some_and(|word| word.eq_ignore_ascii_case("all"));
            block = (!all).then(|| condition.join(" "));
            return None;
        }
        let counts = !keyword.starts_with('#');
        counts.then(|| (block.clone(), keyword, Box::new(words) as Words<'_>))
    })
}

/// Returns whether these files include `~/.ssh/authorized_keys.d/ignition`.
fn name_directory(files: &[String]) -> bool {
    files.iter().any(|file| {
        let directory = file.strip_suffix("/ignition").or(file.strip_suffix("/*"));
        directory.is_some_and(|directory| directory.ends_with(".ssh/authorized_keys.d"))
    })
}

/// Returns whether these files include `~/.ssh/authorized_keys`.
fn name_home(files: &[String]) -> bool {
    files.iter().any(|file| {
        let file = file.strip_prefix("%h/").unwrap_or(file);
        file == ".ssh/authorized_keys"
    })
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a test plays the administrator who writes these files"
)]
mod tests {
    use super::*;
    use machinist_rootfs::Root;

    fn keys_of(files: &[(&str, &str)]) -> SshdKeys {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let root = Root::open(dir.path()).unwrap();
        keys(PlannedTexts::today(&root)).unwrap()
    }

    #[test]
    fn the_first_global_sshd_authorized_keys_file_applies() {
        let directory = "AuthorizedKeysFile .ssh/authorized_keys.d/ignition\n";
        let home = "AuthorizedKeysFile .ssh/authorized_keys\n";
        let include = "Include /etc/ssh/sshd_config.d/*.conf\n";
        let one = "/etc/ssh/sshd_config.d/10-one.conf";
        let other = "/etc/ssh/sshd_config.d/50-other.conf";
        let cases: [(&[(&str, &str)], bool); 6] = [
            (&[(SSHD_CONFIG_PATH, directory)], true),
            (
                &[(SSHD_CONFIG_PATH, include), (one, home), (other, directory)],
                false,
            ),
            (
                &[(SSHD_CONFIG_PATH, include), (one, directory), (other, home)],
                true,
            ),
            (
                &[
                    (SSHD_CONFIG_PATH, &format!("{include}{home}")),
                    (one, directory),
                ],
                true,
            ),
            (
                &[
                    (SSHD_CONFIG_PATH, &format!("{home}{include}")),
                    (one, directory),
                ],
                false,
            ),
            (
                &[(SSHD_CONFIG_PATH, &format!("Match User bob\n{directory}"))],
                false,
            ),
        ];
        for (files, reads) in cases {
            assert_eq!(keys_of(files).reads_directory(), reads, "{files:?}");
        }
        let helper = "authorizedkeyscommand /usr/libexec/ssh-key-dir %u\n";
        assert!(keys_of(&[(other, helper)]).reads_directory());
    }

    #[test]
    fn sshd_key_files_in_unsupported_locations_are_reported() {
        let elsewhere = |text: &str| keys_of(&[(SSHD_CONFIG_PATH, text)]).elsewhere();
        let line = "AuthorizedKeysFile /etc/ssh/keys/%u none\n";
        assert_eq!(elsewhere(line).as_deref(), Some("/etc/ssh/keys/%u none"));
        assert_eq!(
            elsewhere("AuthorizedKeysFile %h/.ssh/authorized_keys\n"),
            None
        );
        assert_eq!(elsewhere("# AuthorizedKeysFile /etc/ssh/keys/%u\n"), None);
    }

    #[test]
    fn sshd_match_blocks_with_unsupported_key_files_are_reported() {
        let blocks = |text: &str| keys_of(&[(SSHD_CONFIG_PATH, text)]).elsewhere_for_some();
        let other = "AuthorizedKeysFile /etc/ssh/keys/%u\n";
        let found = |condition: &str| vec![(condition.to_owned(), "/etc/ssh/keys/%u".to_owned())];
        for condition in ["User core", "Group wheel", "User !core,*"] {
            let text = format!("Match {condition}\n  {other}");
            assert_eq!(blocks(&text), found(condition));
        }
        assert!(blocks(&format!("Match all\n{other}")).is_empty());
        let own = "Match User core\nAuthorizedKeysFile %h/.ssh/authorized_keys\n";
        assert!(blocks(own).is_empty());
        let directory = "AuthorizedKeysFile .ssh/authorized_keys.d/ignition\nMatch User core\n";
        let home = "AuthorizedKeysFile .ssh/authorized_keys\n";
        assert_eq!(blocks(&format!("{directory}{home}")).len(), 1);
    }
}
