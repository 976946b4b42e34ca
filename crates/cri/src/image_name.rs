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

/// Whether an image is named by digest: `host[:port]/[path/]name@sha256:DIGEST`, as a registry accepts it. Another name
/// could be another image tomorrow.
pub fn is_by_digest(image: &str) -> bool {
    digest_of(image).is_some()
}

/// The characters of registries, nothing that would need quotes in a config file, and a repository.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let Some((registry, repository)) = name.split_once('/') else {
        return false;
    };
    let is_registry = !registry.is_empty() && registry.chars().all(plain);
    is_registry && repository.split('/').all(is_path_element)
}

/// The distribution specification's `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`: runtimes refuse any request for other names.
fn is_path_element(element: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let ends = element.starts_with(is_alphanumeric) && element.ends_with(is_alphanumeric);
    let is_separator =
        |text: &str| ["", ".", "_", "__"].contains(&text) || text.bytes().all(|c| c == b'-');
    ends && element.split(is_alphanumeric).all(is_separator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_with_registry_and_digest_is_by_digest() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        for name in [
            "quay.io/a/b",
            "127.0.0.1:5000/b",
            "[::1]:5000/b",
            "Quay.io/a.b/c__d_e/f--g",
        ] {
            let image = format!("{name}@{digest}");
            assert_eq!(digest_of(&image), Some(digest.as_str()), "{image}");
        }
        let wrong = [
            "quay.io/a/b:1".to_owned(),
            format!("b@{digest}"),
            format!("quay.io/a\"b@{digest}"),
            format!("quay.io/Team/b@{digest}"),
            format!("quay.io/a/b:1@{digest}"),
            format!("quay.io/a/.b@{digest}"),
            format!("quay.io/a-/b@{digest}"),
            format!("quay.io/a..b@{digest}"),
            format!("quay.io/a//b@{digest}"),
            format!("quay.io/@{digest}"),
            format!("/a/b@{digest}"),
            format!("quay.io/a/b@{digest}@{digest}"),
            format!("quay.io/a/b@{}", digest.to_uppercase()),
            format!("quay.io/a/b@{digest}0"),
        ];
        for image in wrong {
            assert!(!is_by_digest(&image), "{image}");
        }
    }
}
