//! Credentials, time limits and the messages of failed requests.

use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::WatchParams};
use machinist_base::{error_chain::chain, reason::Reason};
use machinist_cluster::{Cluster, ClusterAccess, ClusterEnv, ClusterError};
use serde_json::json;

use super::server::{InjectedFailure, Server};

const NODE: &str = "/api/v1/nodes/a";

async fn with_node() -> (Server, Cluster) {
    let server = Server::start().await;
    server.put(
        NODE,
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "uid": "1"}}),
    );
    let cluster = server.cluster().await;
    (server, cluster)
}

async fn get(cluster: &Cluster) -> Result<Node, ClusterError> {
    let get = |client| async move { Api::<Node>::all(client).get("a").await };
    cluster.request("get", "Node a", get).await
}

#[tokio::test]
async fn a_rejected_token_is_reloaded_and_the_request_retried() {
    let (server, cluster) = with_node().await;
    get(&cluster).await.unwrap();
    // The old token expires before kube would read the file again.
    server.write_token("second");
    server.accept_only("second");
    get(&cluster).await.unwrap();
    let tokens: Vec<_> = server.requests().into_iter().map(|it| it.bearer).collect();
    assert_eq!(tokens, ["first", "first", "second"]);
    get(&cluster).await.unwrap();
    assert_eq!(server.requests().len(), 4, "the new one is kept");
}

#[tokio::test]
async fn a_response_and_a_line_of_a_watch_of_unlimited_size_are_errors() {
    let (server, cluster) = with_node().await;
    server.trouble(&format!("GET {NODE}"), InjectedFailure::Long(70));
    let error = chain(&get(&cluster).await.unwrap_err());
    assert!(error.contains("length limit exceeded"), "{error}");
    server.trouble("GET /api/v1/nodes", InjectedFailure::Long(20));
    let first_event = |client| async move {
        let nodes = Api::<Node>::all(client);
        let events = nodes.watch(&WatchParams::default(), "0").await?;
        std::pin::pin!(events).next().await.transpose()
    };
    let event = cluster.request("watch", "Nodes", first_event).await;
    let error = chain(&event.unwrap_err());
    assert!(
        error.contains("a line of more than 16777216 bytes"),
        "{error}"
    );
}

#[tokio::test]
async fn white_space_around_a_token_is_trimmed_on_load_and_reload() {
    let (server, _) = with_node().await;
    server.write_token("first\n");
    let cluster = server.cluster().await;
    get(&cluster).await.unwrap();
    server.write_token(" second\n");
    server.accept_only("second");
    get(&cluster).await.unwrap();
    let tokens: Vec<_> = server.requests().into_iter().map(|it| it.bearer).collect();
    assert_eq!(tokens, ["first", "first", "second"]);
}

