//! Reads sshd's configuration with the files that it includes.

use machinist_base::abs_path::AbsPath;
use machinist_plan::sshd_config::{
    Condition, Directive, MAX_INCLUDE_DEPTH, SshdConfig, SshdSetting, SshdValue, Wildcards, lines,
};
use machinist_rootfs::RootError;

use super::planned_texts::PlannedTexts;

/// The directory of relative patterns.
const SSHD_DIRECTORY: &str = "/etc/ssh";

/// The main file, and that of the vendor, which the sshd of some distributions reads if the main file is missing.
const MAIN_FILES: [&str; 2] = ["/etc/ssh/sshd_config", "/usr/etc/ssh/sshd_config"];

/// Returns the lines that decide where sshd reads the keys of users.
pub(super) fn read(texts: PlannedTexts<'_, '_, '_>) -> Result<SshdConfig, RootError> {
    let mut reader = SshdReader {
        texts,
        found: SshdConfig::default(),
    };
    for path in MAIN_FILES {
        let text = reader.texts.lossy_text(path)?;
        if !text.is_empty() {
            reader.file(path, &text, &[], 0)?;
            break;
        }
    }
    Ok(reader.found)
}

struct SshdReader<'a, 'p, 'r> {
    texts: PlannedTexts<'a, 'p, 'r>,
    found: SshdConfig,
}

impl SshdReader<'_, '_, '_> {
    /// Reads a file below the `Match` blocks of the files that include it. Returns false if sshd gives up because files
    /// include each other.
    fn file(
        &mut self,
        path: &str,
        text: &str,
        outer: &[Condition],
        depth: usize,
    ) -> Result<bool, RootError> {
        let mut conditions = outer.to_vec();
        for (line, directive) in lines(text) {
            match directive {
                Directive::Match(condition) => {
                    // It ends the block before it, but not those of the including files.
                    conditions.truncate(outer.len());
                    conditions.push(condition);
                }
                Directive::Include(_) if depth == MAX_INCLUDE_DEPTH => return Ok(false),
                Directive::Include(patterns) => {
                    for pattern in patterns {
                        if !self.include(&pattern, &conditions, depth)? {
                            return Ok(false);
                        }
                    }
                }
                Directive::Set(value) => {
                    self.note_program(&value)?;
                    self.found.settings.push(SshdSetting {
                        place: format!("{path}:{line}"),
                        conditions: conditions.clone(),
                        value,
                    });
                }
            }
        }
        Ok(true)
    }

    fn include(
        &mut self,
        pattern: &str,
        conditions: &[Condition],
        depth: usize,
    ) -> Result<bool, RootError> {
        for path in self.matching(pattern)? {
            let text = self.texts.lossy_text(&path)?;
            if !self.file(&path, &text, conditions, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the paths that a pattern of glob(3) matches, in order. Those without wildcards may not exist.
    fn matching(&mut self, pattern: &str) -> Result<Vec<String>, RootError> {
        let pattern = match pattern.starts_with('/') {
            true => pattern.to_owned(),
            false => format!("{SSHD_DIRECTORY}/{pattern}"),
        };
        let mut found = vec![String::new()];
        for part in pattern.split('/') {
            match part {
                "" | "." => continue,
                ".." => {
                    for path in &mut found {
                        path.truncate(path.rfind('/').unwrap_or(0));
                    }
                    continue;
                }
                _ => {}
            }
            let part = Wildcards::of_path(part);
            if let Some(name) = part.literal() {
                found
                    .iter_mut()
                    .for_each(|path| *path += &format!("/{name}"));
                continue;
            }
            let mut next = Vec::new();
            for path in found {
                let names = self.texts.names(&path, &|name| part.finds(name))?;
                next.extend(names.into_iter().map(|name| format!("{path}/{name}")));
            }
            found = next;
        }
        Ok(found)
    }

    fn note_program(&mut self, value: &SshdValue) -> Result<(), RootError> {
        let SshdValue::Command(_, words) = value else {
            return Ok(());
        };
        if let Some(program) = words.first()
            && let Ok(path) = AbsPath::new(program.as_str())
            && self.texts.is_program(&path)?
        {
            self.found.programs.push(program.clone());
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(
    clippy::disallowed_methods,
    reason = "a test plays the administrator who writes these files"
)]
mod tests;
