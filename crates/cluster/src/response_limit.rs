//! Limits the size of responses from the API server.
//!
//! Watch streams are not limited: they have no end, and each of their events carries one object.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::http::{Request, Response};
use futures_util::TryFutureExt as _;
use http_body_util::{Either, Limited};
use kube::client::Body;
use tower::{Layer, Service};

/// Maximum size of one response in bytes. For scale: a page of 250 ordinary pods is about 5 MiB.
pub(super) const MAX_API_RESPONSE_BYTES: usize = 64 << 20;

/// Client middleware that turns a response body above this many bytes into an error.
pub(super) struct ResponseLimit(pub(super) usize);

impl<S> Layer<S> for ResponseLimit {
    type Service = LimitedService<S>;

    fn layer(&self, service: S) -> LimitedService<S> {
        LimitedService {
            service,
            bytes: self.0,
        }
    }
}

pub(super) struct LimitedService<S> {
    service: S,
    bytes: usize,
}

impl<S, B> Service<Request<Body>> for LimitedService<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<Either<Limited<B>, B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let watch = request.uri().query().is_some_and(is_watch);
        let bytes = self.bytes;
        let limit = move |answer: Response<B>| {
            answer.map(|body| match watch {
                true => Either::Right(body),
                false => Either::Left(Limited::new(body, bytes)),
            })
        };
        Box::pin(self.service.call(request).map_ok(limit))
    }
}

fn is_watch(query: &str) -> bool {
    query.split('&').any(|pair| pair == "watch=true")
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

    /// A client whose server answers every request with one object of this many bytes.
    fn client(object: String, limit: usize) -> Client {
        let answer = tower::service_fn(move |_: Request<Body>| {
            let body = Body::from(object.clone().into_bytes());
            async { Ok::<_, std::convert::Infallible>(Response::new(body)) }
        });
        ClientBuilder::new(answer, "default")
            .with_layer(&ResponseLimit(limit))
            .build()
    }

    #[tokio::test]
    async fn list_responses_are_size_limited_and_watches_are_not() {
        let list = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{},"items":[]}"#;
        for (limit, passes) in [(list.len(), true), (list.len() - 1, false)] {
            let maps: Api<ConfigMap> = Api::default_namespaced(client(list.to_owned(), limit));
            let listed = maps.list(&ListParams::default()).await;
            assert_eq!(listed.is_ok(), passes, "{listed:?}");
        }
        let event = r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#;
        let maps: Api<ConfigMap> = Api::default_namespaced(client(format!("{event}\n"), 1));
        let watch = maps.watch(&WatchParams::default(), "0").await.unwrap();
        let events: Vec<_> = watch.try_collect().await.unwrap();
        assert_eq!(events.len(), 1);
    }
}
