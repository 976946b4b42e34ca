//! Names of images by digest.

/// What precedes the 64 hexadecimal digits of a digest.
const ALGORITHM: &str = "sha256:";

/// The digest in a name, `sha256:` and 64 digits; `None` if the name has none.
pub fn digest_of(image: &str) -> Option<&str> {
    let (name, digest) = image.split_once('@')?;
    let hex = digest.strip_prefix(ALGORITHM)?;
    let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
    (is_name(name) && hex.len() == 64 && hex.bytes().all(is_hex)).then_some(digest)
}

/// Whether an image is named by digest: `host[:port]/[path/]name@sha256:DIGEST`. Another name could be another image
/// tomorrow.
pub fn is_by_digest(image: &str) -> bool {
    digest_of(image).is_some()
}

/// The characters of registries and repositories: nothing that would need quotes in a config file.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:/[]".contains(c);
    name.contains('/') && !name.starts_with('/') && !name.ends_with('/') && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_with_registry_and_digest_is_by_digest() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for name in ["quay.io/a/b", "127.0.0.1:5000/b", "[::1]:5000/b"] {
            let image = format!("{name}@{digest}");
            assert_eq!(digest_of(&image), Some(digest.as_str()), "{image}");
        }
        let wrong = [
            "quay.io/a/b:1".to_owned(),
            format!("b@{digest}"),
            format!("quay.io/a\"b@{digest}"),
            format!("quay.io/a/b@{digest}@{digest}"),
            format!("quay.io/a/b@{}", digest.to_uppercase()),
            format!("quay.io/a/b@{digest}0"),
        ];
        for image in wrong {
            assert!(!is_by_digest(&image), "{image}");
        }
    }
}
