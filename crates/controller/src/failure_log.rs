//! Logs failed requests.

use machinist_base::error_chain::chain;
use machinist_cluster::ClusterError;

/// Logs the first of several failures as a warning, and the others for debugging.
pub(crate) fn log_failure(error: &ClusterError, is_first: bool) {
    match is_first {
        true => tracing::warn!(reason = %error.reason(), "{}", chain(error)),
        false => tracing::debug!("{}", chain(error)),
    }
}
