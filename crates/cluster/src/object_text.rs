//! Reads objects as text, for parsers that name the place of a mistake.

use kube::{api::GetParams, core::Request};

use super::{Cluster, ClusterError, ClusterErrorKind};
use machinist_ignition::Refusal;
use machinist_kube_api::keys;

/// The JSON text of an object, as the server returns it.
pub(super) async fn fetch_text(
    cluster: &Cluster,
    path: &str,
    name: &str,
    object: String,
) -> Result<String, ClusterError> {
    // The name becomes part of a URL, so anything else could address another object.
    if !keys::is_object_name(name) {
        return Err(ClusterError {
            act: "get",
            object,
            why: ClusterErrorKind::NoName,
        });
    }
    let get = |client: kube::Client| async move {
        let request = Request::new(path).get(name, &GetParams::default());
        let request = request.map_err(kube::Error::BuildRequest)?;
        client.request_text(request).await
    };
    cluster.request("get", object, get).await
}

/// Refusals that name the object. Lines and columns are omitted, because no user sees the server's text.
pub(super) fn without_lines(mut refusals: Vec<Refusal>, object: &str) -> Vec<Refusal> {
    for refusal in &mut refusals {
        refusal.file = Some(object.to_owned());
        (refusal.line, refusal.column) = (None, None);
    }
    refusals
}
