//! The adapter's requests, and its parsing of the responses.

use std::{sync::Arc, time::Duration};

use machinist_base::clock::Clock;
use machinist_cluster::pods::NodePods;
use machinist_drain::{
    EvictionCallError, EvictionResponse, Grace, PodId,
    eviction::{Drain, EvictionMethod, ForceState, PodApi},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::drain::{
    api::{Api, status},
    progress::unattended,
    support::made,
};

async fn pods(api: &Api) -> NodePods {
    NodePods::new(api.cluster().await, None)
}

fn web() -> PodId {
    made("web").pod().id
}

#[tokio::test]
async fn an_eviction_request_has_uid_grace_period_and_dry_run() {
    let api = Api::with([made("web")]).await;
    let pods = pods(&api).await;
    for (grace, dry_run) in [(-1, false), (30, false), (-1, true)] {
        let how = EvictionMethod {
            grace: Grace::try_from(grace).unwrap(),
            dry_run,
        };
        pods.evict(&web(), how).await.unwrap();
        pods.delete(&web(), how).await.unwrap();
    }
    let asked = api.requests("POST /api/v1/namespaces/shop/pods/web/eviction");
    let options = |n: usize| asked[n].body["deleteOptions"].clone();
    assert_eq!(
        asked[0].body,
        json!({"apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"namespace": "shop", "name": "web"},
            "deleteOptions": {"preconditions": {"uid": "uid-web"}}})
    );
    assert_eq!(
        options(1),
        json!({"preconditions": {"uid": "uid-web"}, "gracePeriodSeconds": 30})
    );
    assert_eq!(
        options(2),
        json!({"preconditions": {"uid": "uid-web"}, "dryRun": ["All"]})
    );
    // The server refuses a body and a query that disagree.
    assert_eq!(asked[2].query.matches("dryRun=All").count(), 1);
    assert!(!asked[0].query.contains("dryRun"));
    let deleted = api.requests("DELETE /api/v1/namespaces/shop/pods/web");
    let body = |n: usize| deleted[n].body.clone();
    assert_eq!(body(0), json!({"preconditions": {"uid": "uid-web"}}));
    assert_eq!(body(1)["gracePeriodSeconds"], 30);
    assert_eq!(body(2)["dryRun"], json!(["All"]));
}

#[tokio::test]
async fn eviction_rejections_carry_cause_and_retry_after_without_client_retries() {
    let api = Api::with([made("web")]).await;
    let pods = pods(&api).await;
    let details = json!({"name": "web", "retryAfterSeconds": 10,
        "causes": [{"reason": "DisruptionBudget", "message": "needs 2"}]});
    let words = "Cannot evict pod as it would violate the pod's disruption budget.";
    api.answers("POST", 429, status(429, "TooManyRequests", words, details));
    let error = pods
        .evict(&web(), EvictionMethod::default())
        .await
        .unwrap_err();
    let EvictionCallError::Refused(refused) = error else {
        panic!("{error}");
    };
    let ten = Some(Duration::from_secs(10));
    assert_eq!(
        EvictionResponse::of(&refused),
        EvictionResponse::Budget("needs 2".to_owned(), ten)
    );
    assert_eq!(api.requests("POST").len(), 1);
    for (code, reason, name) in [(404, "NotFound", "web"), (409, "Conflict", "web")] {
        api.answers(
            "POST",
            code,
            status(code, reason, "x", json!({"name": name})),
        );
        let error = pods
            .evict(&web(), EvictionMethod::default())
            .await
            .unwrap_err();
        let EvictionCallError::Refused(refused) = error else {
            panic!("{error}");
        };
        assert_eq!(
            EvictionResponse::of(&refused),
            EvictionResponse::NotFound,
            "{code}"
        );
    }
    api.answers("POST", 503, json!("no Status at all"));
    assert!(
        pods.evict(&web(), EvictionMethod::default())
            .await
            .unwrap_err()
            .is_outage()
    );
}

#[tokio::test]
async fn pods_are_listed_in_pages_and_an_expired_page_restarts_the_list() {
    let api = Api::with((0..3000).map(|n| made(&format!("web-{n:04}")))).await;
    let pods = pods(&api).await;
    assert_eq!(pods.list("a").await.unwrap().pods.len(), 3000);
    let pages = api.requests("GET /api/v1/pods").len();
    assert_eq!(pages, 12);
    api.answers(
        "GET /api/v1/pods",
        200,
        json!({"kind": "PodList", "apiVersion": "v1", "items": [],
        "metadata": {"resourceVersion": "1", "continue": "250"}}),
    );
    api.answers(
        "GET /api/v1/pods",
        410,
        status(410, "Expired", "too old", json!({})),
    );
    assert_eq!(pods.list("a").await.unwrap().pods.len(), 3000);
    assert_eq!(api.requests("GET /api/v1/pods").len(), pages + 2 + 12);
}

#[tokio::test]
async fn pod_list_and_watch_use_the_pod_selector_and_node_name() {
    let api = Api::with([made("web")]).await;
    let pods = NodePods::new(api.cluster().await, Some("app=shop".to_owned()));
    pods.list("a").await.unwrap();
    drop(pods.watch("a", "7").await.unwrap());
    let asked = api.requests("GET /api/v1/pods");
    assert_eq!(asked.len(), 2);
    for one in &asked {
        assert!(
            one.query.contains("fieldSelector=spec.nodeName%3Da"),
            "{one:?}"
        );
        assert!(one.query.contains("labelSelector=app%3Dshop"), "{one:?}");
    }
    assert!(
        asked[1].query.contains("resourceVersion=7"),
        "{:?}",
        asked[1]
    );
    assert!(
        asked[1].query.contains("allowWatchBookmarks=true"),
        "{:?}",
        asked[1]
    );
}

#[tokio::test]
async fn a_drain_ends_when_the_watch_shows_all_pods_deleted() {
    let api = Api::with((0..30).map(|n| made(&format!("web-{n:02}")))).await;
    let pods = Arc::new(pods(&api).await);
    let drain = Drain::new(pods, "a", unattended(), Clock::system());
    let ended = drain.run(ForceState::never(), CancellationToken::new());
    let ended = tokio::time::timeout(Duration::from_secs(60), ended)
        .await
        .unwrap();
    assert_eq!(ended.unwrap().progress.gone, 30);
    assert_eq!(api.requests("POST").len(), 30);
    assert_eq!(
        api.requests("GET").len(),
        4,
        "two lists, a watch, the budgets"
    );
}
