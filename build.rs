//! Compiles the wire contracts in `proto/` without an installed `protoc`.

/// Each file is one contract; `src/kubelet/api.rs` includes what comes out.
const KUBELET: &[&str] = &["deviceplugin/v1beta1.proto", "podresources/v1.proto"];
/// `src/vendor/api.rs` includes this one.
const VENDOR: &[&str] = &["machinist/vendor/v1/vendor.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(KUBELET, ["proto"])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_transport(false)
        .compile_fds(files)?;
    let files = protox::compile(VENDOR, ["proto"])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_transport(false)
        .btree_map(".")
        // A vendor is not trusted: what it sends is counted before it is decoded.
        .codec_path("crate::vendor::codec::Guarded")
        .compile_fds(files)?;
    Ok(())
}
