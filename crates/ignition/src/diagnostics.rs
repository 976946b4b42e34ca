//! Collects all errors and warnings of one text before any are reported.

use std::sync::Arc;

use super::{EntryOrigin, Refusal, TextSource, ignition_dialect::IgnitionSchema, warning::Warning};
use machinist_base::reason::Reason;
use machinist_yaml::{Location, YamlError};

/// The maximum number of refusals of one text. Users fix a handful at a time, and a hostile text
/// must not produce one refusal per byte.
const MAX_REFUSALS: usize = 1000;

/// The maximum number of warnings of one document.
const MAX_WARNINGS: usize = 100;

/// The prefix of the names of rendered configs.
pub(super) const RENDERED_PREFIX: &str = "rendered-";

/// The errors and warnings of one text so far.
#[derive(Debug)]
pub(super) struct Diagnostics {
    file: Arc<str>,
    config: Option<Arc<str>>,
    found: Vec<Refusal>,
    more: usize,
    source: TextSource,
    schema: Option<IgnitionSchema>,
    /// Whether plain scalars are texts where a text is expected.
    plain_texts: bool,
    warnings: Vec<Warning>,
}

impl Diagnostics {
    pub(super) fn new(file: &str, source: TextSource) -> Self {
        Self {
            file: file.into(),
            config: None,
            found: Vec::new(),
            more: 0,
            source,
            schema: None,
            plain_texts: false,
            warnings: Vec::new(),
        }
    }

    /// Sets the MachineConfig that the following errors belong to.
    pub(super) fn enter(&mut self, config: Option<&str>) {
        self.config = config.map(Arc::from);
    }

    /// Sets the Ignition config that is being parsed, or none.
    pub(super) fn enter_schema(&mut self, schema: Option<IgnitionSchema>) {
        self.schema = schema;
    }

    /// Sets whether a plain scalar, such as `12345`, is a text where a text is expected. Butane's
    /// reader has it so, Kubernetes' has not.
    pub(super) fn accept_plain_texts(&mut self, accept: bool) {
        self.plain_texts = accept;
    }

    /// Whether a plain scalar is a text where a text is expected.
    pub(super) fn accepts_plain_texts(&self) -> bool {
        self.plain_texts
    }

    pub(super) fn schema(&self) -> Option<&IgnitionSchema> {
        self.schema.as_ref()
    }

    /// Whether unknown keys are warnings in this text.
    pub(super) fn ignores_unknown_keys(&self) -> bool {
        self.source == TextSource::ApiServer
    }

    /// Whether the config was rendered from other configs, which are the ones that users edit.
    pub(super) fn in_rendered_config(&self) -> bool {
        self.config
            .as_deref()
            .is_some_and(|name| name.starts_with(RENDERED_PREFIX))
    }

    pub(super) fn warn(&mut self, origin: &EntryOrigin, message: impl Into<String>) {
        let positions = self.source == TextSource::File;
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(Warning::new(origin, positions, message));
        }
    }

    /// The warnings since the last call.
    pub(super) fn take_warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.warnings)
    }

    pub(super) fn push(&mut self, refusal: Refusal) {
        if self.found.len() < MAX_REFUSALS {
            self.found.push(refusal);
        } else {
            self.more += 1;
        }
    }

    pub(super) fn syntax(&mut self, fault: YamlError) {
        let origin = self.origin(fault.place, None);
        self.push(Refusal::new(Reason::SyntaxInvalid, fault.message).at(&origin));
    }

    pub(super) fn origin(&self, place: Location, field: Option<&str>) -> EntryOrigin {
        EntryOrigin {
            config: self.config.clone(),
            file: Some(self.file.clone()),
            line: Some(place.line),
            column: Some(place.column),
            field: field.filter(|path| !path.is_empty()).map(Arc::from),
            is_object: self.source == TextSource::ApiServer,
        }
    }

    /// All errors in the order of the text.
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
