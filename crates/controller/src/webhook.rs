//! Sends requests to the webhook of notifications.
//!
//! The URL is a secret: it is in no message and in no `Debug` output. Redirects are not followed, and bodies of responses
//! are not read, because both may hold it. Each request has a connection of its own, because there are few of them.

use std::{fmt, sync::Arc, time::Duration};

use http::{
    HeaderMap, HeaderValue, Request, StatusCode,
    header::{CONTENT_TYPE, HOST, PROXY_AUTHORIZATION, RETRY_AFTER, USER_AGENT},
};
use http_body_util::Full;
use hyper::{body::Bytes, client::conn::http1};
use jiff::Timestamp;
use tokio::time::timeout;

use crate::{
    webhook_route::WebhookRoute,
    webhook_settings::{WebhookError, WebhookSettings, WebhookUrl},
};
use machinist_base::error_chain::chain;

/// How long it may take to connect, with a proxy and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the receiver may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest wait that a receiver can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

const AGENT: &str = concat!("machinist/", env!("CARGO_PKG_VERSION"));

/// The receiver of notifications about rollouts. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Webhook(Arc<WebhookEndpoint>);

struct WebhookEndpoint {
    url: WebhookUrl,
    route: WebhookRoute,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Webhook(..)")
    }
}

/// Why a notification was not delivered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PostError {
    /// Nothing was sent.
    #[error("cannot connect to the webhook: {0}")]
    Connect(String),
    /// Nothing was sent in time.
    #[error("cannot connect to the webhook within {} s", CONNECT_TIMEOUT.as_secs())]
    ConnectTimeout,
    /// The connection ended before a response.
    #[error("the webhook did not answer: {0}")]
    Closed(String),
    /// The receiver may have the notification.
    #[error("the webhook did not answer within {} s", ANSWER_TIMEOUT.as_secs())]
    AnswerTimeout,
    /// The receiver refused it, or redirects.
    #[error("the webhook answered with the status {code}; expected 200 to 299")]
    Status {
        code: StatusCode,
        retry_after: Option<String>,
    },
}

impl PostError {
    /// Whether the same request may succeed later, and would not be received twice by a receiver that is only slow.
    pub(crate) fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(_) | Self::ConnectTimeout | Self::Closed(_) => true,
            Self::AnswerTimeout => false,
            Self::Status { code, .. } => {
                code.is_server_error() || *code == StatusCode::TOO_MANY_REQUESTS
            }
        }
    }

    /// How long the receiver asks to wait: a number of seconds or a date.
    pub(crate) fn retry_after(&self, now: Timestamp) -> Option<Duration> {
        let Self::Status {
            retry_after: Some(text),
            ..
        } = self
        else {
            return None;
        };
        let wait = match text.trim().parse() {
            Ok(seconds) => Duration::from_secs(seconds),
            Err(_) => {
                let at = jiff::fmt::rfc2822::parse(text.trim()).ok()?.timestamp();
                Duration::try_from(at.duration_since(now)).unwrap_or_default()
            }
        };
        Some(wait.min(MAX_RETRY_AFTER))
    }
}

impl Webhook {
    /// Prepares requests to a URL.
    ///
    /// # Errors
    ///
    /// A setting cannot be used.
    pub(crate) fn new(settings: WebhookSettings) -> Result<Self, WebhookError> {
        let route = WebhookRoute::of(&settings)?;
        let url = settings.url;
        Ok(Self(Arc::new(WebhookEndpoint { url, route })))
    }

    /// Sends a body of JSON once.
    pub(crate) async fn post(&self, body: String) -> Result<(), PostError> {
        let open = timeout(CONNECT_TIMEOUT, self.0.route.open(self.0.url.uri())).await;
        let open = open.map_err(|_| PostError::ConnectTimeout)?;
        let connection = open.map_err(|error| PostError::Connect(chain(&*error)))?;
        let closed = |error: hyper::Error| PostError::Closed(chain(&error));
        let (mut sender, connection) = http1::handshake(connection).await.map_err(closed)?;
        // It ends with the sender.
        let driver = tokio::spawn(connection);
        let answered = timeout(ANSWER_TIMEOUT, sender.send_request(self.request(body))).await;
        driver.abort();
        let response = answered
            .map_err(|_| PostError::AnswerTimeout)?
            .map_err(closed)?;
        match response.status() {
            code if code.is_success() => Ok(()),
            code => Err(PostError::Status {
                code,
                retry_after: text_of(response.headers()),
            }),
        }
    }

    fn request(&self, body: String) -> Request<Full<Bytes>> {
        let (url, route) = (&self.0.url, &self.0.route);
        let mut request = Request::new(Full::new(Bytes::from(body)));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = match route.proxy_of_request() {
            // A proxy gets the whole URL.
            Some(_) => url.uri().clone(),
            None => url.path(),
        };
        let headers = request.headers_mut();
        headers.insert(HOST, url.host_header());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(auth) = route.proxy_of_request().and_then(|it| it.basic_auth()) {
            headers.insert(PROXY_AUTHORIZATION, auth.clone());
        }
        request
    }
}

fn text_of(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    Some(value.to_owned())
}

#[cfg(test)]
mod tests;
