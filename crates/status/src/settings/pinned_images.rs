//! Defines the settings about images that are pulled in advance.

use std::time::Duration;

use super::extract::{FragmentReader, Scalar};
use crate::readiness::MinFree;
use machinist_base::abs_path::AbsPath;

/// How the images of PinnedImageSets are pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedImageSettings {
    /// `pinnedImages.runtime`: the socket of the container runtime. Default: the first socket of CRI-O and containerd that
    /// exists.
    pub runtime: Option<AbsPath>,
    /// `pinnedImages.minFree`: space that must be free on the file system of images before a pull begins. Default
    /// 20%: the kubelet removes images from 85% of use on.
    pub min_free: MinFree,
    /// `pinnedImages.parallel`: images that are pulled at once, 1 to 20. Default 3.
    pub parallel: u32,
    /// `pinnedImages.pullTimeout`: the time limit of one pull. Default 15 min: images of several GiB, three at once,
    /// over a slow line.
    pub pull_timeout: Duration,
    /// `pinnedImages.updateWait`: how long an update with a drain waits for images that are pulled for the first time.
    /// Default 5 min, half of the time after which a controller withdraws a grant that no cordon acknowledges; zero
    /// disables it.
    pub update_wait: Duration,
}

/// The sockets of CRI-O and containerd.
const DEFAULT_SOCKETS: [&str; 2] = ["/run/crio/crio.sock", "/run/containerd/containerd.sock"];

impl PinnedImageSettings {
    /// The sockets to try, in order.
    pub fn sockets(&self) -> Vec<AbsPath> {
        match &self.runtime {
            Some(socket) => vec![socket.clone()],
            None => DEFAULT_SOCKETS
                .iter()
                .filter_map(|path| AbsPath::new(*path).ok())
                .collect(),
        }
    }

    pub(super) fn read(read: &mut FragmentReader) -> Self {
        let some = |count: &u32| match count {
            1..=20 => Ok(()),
            _ => Err("a number from 1 to 20"),
        };
        let positive = |time: &Duration| match time.is_zero() {
            true => Err("a duration above 0, such as 15m"),
            false => Ok(()),
        };
        let minutes = |count: u64| Duration::from_secs(count * 60);
        Self {
            runtime: read.take("pinnedImages.runtime", RuntimeSocket(None)).0,
            min_free: read.take("pinnedImages.minFree", MinFree::Percent(20)),
            parallel: read.take_if("pinnedImages.parallel", 3, some),
            pull_timeout: read.take_if("pinnedImages.pullTimeout", minutes(15), positive),
            update_wait: read.take("pinnedImages.updateWait", minutes(5)),
        }
    }
}

/// The socket of a container runtime, or none, as in the kubelet's `containerRuntimeEndpoint`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RuntimeSocket(Option<AbsPath>);

impl Scalar for RuntimeSocket {
    fn expected() -> String {
        "auto, or unix:///absolute/path of a socket".to_owned()
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self(None)),
            text => {
                let path = text.strip_prefix("unix://").unwrap_or(text);
                AbsPath::new(path).ok().map(|path| Self(Some(path)))
            }
        }
    }

    fn show(&self) -> String {
        let path = self.0.as_ref();
        path.map_or_else(|| "auto".to_owned(), |path| format!("unix://{path}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_is_named_as_in_the_kubelets_configuration() {
        let path = |text: &str| RuntimeSocket::parse(text).map(|socket| socket.show());
        let crio = Some("unix:///run/crio/crio.sock".to_owned());
        assert_eq!(path("unix:///run/crio/crio.sock"), crio);
        assert_eq!(path("/run/crio/crio.sock"), crio);
        assert_eq!(path("auto").as_deref(), Some("auto"));
        for wrong in ["", "crio", "tcp://127.0.0.1:1", "npipe:////./pipe/x"] {
            assert_eq!(path(wrong), None, "{wrong}");
        }
    }
}
