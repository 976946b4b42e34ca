//! The container runtime of the machine: pulls images through the CRI, and protects them from the kubelet's garbage
//! collection.
//!
//! A client is for one piece of work: it keeps the socket that it has opened, and a runtime that was restarted listens
//! on another one. [`pull_secret`] is pure.

pub mod api;
mod client;
mod containerd_labels;
mod error;
mod image_name;
pub mod pull_secret;
mod request;

pub use client::{LocalImage, Runtime, RuntimeKind};
pub use containerd_labels::ImageLabels;
pub use error::CriError;
pub use image_name::{digest_of, is_by_digest};
