//! Menu entries.

use super::script::Block;

/// An entry of the menu.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MenuEntry {
    /// The title.
    pub title: String,
    /// The name given with `--id`.
    pub id: Option<String>,
    /// It contains further entries.
    pub is_submenu: bool,
    /// GRUB asks for a password before it enters this entry, if `superusers` is set.
    pub(super) is_restricted: bool,
    /// The further arguments, known inside as `$1` and so on.
    pub(super) arguments: Vec<String>,
    pub(super) body: Block,
}

impl MenuEntry {
    /// Reads the words of `menuentry` or `submenu`; none without a title.
    pub(super) fn of(words: &[String], body: Block) -> Option<Self> {
        let mut entry = Self {
            is_submenu: words.first().is_some_and(|name| name == "submenu"),
            body,
            ..Self::default()
        };
        let (mut titled, mut has_users, mut is_unrestricted) = (false, false, false);
        let mut words = words.iter().skip(1);
        while let Some(word) = words.next() {
            let (option, value) = match word.split_once('=') {
                Some((option, value)) if option.starts_with("--") => {
                    (option, Some(value.to_owned()))
                }
                _ => (word.as_str(), None),
            };
            match option {
                "--unrestricted" => is_unrestricted = true,
                "--id" => entry.id = value.or_else(|| words.next().cloned()),
                "--class" | "-c" | "--users" | "-u" | "--hotkey" | "--source" => {
                    has_users |= matches!(option, "--users" | "-u");
                    if value.is_none() {
                        words.next();
                    }
                }
                _ if !titled => {
                    titled = true;
                    entry.title.clone_from(word);
                }
                _ => entry.arguments.push(word.clone()),
            }
        }
        entry.is_restricted = has_users || !is_unrestricted;
        titled.then_some(entry)
    }

    /// The name under which `default` and `next_entry` find it.
    pub fn name(&self) -> &str {
        self.id.as_deref().unwrap_or(&self.title)
    }

    /// The text between the braces.
    pub fn source(&self) -> &str {
        &self.body.source
    }

    /// Whether a name that `default` holds means this entry.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.title == name || self.id.as_deref() == Some(name)
    }
}
