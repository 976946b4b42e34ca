//! The kubelet's gRPC contracts, generated from `proto/` at build time.

#![expect(
    missing_docs,
    clippy::too_many_lines,
    reason = "generated code; its documentation is in proto/"
)]

/// The device plugin API with its registration.
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");

    /// The only version that kubelets support.
    pub const VERSION: &str = "v1beta1";
}

/// The device plugin API again, with [`Relayed`](super::raw_message::RawMessage) in place of the requests
/// of `Allocate` and `PreStartContainer` and the answers to `Allocate` and
/// `GetPreferredAllocation`.
pub mod relay {
    tonic::include_proto!("relay/v1beta1");
}

/// Plugin registration through the kubelet's plugin watcher.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// The podresources API: which container has which device.
pub mod v1 {
    tonic::include_proto!("v1");
}
