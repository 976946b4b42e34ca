use std::time::Duration;

use super::*;
use crate::webhook_settings::ProxyVariables;
use test_receiver::{AUTHORITY, Answer, Receiver};

mod test_receiver;

fn settings(url: &str) -> WebhookSettings {
    WebhookSettings {
        url: WebhookUrl::parse(url).unwrap(),
        proxies: ProxyVariables::default(),
        authorities: None,
    }
}

fn webhook(url: &str) -> Webhook {
    Webhook::new(settings(url)).unwrap()
}

async fn post(url: &str) -> Result<(), PostError> {
    webhook(url).post("{}".to_owned()).await
}

#[tokio::test]
async fn a_request_has_the_path_the_host_and_the_body() {
    let receiver = Receiver::start(&[]).await;
    let port = receiver.port;
    let target = webhook(&format!("http://127.0.0.1:{port}/a/secret?b=c"));
    target.post("{\"a\":1}".to_owned()).await.unwrap();
    let (head, body) = receiver.heard().remove(0);
    assert!(
        head.starts_with("POST /a/secret?b=c HTTP/1.1\r\n"),
        "{head}"
    );
    assert!(
        head.contains(&format!("host: 127.0.0.1:{port}\r\n")),
        "{head}"
    );
    assert!(
        head.contains("content-type: application/json\r\n"),
        "{head}"
    );
    assert_eq!(body, "{\"a\":1}");
}

