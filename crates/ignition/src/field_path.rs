//! Represents the path of a field in its document.

use std::{fmt, rc::Rc};

/// The path of a field. It is formatted only on request: configs have thousands of fields, and few
/// of them have errors.
#[derive(Clone, Debug, Default)]
pub(super) struct FieldPath<'n>(Option<Rc<PathSegment<'n>>>);

#[derive(Debug)]
enum PathSegment<'n> {
    Key(FieldPath<'n>, &'n str),
    Item(FieldPath<'n>, usize),
}

impl<'n> FieldPath<'n> {
    pub(super) fn key(&self, key: &'n str) -> Self {
        Self(Some(Rc::new(PathSegment::Key(self.clone(), key))))
    }

    pub(super) fn item(&self, index: usize) -> Self {
        Self(Some(Rc::new(PathSegment::Item(self.clone(), index))))
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_deref() {
            None => Ok(()),
            Some(PathSegment::Key(Self(None), key)) => f.write_str(key),
            Some(PathSegment::Key(above, key)) => write!(f, "{above}.{key}"),
            Some(PathSegment::Item(above, index)) => write!(f, "{above}[{index}]"),
        }
    }
}
