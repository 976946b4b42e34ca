//! Compiles the wire contracts in `proto/` without an installed `protoc`.

/// Each file is one contract; `src/kubelet/api.rs` includes what comes out.
const CONTRACTS: &[&str] = &["deviceplugin/v1beta1.proto", "podresources/v1.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(CONTRACTS, ["proto"])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_transport(false)
        .compile_fds(files)?;
    Ok(())
}
