//! Label selectors of disruption budgets.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

/// A label selector.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSelector(Option<Vec<SelectorTerm>>);

#[derive(Clone, Debug, PartialEq)]
enum SelectorTerm {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
    /// An unknown operator matches no pod; the API server would have rejected it.
    Unknown,
}

impl PodSelector {
    /// Converts the API type. None matches no pod; an empty selector matches all.
    pub fn new(selector: Option<&meta::LabelSelector>) -> Self {
        let Some(selector) = selector else {
            return Self(None);
        };
        let equal = selector.match_labels.iter().flatten();
        let equal = equal.map(|(key, value)| SelectorTerm::In(key.clone(), vec![value.clone()]));
        let others = selector.match_expressions.iter().flatten();
        Self(Some(equal.chain(others.map(term)).collect()))
    }

    /// Whether it matches a pod with these labels. All terms must match.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let terms = self.0.as_ref();
        terms.is_some_and(|terms| terms.iter().all(|term| term.matches(labels)))
    }
}

fn term(one: &meta::LabelSelectorRequirement) -> SelectorTerm {
    let key = one.key.clone();
    let values = one.values.clone().unwrap_or_default();
    match one.operator.as_str() {
        "In" => SelectorTerm::In(key, values),
        "NotIn" => SelectorTerm::NotIn(key, values),
        "Exists" => SelectorTerm::Exists(key),
        "DoesNotExist" => SelectorTerm::Absent(key),
        _ => SelectorTerm::Unknown,
    }
}

impl SelectorTerm {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            // A pod without the label is not in the list.
            Self::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Self::Exists(key) => labels.contains_key(key),
            Self::Absent(key) => !labels.contains_key(key),
            Self::Unknown => false,
        }
    }
}
