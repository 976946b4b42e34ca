//! The APIs through which pods receive devices, and through which vendors offer them.
//!
//! [`kubelet`] serves the device-plugin API, [`dra`] the dynamic resource allocation API.
//! [`vendor_api`] is the server for vendors' drivers, [`plugin_proxy`] the kubelet's side for
//! unmodified device plugins. [`device_service`] joins them with the device registry.

pub mod authority_rewrite;
pub mod device_service;
pub mod dra;
pub mod kubelet;
#[cfg(test)]
mod log_counter;
pub mod places;
pub mod plugin_proxy;
pub mod protobuf_scan;

pub mod vendor_api;
