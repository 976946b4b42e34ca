//! Compiles the wire contracts in the top directory `proto/` without an installed `protoc`.

/// The directory of the wire contracts.
const PROTO: &str = "../../proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../../proto/cri");
    println!("cargo:rerun-if-changed=../../proto/containerd");
    let files = protox::compile(["cri/v1.proto", "containerd/images.proto"], [PROTO])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_transport(false)
        // It holds passwords.
        .skip_debug(["AuthConfig"])
        .compile_fds(files)?;
    Ok(())
}
