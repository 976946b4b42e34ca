//! Devices: discovery, registration with the kubelet, claims, vendors and their plugins.

mod device_hardware;
mod device_holders;
mod device_kubelet_failures;
mod device_plugin;
mod device_registry;
mod device_watcher_registration;
mod dra;
mod kubelet;
mod proxy;
mod vendor;