#[tokio::test]
async fn a_token_file_without_token_is_reported_as_an_error_not_an_outage() {
    for text in ["", "\n", "fir\nst", "fir\u{7f}st"] {
        let server = Server::start().await;
        server.write_token(text);
        let access = ClusterAccess::Kubeconfig(vec![server.kubeconfig()]);
        let error = Cluster::connect(access).await.unwrap_err();
        assert_eq!(error.reason(), Reason::ClusterAccessInvalid);
        assert!(
            error.to_string().ends_with("expected one line of text"),
            "{error}"
        );
        assert!(
            error.to_string().contains("/token contains no token"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn unauthorized_is_reported_until_a_valid_token_appears() {
    let (server, cluster) = with_node().await;
    server.accept_only("second");
    let error = get(&cluster).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ApiServerUnauthorized);
    assert!(error.is_retryable() && error.is_unauthorised());
    assert_eq!(
        server.requests().len(),
        2,
        "no third attempt without a new token"
    );
    server.write_token("second");
    get(&cluster).await.unwrap();
}

#[tokio::test]
async fn every_request_has_a_user_agent() {
    let (server, cluster) = with_node().await;
    get(&cluster).await.unwrap();
    let expected = format!("machinist/{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(server.requests()[0].agent, expected);
    assert_eq!(cluster.namespace().await, "machinist-system");
}

/// Each failure once: its message, its code, and whether it is retryable. The adapter itself
/// retries nothing: one request is one request.
#[tokio::test]
async fn api_errors_have_a_reason_code_and_a_one_line_message() {
    let cases = [
        (
            InjectedFailure::Code(403, "Forbidden"),
            Reason::ApiServerForbidden,
            true,
            "cannot get Node a: scripted error (403 Forbidden)",
        ),
        (
            InjectedFailure::Code(404, "NotFound"),
            Reason::ApiServerRefused,
            true,
            "cannot get Node a: scripted error (404 NotFound)",
        ),
        (
            InjectedFailure::Code(422, "Invalid"),
            Reason::ApiServerRefused,
            false,
            "cannot get Node a: scripted error (422 Invalid)",
        ),
        (
            InjectedFailure::Code(429, "TooManyRequests"),
            Reason::ApiServerUnreachable,
            true,
            "cannot get Node a: scripted error (429 TooManyRequests)",
        ),
        (
            InjectedFailure::Proxy(503),
            Reason::ApiServerUnreachable,
            true,
            "cannot get Node a: ",
        ),
        (
            InjectedFailure::Cut,
            Reason::ApiServerUnreachable,
            true,
            "cannot get Node a: API server unreachable: ",
        ),
    ];
    let (server, cluster) = with_node().await;
    for (trouble, reason, again, output) in cases {
        let before = server.requests().len();
        server.trouble("GET", trouble.clone());
        let error = get(&cluster).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{trouble:?}");
        assert_eq!(error.is_retryable(), again, "{trouble:?}");
        let text = chain(&error);
        assert!(text.starts_with(output), "{trouble:?}: {text}");
        assert_eq!(server.requests().len(), before + 1, "{trouble:?}");
    }
}

#[tokio::test]
async fn an_unreachable_api_server_fails_requests_not_the_start() {
    let (server, _) = with_node().await;
    // Nothing listens on port 1.
    let config = server.kubeconfig_to("http://127.0.0.1:1");
    let cluster = Cluster::connect(ClusterAccess::Kubeconfig(vec![config]))
        .await
        .unwrap();
    let error = get(&cluster).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ApiServerUnreachable);
    let text = chain(&error);
    assert!(text.contains("Connection refused"), "{text}");
}

/// On a paused clock the time limit passes immediately; without a limit this would never end.
#[tokio::test]
async fn a_hanging_api_server_request_times_out() {
    let (server, cluster) = with_node().await;
    get(&cluster).await.unwrap();
    server.trouble("GET", InjectedFailure::Hang);
    tokio::time::pause();
    let error = get(&cluster).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ApiServerUnreachable);
    assert_eq!(chain(&error), "cannot get Node a: no response within 30 s");
}

#[tokio::test]
async fn an_unusable_kubeconfig_is_reported_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none");
    let connect = |files| Cluster::connect(ClusterAccess::Kubeconfig(files));
    let error = connect(vec![missing.clone()]).await.unwrap_err();
    assert_eq!(error.reason(), Reason::ClusterAccessInvalid);
    assert_eq!(
        chain(&error),
        format!(
            "cannot read the kubeconfig {}: No such file or directory (os error 2)",
            missing.display()
        )
    );

    // Missing files in a list such as `KUBECONFIG` are skipped.
    let server = Server::start().await;
    connect(vec![missing, server.kubeconfig()]).await.unwrap();
}

#[tokio::test]
async fn a_tls_client_uses_the_only_linked_crypto_provider() {
    let server = Server::start().await;
    let config = server.kubeconfig_to("https://127.0.0.1:1");
    // Two TLS providers in the binary, or none, would cause a panic here.
    Cluster::connect(ClusterAccess::Kubeconfig(vec![config]))
        .await
        .unwrap();
}

#[test]
fn credentials_are_found_as_by_kubectl_except_in_an_agents_home() {
    let with = |change: fn(&mut ClusterEnv)| {
        let mut surroundings = ClusterEnv::default();
        change(&mut surroundings);
        surroundings
    };
    let files = |paths: &[&str]| {
        Some(ClusterAccess::Kubeconfig(
            paths.iter().map(Into::into).collect(),
        ))
    };
    let everything = with(|it| {
        it.flag = Some("/flag".into());
        it.kubeconfig = vec!["/one".into(), "/two".into()];
        it.pod = true;
        it.home = Some("/root".into());
    });
    assert_eq!(ClusterAccess::of_agent(&everything), files(&["/flag"]));
    let no_flag = ClusterEnv {
        flag: None,
        ..everything.clone()
    };
    assert_eq!(ClusterAccess::of_agent(&no_flag), files(&["/one", "/two"]));
    let pod = with(|it| {
        it.pod = true;
        it.home = Some("/root".into());
    });
    assert_eq!(ClusterAccess::of_agent(&pod), Some(ClusterAccess::Pod));
    assert_eq!(ClusterAccess::of_person(&pod), Some(ClusterAccess::Pod));
    let at_home = with(|it| it.home = Some("/home/a".into()));
    assert_eq!(ClusterAccess::of_agent(&at_home), None);
    assert_eq!(
        ClusterAccess::of_person(&at_home),
        files(&["/home/a/.kube/config"])
    );
}
