//! Represents the path of a field in its document.

use std::{fmt, rc::Rc};

/// The path of a field. It is formatted only on request: configs have thousands of fields, and few
/// of them have errors.
#[derive(Clone, Debug, Default)]
pub(super) struct Trail<'n>(Option<Rc<Step<'n>>>);

#[derive(Debug)]
enum Step<'n> {
    Key(Trail<'n>, &'n str),
    Item(Trail<'n>, usize),
}

impl<'n> Trail<'n> {
    pub(super) fn key(&self, key: &'n str) -> Self {
        Self(Some(Rc::new(Step::Key(self.clone(), key))))
    }

    pub(super) fn item(&self, index: usize) -> Self {
        Self(Some(Rc::new(Step::Item(self.clone(), index))))
    }
}

impl fmt::Display for Trail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_deref() {
            None => Ok(()),
            Some(Step::Key(Self(None), key)) => f.write_str(key),
            Some(Step::Key(above, key)) => write!(f, "{above}.{key}"),
            Some(Step::Item(above, index)) => write!(f, "{above}[{index}]"),
        }
    }
}
