//! Container images without a container engine: docker archives that containerd imports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::{WORK, lab};

/// The reference of the image every node has; see [`busybox`].
pub const PAUSE: &str = "localhost/pause:1";
/// Keeps a container running and ends immediately on SIGTERM, which process 1 would otherwise
/// ignore.
pub const WAIT_FOR_SIGTERM: &[&str] = &[
    "/bin/sh",
    "-c",
    "trap 'exit 0' TERM INT; while :; do sleep 86400 & wait $!; done",
];

/// A docker archive below the lab's work directory.
#[derive(Debug)]
pub struct Image {
    /// `localhost/NAME:1`, to be used with `imagePullPolicy: Never`.
    pub reference: String,
    pub archive: PathBuf,
}

/// The image of sandboxes and test pods: a static busybox that waits for SIGTERM.
pub fn busybox(name: &str) -> Image {
    build(name, &[], WAIT_FOR_SIGTERM)
}

/// An image of a static busybox and `files` (path, content, mode) that starts `entrypoint`.
pub fn build(name: &str, files: &[(&str, &[u8], u32)], entrypoint: &[&str]) -> Image {
    let dir = Path::new(WORK).join(format!("image-{name}"));
    let (tree, archive) = (dir.join("root"), dir.join("image.tar"));
    let reference = format!("localhost/{name}:1");
    if archive.exists() {
        fs::remove_dir_all(&dir).unwrap();
    }
    fs::create_dir_all(&tree).unwrap();
    let busybox = fs::read(lab().base.join("usr/bin/busybox")).unwrap();
    put(&tree, "/bin/busybox", &busybox, 0o755);
    let applets = Command::new(tree.join("bin/busybox"))
        .arg("--list")
        .output()
        .unwrap();
    for applet in String::from_utf8(applets.stdout)
        .unwrap()
        .lines()
        .filter(|a| *a != "busybox")
    {
        std::os::unix::fs::symlink("busybox", tree.join("bin").join(applet)).unwrap();
    }
    files
        .iter()
        .for_each(|(path, content, mode)| put(&tree, path, content, *mode));

    tar(&dir.join("layer.tar"), &tree, &["."]);
    let layer = hex(&fs::read(dir.join("layer.tar")).unwrap());
    let config = json!({
        "architecture": arch(), "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
    });
    let manifest =
        json!([{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]);
    fs::write(dir.join("config.json"), config.to_string()).unwrap();
    fs::write(dir.join("manifest.json"), manifest.to_string()).unwrap();
    tar(
        &archive,
        &dir,
        &["manifest.json", "config.json", "layer.tar"],
    );
    Image { reference, archive }
}

fn put(tree: &Path, path: &str, content: &[u8], mode: u32) {
    super::machine_files::write(tree, path, content, Some(mode)).unwrap();
}

fn tar(archive: &Path, dir: &Path, what: &[&str]) {
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--file",
    ]);
    assert!(
        tar.arg(archive)
            .arg("--directory")
            .arg(dir)
            .args(what)
            .status()
            .unwrap()
            .success()
    );
}

fn arch() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
