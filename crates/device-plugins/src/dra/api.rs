//! The DRA gRPC contracts between kubelet and driver, generated from `proto/` at build time.

#![expect(
    missing_docs,
    clippy::too_many_lines,
    reason = "generated code; its documentation is in proto/"
)]

/// Preparing and unpreparing claims.
pub mod v1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// The same service for kubelets before 1.34; it uses the messages of [`v1`].
pub mod v1beta1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
}

/// The health of devices that are allocated to claims.
pub mod health {
    tonic::include_proto!("v1alpha1");
}
