//! Everything wrong with one text, collected before anything is reported.

use std::sync::Arc;

use super::{
    Origin, Refusal, TextSource,
    tree::{Fault, Place},
    unknown::Schema,
    warning::Warning,
};
use crate::reason::Reason;

/// How many refusals one text may yield. A person repairs a handful at a time; a hostile text must
/// not turn every byte into one.
const MOST_REFUSALS: usize = 1000;

/// How many warnings one document may yield.
const MOST_WARNINGS: usize = 100;

/// How the names of rendered configs begin.
pub(super) const RENDERED: &str = "rendered-";

/// Everything wrong with one text so far.
#[derive(Debug)]
pub(super) struct Problems {
    file: Arc<str>,
    config: Option<Arc<str>>,
    found: Vec<Refusal>,
    more: usize,
    source: TextSource,
    schema: Option<Schema>,
    warnings: Vec<Warning>,
}

impl Problems {
    pub(super) fn new(file: &str, source: TextSource) -> Self {
        Self {
            file: file.into(),
            config: None,
            found: Vec::new(),
            more: 0,
            source,
            schema: None,
            warnings: Vec::new(),
        }
    }

    /// From here on, what is read belongs to the MachineConfig of that name.
    pub(super) fn enter(&mut self, config: Option<&str>) {
        self.config = config.map(Arc::from);
    }

    /// From here on, an Ignition config is read, or none.
    pub(super) fn enter_schema(&mut self, schema: Option<Schema>) {
        self.schema = schema;
    }

    pub(super) fn schema(&self) -> Option<&Schema> {
        self.schema.as_ref()
    }

    /// Whether unknown keys are warnings in this text.
    pub(super) fn ignores_unknown_keys(&self) -> bool {
        self.source == TextSource::ApiServer
    }

    /// Whether the config was rendered from others, in which a person looks for mistakes.
    pub(super) fn in_rendered_config(&self) -> bool {
        self.config
            .as_deref()
            .is_some_and(|name| name.starts_with(RENDERED))
    }

    pub(super) fn warn(&mut self, origin: &Origin, message: impl Into<String>) {
        let positions = self.source == TextSource::File;
        if self.warnings.len() < MOST_WARNINGS {
            self.warnings.push(Warning::new(origin, positions, message));
        }
    }

    /// The warnings since the last call.
    pub(super) fn take_warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.warnings)
    }

    pub(super) fn push(&mut self, refusal: Refusal) {
        if self.found.len() < MOST_REFUSALS {
            self.found.push(refusal);
        } else {
            self.more += 1;
        }
    }

    pub(super) fn syntax(&mut self, fault: Fault) {
        let origin = self.origin(fault.place, None);
        self.push(Refusal::new(Reason::SyntaxInvalid, fault.message).at(&origin));
    }

    pub(super) fn origin(&self, place: Place, field: Option<&str>) -> Origin {
        Origin {
            config: self.config.clone(),
            file: Some(self.file.clone()),
            line: Some(place.line),
            column: Some(place.column),
            field: field.filter(|path| !path.is_empty()).map(Arc::from),
        }
    }

    /// All that was wrong, in the order of the text.
    pub(super) fn into_refusals(mut self) -> Vec<Refusal> {
        self.found
            .sort_by_key(|refusal| (refusal.line, refusal.column));
        if self.more > 0 {
            let message = format!("{} more are not listed", self.more);
            let mut rest = Refusal::new(Reason::SyntaxInvalid, message);
            rest.file = Some(self.file.to_string());
            self.found.push(rest);
        }
        self.found
    }
}
