//! Logs failed requests, and counts requests by their code.

use machinist_base::error_chain::chain;
use machinist_cluster::ClusterError;

/// Logs the first of several failures as a warning, and the others for debugging.
pub(crate) fn log_failure(error: &ClusterError, is_first: bool) {
    match is_first {
        true => tracing::warn!(reason = %error.reason(), "{}", chain(error)),
        false => tracing::debug!("{}", chain(error)),
    }
}

/// The status code of a response for metrics; `None` if there was none. All successes have the code 200.
pub(crate) fn response_code<T>(response: &Result<T, ClusterError>) -> Option<u16> {
    match response {
        Ok(_) => Some(200),
        Err(error) => Some(error.code()).filter(|code| *code != 0),
    }
}
