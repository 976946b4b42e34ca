//! The image that `packaging/image/build` packs, with a placeholder program.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Packs `content` in `dir` under an `umask`; returns the archive's path and the output.
fn pack(dir: &Path, content: &str, umask: &str) -> (PathBuf, String) {
    let (program, archive) = (dir.join("program"), dir.join("image.tar"));
    fs::write(&program, content).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/image/build");
    let output = Command::new("sh")
        .args(["-c", "umask $1; shift; exec \"$@\"", "sh", umask])
        .arg(build)
        .args(["--binary", "program", "--output", "image.tar"])
        .current_dir(dir)
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    (archive, String::from_utf8(output.stdout).unwrap())
}

fn unpack(archive: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(archive).arg("-C").arg(to);
    assert!(tar.status().unwrap().success());
}

fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// The blob of a descriptor; its digest and size are checked.
fn blob(layout: &Path, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"].as_str().unwrap();
    let path = layout.join("blobs").join(digest.replace(':', "/"));
    let bytes = fs::read(path).unwrap();
    assert_eq!(sha256(&bytes), digest);
    assert_eq!(descriptor["size"], bytes.len());
    bytes
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

#[test]
fn the_container_image_is_reproducible() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, message) = pack(one.path(), "a", "022");
    let (second, again) = pack(two.path(), "a", "077");
    assert_eq!(fs::read(first).unwrap(), fs::read(&second).unwrap());
    assert_eq!(message, again);
    let (other, _) = pack(one.path(), "b", "022");
    assert_ne!(fs::read(other).unwrap(), fs::read(second).unwrap());
}

#[test]
fn every_digest_in_the_image_matches_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, message) = pack(dir.path(), "content", "022");
    let layout = dir.path().join("layout");
    unpack(&archive, &layout);
    let read = |name: &str| json(&fs::read(layout.join(name)).unwrap());
    assert_eq!(read("oci-layout")["imageLayoutVersion"], "1.0.0");

    let index = read("index.json");
    let named = &index["manifests"][0];
    assert!(
        message.contains(named["digest"].as_str().unwrap()),
        "{message}"
    );
    let manifest = json(&blob(&layout, named));
    let config = json(&blob(&layout, &manifest["config"]));
    assert_eq!(
        config["config"]["Entrypoint"],
        serde_json::json!(["/machinist"])
    );
    assert_eq!(config["config"]["User"], "0:0");

    let mut layer = Vec::new();
    let packed = blob(&layout, &manifest["layers"][0]);
    let mut plain = flate2::read::GzDecoder::new(&packed[..]);
    std::io::Read::read_to_end(&mut plain, &mut layer).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"][0], sha256(&layer));

    // The docker archive's manifest describes the same image.
    let docker = &read("manifest.json")[0];
    let path = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap();
        format!("blobs/{}", digest.replace(':', "/"))
    };
    assert_eq!(docker["Config"], path(&manifest["config"]));
    assert_eq!(docker["Layers"][0], path(&manifest["layers"][0]));

    fs::write(dir.path().join("layer.tar"), layer).unwrap();
    unpack(&dir.path().join("layer.tar"), &dir.path().join("root"));
    let files: Vec<_> = fs::read_dir(dir.path().join("root")).unwrap().collect();
    assert_eq!(files.len(), 1);
    let program = dir.path().join("root/machinist");
    assert_eq!(fs::read_to_string(&program).unwrap(), "content");
    assert_eq!(
        fs::metadata(program).unwrap().permissions().mode() & 0o777,
        0o755
    );
}
