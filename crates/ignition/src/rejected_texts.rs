//! Searches refused texts for names that seem to be missing.

/// The texts that were refused. Something that seems to be missing elsewhere may be in one of them,
/// and must not be reported as missing then.
#[derive(Debug, Default)]
pub(super) struct RejectedTexts {
    texts: Vec<String>,
    blind: bool,
}

impl RejectedTexts {
    /// A text that was refused.
    pub(super) fn add(&mut self, text: String) {
        // A rejected Butane text with trees may name any path: the files of a tree are not listed in the text.
        self.blind |= text.contains("trees");
        self.texts.push(text);
    }

    /// Records that one text could not be read at all.
    pub(super) fn record_unreadable(&mut self) {
        self.blind = true;
    }

    /// Whether one of the texts may contain the entry of this name.
    pub(super) fn may_contain(&self, name: &str) -> bool {
        self.blind || self.texts.iter().any(|text| text.contains(name))
    }
}
