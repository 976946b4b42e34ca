//! What refused texts may have said.

/// The texts that were refused. What seems to be missing elsewhere may stand in one of them, and a
/// person must not be sent after what is there.
#[derive(Debug, Default)]
pub(super) struct Unread {
    texts: Vec<String>,
    blind: bool,
}

impl Unread {
    /// A text that was refused.
    pub(super) fn add(&mut self, text: String) {
        // A tree says the paths of its files nowhere.
        self.blind |= text.contains("trees");
        self.texts.push(text);
    }

    /// Of one text not even the letters are known.
    pub(super) fn know_nothing_of_one(&mut self) {
        self.blind = true;
    }

    /// Whether what is called that may stand in one of them.
    pub(super) fn may_speak_of(&self, name: &str) -> bool {
        self.blind || self.texts.iter().any(|text| text.contains(name))
    }
}