#[tokio::test]
async fn statuses_tell_whether_the_same_request_may_succeed_later() {
    for (status, is_retryable) in [
        ("500 Internal Server Error", true),
        ("503 Service Unavailable", true),
        ("429 Too Many Requests", true),
        ("404 Not Found", false),
        ("400 Bad Request", false),
        ("302 Found\r\nLocation: /elsewhere", false),
        ("307 Temporary Redirect\r\nLocation: /elsewhere", false),
    ] {
        let receiver = Receiver::start(&[Answer::Status(status)]).await;
        let url = format!("http://127.0.0.1:{}/secret", receiver.port);
        let failure = post(&url).await.unwrap_err();
        assert_eq!(failure.is_retryable(), is_retryable, "{status}");
        let text = format!("{failure} {failure:?}");
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(receiver.heard().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_closed_port_and_a_closed_connection_are_retryable() {
    let receiver = Receiver::start(&[Answer::Close]).await;
    let url = format!("http://127.0.0.1:{}/secret", receiver.port);
    let closed = post(&url).await.unwrap_err();
    assert!(
        matches!(closed, PostError::Closed(_)) && closed.is_retryable(),
        "{closed}"
    );
    let free = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let refused = post(&format!("http://127.0.0.1:{free}/secret"))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, PostError::Connect(_)) && refused.is_retryable(),
        "{refused}"
    );
    assert!(!refused.to_string().contains("secret"), "{refused}");
}

#[tokio::test]
async fn a_receiver_that_hangs_gets_the_request_once() {
    let receiver = Receiver::start(&[Answer::Hang]).await;
    let url = format!("http://127.0.0.1:{}/secret", receiver.port);
    let posting = tokio::spawn(async move { post(&url).await });
    receiver.until_heard(1).await;
    // From here on the clock advances to the timeout.
    tokio::time::pause();
    let failure = posting.await.unwrap().unwrap_err();
    assert!(matches!(failure, PostError::AnswerTimeout), "{failure}");
    assert!(!failure.is_retryable());
}

#[tokio::test]
async fn an_endless_body_is_not_read() {
    let receiver = Receiver::start(&[Answer::Endless]).await;
    post(&format!("http://127.0.0.1:{}/", receiver.port))
        .await
        .unwrap();
}

#[test]
fn a_receiver_asks_for_seconds_or_until_a_date() {
    let now: Timestamp = "2026-11-27T10:00:00Z".parse().unwrap();
    let wait = |text: &str| {
        let failure = PostError::Status {
            code: StatusCode::TOO_MANY_REQUESTS,
            retry_after: Some(text.to_owned()),
        };
        failure.retry_after(now)
    };
    assert_eq!(wait("7"), Some(Duration::from_secs(7)));
    assert_eq!(
        wait("Fri, 27 Nov 2026 10:00:30 GMT"),
        Some(Duration::from_secs(30))
    );
    assert_eq!(wait("Fri, 27 Nov 2026 09:00:00 GMT"), Some(Duration::ZERO));
    assert_eq!(wait("99999"), Some(MAX_RETRY_AFTER));
    assert_eq!(wait("soon"), None);
}

#[tokio::test]
async fn a_certificate_is_checked_with_the_given_authority() {
    let receiver = Receiver::start_tls(&[]).await;
    let url = format!("https://localhost:{}/secret", receiver.port);
    let unknown = post(&url).await.unwrap_err();
    assert!(unknown.to_string().contains("certificate"), "{unknown}");
    assert!(receiver.heard().is_empty());
    let mut with_authority = settings(&url);
    with_authority.authorities = Some(AUTHORITY.to_vec());
    let known = Webhook::new(with_authority).unwrap();
    known.post("{}".to_owned()).await.unwrap();
    assert_eq!(receiver.heard().len(), 1);
    for (pem, expected) in [("", "no certificate"), ("x", "no certificate")] {
        let mut wrong = settings(&url);
        wrong.authorities = Some(pem.as_bytes().to_vec());
        let error = Webhook::new(wrong).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn an_http_proxy_gets_the_requests_unless_the_host_is_excluded() {
    let (receiver, proxy) = (Receiver::start(&[]).await, Receiver::start(&[]).await);
    let url = format!("http://127.0.0.1:{}/secret", receiver.port);
    for (no, by_proxy) in [
        ("", 1),
        ("example.com", 2),
        ("127.0.0.0/8", 2),
        ("127.0.0.1", 2),
        ("*", 2),
    ] {
        let mut through = settings(&url);
        through.proxies.http = Some(format!("http://user:pass@127.0.0.1:{}", proxy.port));
        through.proxies.https = Some("http://127.0.0.1:1".to_owned());
        through.proxies.no = Some(no.to_owned());
        Webhook::new(through)
            .unwrap()
            .post("{}".to_owned())
            .await
            .unwrap();
        assert_eq!(proxy.heard().len(), by_proxy, "{no}");
    }
    assert_eq!(receiver.heard().len(), 3);
    let (head, _) = proxy.heard().remove(0);
    assert!(
        head.starts_with(&format!("POST {url} HTTP/1.1\r\n")),
        "{head}"
    );
    assert!(
        head.contains("proxy-authorization: Basic dXNlcjpwYXNz\r\n"),
        "{head}"
    );
    let (head, _) = receiver.heard().remove(0);
    assert!(!head.contains("proxy-authorization"), "{head}");
}

#[tokio::test]
async fn a_tunnel_of_the_proxy_does_not_show_the_path() {
    let (receiver, proxy) = (Receiver::start_tls(&[]).await, Receiver::start(&[]).await);
    let mut through = settings(&format!("https://localhost:{}/secret", receiver.port));
    through.authorities = Some(AUTHORITY.to_vec());
    through.proxies.https = Some(format!("127.0.0.1:{}", proxy.port));
    through.proxies.http = Some("http://127.0.0.1:1".to_owned());
    Webhook::new(through)
        .unwrap()
        .post("{}".to_owned())
        .await
        .unwrap();
    let (head, _) = proxy.heard().remove(0);
    assert!(
        head.starts_with(&format!("CONNECT localhost:{} ", receiver.port)),
        "{head}"
    );
    assert!(!head.contains("secret"), "{head}");
    assert!(
        receiver.heard()[0]
            .0
            .starts_with("POST /secret HTTP/1.1\r\n")
    );
}

#[test]
fn a_proxy_of_another_kind_is_refused() {
    for value in ["socks5://127.0.0.1:1080", "http://a b"] {
        let mut wrong = settings("https://localhost/secret");
        wrong.proxies.https = Some(value.to_owned());
        let error = Webhook::new(wrong).unwrap_err().to_string();
        assert!(
            error.starts_with("HTTPS_PROXY is not the URL of a proxy"),
            "{value}: {error}"
        );
    }
}

mod delivery {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::webhook_source::WebhookSource;
    use crate::{
        metrics::ControllerMetrics,
        notifier::{NotificationQueue, deliver},
        rollout_event::{RolloutEvent, RolloutEventKind},
    };
    use machinist_base::clock::Clock;

    fn source(receiver: &Receiver) -> WebhookSource {
        let settings = settings(&format!("http://127.0.0.1:{}/secret", receiver.port));
        WebhookSource::new(move || Ok(settings.clone())).unwrap()
    }

    fn queue() -> (Arc<NotificationQueue>, ControllerMetrics) {
        let metrics = ControllerMetrics::new();
        let clock = Clock::system();
        (
            Arc::new(NotificationQueue::new(clock, metrics.clone())),
            metrics,
        )
    }

    fn event(number: usize) -> RolloutEvent {
        RolloutEvent {
            kind: RolloutEventKind::NodeDone,
            pool: "worker".to_owned(),
            node: Some(format!("node-{number}")),
            target: None,
            reason: None,
            message: String::new(),
        }
    }

    /// The nodes of the requests that a receiver has got.
    fn nodes(receiver: &Receiver) -> Vec<usize> {
        let heard = receiver.heard().into_iter();
        let nodes = heard.map(|(_, body)| {
            let body: serde_json::Value = serde_json::from_str(&body).unwrap();
            body["node"].as_str().unwrap()[5..].parse().unwrap()
        });
        nodes.collect()
    }

    fn counted(metrics: &ControllerMetrics, result: &str) -> bool {
        let line = format!("machinist_controller_notifications_total{{result=\"{result}\"}}");
        metrics.text().unwrap().contains(&line)
    }

    #[tokio::test]
    async fn the_order_is_kept_over_failures() {
        let answers = [
            Answer::Status("500 Internal Server Error"),
            Answer::Status("200 OK"),
            Answer::Status("404 Not Found"),
        ];
        let receiver = Receiver::start(&answers).await;
        let source = source(&receiver);
        let (queue, metrics) = queue();
        (0..3).for_each(|number| queue.put(event(number)));
        let (stop, shared) = (CancellationToken::new(), Arc::clone(&queue));
        let token = stop.clone();
        let delivering = tokio::spawn(async move { deliver(&shared, source, token).await });
        receiver.until_heard(4).await;
        // Those that are queued before the end are sent.
        queue.put(event(3));
        stop.cancel();
        delivering.await.unwrap();
        assert_eq!(nodes(&receiver), [0, 0, 1, 2, 3]);
        assert!(counted(&metrics, "Delivered") && counted(&metrics, "Failed"));
        assert!(!counted(&metrics, "Dropped"));
    }

    #[tokio::test]
    async fn a_receiver_that_hangs_makes_the_oldest_be_dropped_and_the_end_take_two_seconds() {
        let receiver = Receiver::start(&[Answer::Hang]).await;
        let source = source(&receiver);
        let (queue, metrics) = queue();
        let (stop, shared) = (CancellationToken::new(), Arc::clone(&queue));
        let token = stop.clone();
        queue.put(event(1000));
        let delivering = tokio::spawn(async move { deliver(&shared, source, token).await });
        receiver.until_heard(1).await;
        (0..257).for_each(|number| queue.put(event(number)));
        assert!(counted(&metrics, "Dropped"));
        stop.cancel();
        tokio::time::pause();
        let began = tokio::time::Instant::now();
        delivering.await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(3));
        assert_eq!(nodes(&receiver), [1000]);
    }
}
