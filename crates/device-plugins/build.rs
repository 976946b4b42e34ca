//! Compiles the wire contracts in the top directory `proto/` without an installed `protoc`.

use std::{env, fs, path::PathBuf};

/// The directory of the wire contracts.
const PROTO: &str = "../../proto";

/// Each file is one API; `src/kubelet/api.rs` includes the generated code.
const KUBELET: &[&str] = &[
    "deviceplugin/v1beta1.proto",
    "podresources/v1.proto",
    "pluginregistration/v1.proto",
];
/// `src/vendor_api/api.rs` includes this one.
const VENDOR: &[&str] = &["machinist/vendor/v1/vendor.proto"];
/// `src/dra/api.rs` includes these.
const DRA: &[&str] = &["dra/v1.proto", "drahealth/v1alpha1.proto"];
/// The older version of the DRA plugin API: its messages are those of the newer one.
const OLDER_DRA: &str = "dra/v1beta1.proto";
/// A vendor is not trusted: the size of a message is checked before it is decoded.
const GUARDED: &str = "crate::vendor_api::limited_codec::LimitedCodec";
/// The API whose services are compiled a second time, with answers that are passed on unchanged.
const RELAYED: &str = "deviceplugin/v1beta1.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../proto");
    let files = protox::compile(KUBELET, [PROTO])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_transport(false)
        .compile_fds(files)?;
    let files = protox::compile(VENDOR, [PROTO])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_transport(false)
        .btree_map(".")
        .build_server(false)
        .codec_path(GUARDED)
        .compile_fds(files)?;
    let files = protox::compile(DRA, [PROTO])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_transport(false)
        .compile_fds(files)?;
    let files = protox::compile([OLDER_DRA], [PROTO])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_transport(false)
        .extern_path(
            ".k8s.io.kubelet.pkg.apis.dra.v1beta1",
            "crate::dra::api::v1",
        )
        .compile_fds(files)?;
    relayed()?;
    build_vendor_messages()
}

/// The agent's side of the vendor API, which reads devices one by one.
#[expect(
    clippy::disallowed_methods,
    reason = "cargo's own directory is in no root"
)]
fn build_vendor_messages() -> Result<(), Box<dyn std::error::Error>> {
    let dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?).join("heard");
    fs::create_dir_all(&dir)?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_transport(false)
        .build_client(false)
        .out_dir(dir)
        .codec_path(GUARDED)
        .extern_path(".machinist.vendor.v1", "crate::vendor_api::api::v1")
        .extern_path(
            ".machinist.vendor.v1.FromVendor",
            "crate::vendor_api::lazy_messages::LazyFromVendor",
        )
        .compile_fds(protox::compile(VENDOR, [PROTO])?)?;
    Ok(())
}

/// All messages are those of the first pass but one: the closest path takes precedence.
#[expect(
    clippy::disallowed_methods,
    reason = "cargo's own directory is in no root"
)]
fn relayed() -> Result<(), Box<dyn std::error::Error>> {
    let dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?).join("relay");
    fs::create_dir_all(&dir)?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_transport(false)
        .out_dir(dir)
        .extern_path(".v1beta1", "crate::kubelet::api::v1beta1")
        .extern_path(
            ".v1beta1.AllocateRequest",
            "crate::kubelet::raw_message::RawMessage",
        )
        .extern_path(
            ".v1beta1.PreStartContainerRequest",
            "crate::kubelet::raw_message::RawMessage",
        )
        .extern_path(
            ".v1beta1.AllocateResponse",
            "crate::kubelet::raw_message::RawMessage",
        )
        .extern_path(
            ".v1beta1.PreferredAllocationResponse",
            "crate::kubelet::raw_message::RawMessage",
        )
        .compile_fds(protox::compile([RELAYED], [PROTO])?)?;
    Ok(())
}
