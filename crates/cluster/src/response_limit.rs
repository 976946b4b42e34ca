//! Limits the size of responses from the API server.
//!
//! A watch stream has no end, but each of its lines is an event that carries one object. So the
//! length of its lines is limited.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{StreamExt as _, TryFutureExt as _};
use http::{Request, Response};
use http_body_util::{BodyExt, BodyStream, Limited, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use tokio_util::bytes::Bytes;
use tower::{BoxError, Layer, Service};

/// Client middleware that turns a response body above its limit, in bytes, into an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseLimit {
    /// The whole response.
    pub(super) response: usize,
    /// One line of a watch stream.
    pub(super) watch_line: usize,
}

impl ResponseLimit {
    /// For scale: a page of 250 ordinary pods is about 5 MiB. An API server stores objects of at most
    /// 1.5 MiB unless its etcd is configured otherwise.
    pub(super) const DEFAULT: Self = Self {
        response: 64 << 20,
        watch_line: 16 << 20,
    };
}

/// A watch stream has sent a line that no object needs.
#[derive(Debug, thiserror::Error)]
#[error("the watch sent a line of more than {0} bytes")]
struct WatchLineTooLong(usize);

impl<S> Layer<S> for ResponseLimit {
    type Service = LimitedService<S>;

    fn layer(&self, service: S) -> LimitedService<S> {
        LimitedService {
            service,
            limit: *self,
        }
    }
}

pub(super) struct LimitedService<S> {
    service: S,
    limit: ResponseLimit,
}

impl<S, B> Service<Request<Body>> for LimitedService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    B: BodyExt<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<UnsyncBoxBody<Bytes, BoxError>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let watch = request.uri().query().is_some_and(is_watch);
        let limit = self.limit;
        let limited = move |answer: Response<B>| {
            answer.map(|body| match watch {
                true => with_limited_lines(body, limit.watch_line),
                false => Limited::new(body, limit.response).boxed_unsync(),
            })
        };
        Box::pin(self.service.call(request).map_ok(limited))
    }
}

fn is_watch(query: &str) -> bool {
    query.split('&').any(|pair| pair == "watch=true")
}

fn with_limited_lines<B>(body: B, max_line: usize) -> UnsyncBoxBody<Bytes, BoxError>
where
    B: BodyExt<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let mut unfinished = 0;
    let frames = BodyStream::new(body).map(move |frame| {
        let frame = frame.map_err(|error| -> BoxError { error.into() })?;
        if let Some(data) = frame.data_ref() {
            unfinished = unfinished_line(unfinished, data, max_line)?;
        }
        Ok::<_, BoxError>(frame)
    });
    StreamBody::new(frames).boxed_unsync()
}

/// The length of the line that is unfinished after `data`, which follows `length` bytes of it.
fn unfinished_line(
    mut length: usize,
    data: &[u8],
    max_line: usize,
) -> Result<usize, WatchLineTooLong> {
    for (number, part) in data.split(|byte| *byte == b'\n').enumerate() {
        length = if number == 0 { length } else { 0 } + part.len();
        if length > max_line {
            return Err(WatchLineTooLong(max_line));
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt as _;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api, Client,
        api::{ListParams, WatchParams},
        client::ClientBuilder,
    };

    use super::*;

    /// A client whose server answers every request with this text.
    fn client(text: String, limit: ResponseLimit) -> Client {
        let answer = tower::service_fn(move |_: Request<Body>| {
            let body = Body::from(text.clone().into_bytes());
            async { Ok::<_, std::convert::Infallible>(Response::new(body)) }
        });
        ClientBuilder::new(answer, "default")
            .with_layer(&limit)
            .build()
    }

    #[tokio::test]
    async fn list_responses_are_size_limited() {
        let list = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[]}"#;
        for (response, passes) in [(list.len(), true), (list.len() - 1, false)] {
            let limit = ResponseLimit {
                response,
                watch_line: 1,
            };
            let maps: Api<ConfigMap> = Api::default_namespaced(client(list.to_owned(), limit));
            let listed = maps.list(&ListParams::default()).await;
            assert_eq!(listed.is_ok(), passes, "{listed:?}");
        }
    }

    #[tokio::test]
    async fn lines_of_a_watch_are_size_limited_and_the_whole_is_not() {
        let event = r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#;
        for (watch_line, passes) in [(event.len(), true), (event.len() - 1, false)] {
            let limit = ResponseLimit {
                response: 1,
                watch_line,
            };
            let events = format!("{event}\n").repeat(3);
            let maps: Api<ConfigMap> = Api::default_namespaced(client(events, limit));
            let watch = maps.watch(&WatchParams::default(), "0").await.unwrap();
            let events: Result<Vec<_>, _> = watch.try_collect().await;
            match events {
                Ok(events) => assert!(passes && events.len() == 3, "{events:?}"),
                Err(error) => assert!(!passes, "{error:?}"),
            }
        }
    }

    #[test]
    fn a_line_is_measured_across_frames() {
        let measure = |length, data: &str| unfinished_line(length, data.as_bytes(), 4).ok();
        assert_eq!(measure(0, "abcd"), Some(4));
        assert_eq!(measure(4, "\nab"), Some(2));
        assert_eq!(measure(2, "cd\nabcd\n"), Some(0));
        assert_eq!(measure(2, "cde\n"), None);
        assert_eq!(measure(0, "a\nabcde"), None);
    }
}
