//! The manifests that are installed in a cluster, parsed as an API server would.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "tests read the shipped files, run the program, and fail by panicking"
)]

mod crds;
mod image;
mod manifests;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

/// A file or directory below `packaging/kubernetes`.
fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("packaging/kubernetes")
        .join(name)
}

/// The documents of a file.
fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).unwrap()
}

/// The resources of a kustomization, in its order.
fn resources(dir: &str) -> Vec<String> {
    let text = fs::read_to_string(shipped(dir).join("kustomization.yaml")).unwrap();
    let kustomization = documents(&text).remove(0);
    let names = kustomization["resources"].as_array().unwrap();
    names
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}
