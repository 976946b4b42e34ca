//! Requests with a time limit.

use std::time::Duration;

use tokio::time::timeout;
use tonic::{Response, Status};

use crate::error::CriError;

/// The answer to a request within `limit`.
pub(crate) async fn answered<T>(
    request: impl Future<Output = Result<Response<T>, Status>>,
    limit: Duration,
    what: impl Fn() -> String,
) -> Result<T, CriError> {
    match timeout(limit, request).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(CriError::Refused {
            what: what(),
            status: Box::new(status),
        }),
        Err(_) => Err(CriError::TimedOut {
            what: what(),
            limit,
        }),
    }
}
