//! The meaning of the API server's responses.

use std::time::Duration;

use machinist_drain::{EvictionCallError, EvictionError, EvictionResponse, StatusCause};

fn refused(code: u16, reason: &str, message: &str) -> EvictionError {
    EvictionError {
        code,
        reason: reason.to_owned(),
        message: message.to_owned(),
        object: "web".to_owned(),
        ..EvictionError::default()
    }
}

fn because(mut refused: EvictionError, kind: &str, message: &str) -> EvictionError {
    refused.causes.push(StatusCause {
        kind: kind.to_owned(),
        message: message.to_owned(),
    });
    refused
}

const TEN: Option<Duration> = Some(Duration::from_secs(10));

fn means(table: impl IntoIterator<Item = (EvictionError, EvictionResponse)>) {
    for (given, expected) in table {
        assert_eq!(EvictionResponse::of(&given), expected, "{given:?}");
    }
}

fn busy(words: &str) -> EvictionError {
    refused(429, "TooManyRequests", words)
}

/// Messages here are those of an API server 1.33.
#[test]
fn a_busy_api_server_is_distinguished_from_a_blocking_budget() {
    let budget = "The disruption budget web needs 2 healthy pods and has 2 currently";
    let pending = "The disruption budget web is still being processed by the server.";
    let late = |refused| EvictionError {
        retry_after: TEN,
        ..refused
    };
    means([
        (
            because(busy("Cannot evict pod"), "DisruptionBudget", budget),
            EvictionResponse::Budget(budget.to_owned(), None),
        ),
        (
            late(because(
                busy("Cannot evict pod"),
                "DisruptionBudget",
                pending,
            )),
            EvictionResponse::Budget(pending.to_owned(), TEN),
        ),
        (
            late(busy("too many requests")),
            EvictionResponse::Throttled(TEN),
        ),
    ]);
}

#[test]
fn a_deleted_pod_is_distinguished_from_a_missing_eviction_api() {
    let unknown = "the server could not find the requested resource";
    let replaced = "Precondition failed: UID in precondition: a, UID in object meta: b";
    means([
        (
            refused(404, "NotFound", "pods \"web\" not found"),
            EvictionResponse::NotFound,
        ),
        (
            refused(404, "NotFound", unknown),
            EvictionResponse::NotServed,
        ),
        (
            refused(405, "MethodNotAllowed", "no"),
            EvictionResponse::NotServed,
        ),
        (
            refused(409, "Conflict", replaced),
            EvictionResponse::NotFound,
        ),
    ]);
}

#[test]
fn a_missing_permission_is_distinguished_from_webhook_budget_and_namespace() {
    let forbidden = |words| refused(403, "Forbidden", words);
    let webhook = "admission webhook \"v.acme.dev\" denied the request: no";
    let ends = because(
        forbidden("unable to create new content"),
        "NamespaceTerminating",
        "namespace shop is being terminated",
    );
    let negative = "pod disruption budget is negative";
    let several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    means([
        (ends, EvictionResponse::NamespaceEnds),
        (
            forbidden("pods \"web\" is forbidden: User \"x\" cannot create"),
            EvictionResponse::Forbidden,
        ),
        (
            forbidden(webhook),
            EvictionResponse::Refused(webhook.to_owned()),
        ),
        (
            forbidden(negative),
            EvictionResponse::Budget(negative.to_owned(), None),
        ),
        (
            refused(500, "InternalError", several),
            EvictionResponse::SeveralBudgets,
        ),
        (
            refused(500, "InternalError", "etcd"),
            EvictionResponse::Refused("etcd".to_owned()),
        ),
    ]);
}

#[test]
fn gateway_errors_are_an_outage_and_rejections_are_not() {
    let outage = |code| EvictionCallError::from(refused(code, "", "")).is_outage();
    assert!([502, 503, 504].into_iter().all(outage));
    assert!(![400, 403, 404, 409, 410, 429, 500].into_iter().any(outage));
    assert!(EvictionCallError::NoAnswer("broken pipe".into()).is_outage());
}
