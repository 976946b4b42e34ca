//! The kubelet's wire contracts, generated from `proto/` at build time.

#![expect(
    missing_docs,
    clippy::too_many_lines,
    reason = "generated code; its documentation is in proto/"
)]

/// Device plugins and their registration.
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");

    /// The only version that kubelets speak.
    pub const VERSION: &str = "v1beta1";
}

/// Device plugins once more, with [`Relayed`](super::relayed::Relayed) for the questions of `Allocate` and
/// `PreStartContainer`, and for the answers to `Allocate` and `GetPreferredAllocation`.
pub mod relay {
    tonic::include_proto!("relay/v1beta1");
}

/// How the kubelet's plugin watcher learns of a plugin.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// Who has which device.
pub mod v1 {
    tonic::include_proto!("v1");
}
