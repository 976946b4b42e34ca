//! A registry with small images, on the lab's bridge.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, mpsc},
    thread,
};

use nix::sched::{CloneFlags, setns};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::NETWORK;

/// The registry's host and port.
pub(super) const ADDRESS: &str = "10.99.0.1:5000";

/// User and password in base64, without which nothing is served.
pub(super) const CREDENTIALS: &str = "bGFiOnNlY3JldA==";

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

/// A running registry; it ends with the test's process.
#[derive(Clone, Default)]
pub(super) struct Registry(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Manifests and layers with their types, by digest.
    blobs: Mutex<BTreeMap<String, (&'static str, Vec<u8>)>>,
    is_silent: Mutex<bool>,
    changed: Condvar,
}

impl Registry {
    pub(super) fn start() -> Self {
        let registry = Self::default();
        let (bound, is_bound) = mpsc::channel();
        let serving = registry.clone();
        thread::spawn(move || {
            setns(File::open(NETWORK).unwrap(), CloneFlags::CLONE_NEWNET).unwrap();
            let listener = TcpListener::bind(ADDRESS).unwrap();
            bound.send(()).unwrap();
            for stream in listener.incoming() {
                let (registry, stream) = (serving.clone(), stream.unwrap());
                // A client that closes its connection ends only its own thread.
                thread::spawn(move || registry.serve(stream));
            }
        });
        is_bound.recv().unwrap();
        registry
    }

    /// Adds an image of one file, and returns its name by digest.
    pub(super) fn image(&self, name: &str) -> String {
        let layer = tar(name.as_bytes());
        let diff = self.add(LAYER_TYPE, layer.clone());
        let arch = if cfg!(target_arch = "aarch64") {
            "arm64"
        } else {
            "amd64"
        };
        let config = json!({"architecture": arch, "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [diff]}});
        let config = config.to_string().into_bytes();
        let config_digest = self.add(CONFIG_TYPE, config.clone());
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST_TYPE,
            "config": {"mediaType": CONFIG_TYPE, "digest": config_digest, "size": config.len()},
            "layers": [{"mediaType": LAYER_TYPE, "digest": diff, "size": layer.len()}]});
        let digest = self.add(MANIFEST_TYPE, manifest.to_string().into_bytes());
        format!("{ADDRESS}/lab/{name}@{digest}")
    }

    fn add(&self, media_type: &'static str, content: Vec<u8>) -> String {
        let digest = Sha256::digest(&content);
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let digest = format!("sha256:{hex}");
        let mut blobs = self.0.blobs.lock().unwrap();
        blobs.insert(digest.clone(), (media_type, content));
        digest
    }

    /// Whether requests are answered, or wait.
    pub(super) fn answers(&self, does: bool) {
        *self.0.is_silent.lock().unwrap() = !does;
        self.0.changed.notify_all();
    }

    /// Answers one request.
    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
        let request = lines.next()?.ok()?;
        let mut is_known = false;
        for line in lines.by_ref() {
            let line = line.ok()?;
            if line.is_empty() {
                break;
            }
            is_known |= line.contains(CREDENTIALS);
        }
        let silent = self.0.is_silent.lock().unwrap();
        drop(self.0.changed.wait_while(silent, |silent| *silent).unwrap());
        let (method, path) = request.split_once(' ')?;
        let digest = path.split(' ').next()?.rsplit('/').next()?;
        let blob = self.0.blobs.lock().unwrap().get(digest).cloned();
        let (code, head, body) = match (is_known, blob) {
            (false, _) => (
                "401 Unauthorized",
                "WWW-Authenticate: Basic realm=\"lab\"\r\n".to_owned(),
                Vec::new(),
            ),
            (true, None) if digest.is_empty() => ("200 OK", String::new(), Vec::new()),
            (true, None) => ("404 Not Found", String::new(), Vec::new()),
            (true, Some((media_type, content))) => {
                let head =
                    format!("Content-Type: {media_type}\r\nDocker-Content-Digest: {digest}\r\n");
                ("200 OK", head, content)
            }
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {code}\r\n{head}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).ok()?;
        if method != "HEAD" {
            stream.write_all(&body).ok()?;
        }
        Some(())
    }
}

/// An archive of one file `name` with this content, of less than a block.
fn tar(content: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, b"name");
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut archive = header.to_vec();
    archive.extend(content);
    archive.resize(2 * 512, 0);
    archive.extend([0; 1024]);
    archive
}
