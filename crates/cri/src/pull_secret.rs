//! The node's pull secret: credentials of registries in docker's format, which the kubelet reads too.

use std::{collections::BTreeMap, fmt};

use serde::Deserialize;

use crate::api::v1::AuthConfig;

/// Where the kubelet finds it, and OpenShift's daemon writes it.
pub const PULL_SECRET_PATH: &str = "/var/lib/kubelet/config.json";

/// The registry of names without one.
const DEFAULT_REGISTRY: &str = "docker.io";
/// The name of that registry in files that docker wrote.
const DEFAULT_REGISTRY_ALIAS: &str = "index.docker.io";

/// The credentials by registry, or by registry and path.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub struct PullSecret {
    auths: BTreeMap<String, Entry>,
}

/// Credentials of one registry.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

/// The text is not a pull secret. The cause is left out, because it could quote a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{PULL_SECRET_PATH} is not a JSON document with `auths`")]
pub struct PullSecretError;

impl PullSecret {
    /// Parses the file.
    pub fn parse(text: &[u8]) -> Result<Self, PullSecretError> {
        serde_json::from_slice(text).map_err(|_| PullSecretError)
    }

    /// The credentials for an image, in the order in which they are tried; the kubelet selects and orders them by the
    /// same rules. Empty for a public image.
    pub fn credentials(&self, image: &str) -> Vec<AuthConfig> {
        let name = place_of(image.split('@').next().unwrap_or(image));
        let entries = self.auths.iter().filter(|(_, entry)| entry.is_set());
        let entries = entries.map(|(key, entry)| (place_of(key), entry));
        let mut matching: Vec<_> = entries
            .filter(|(place, _)| contains(place, &name))
            .collect();
        // A longer path before a shorter one, and a host before a pattern.
        matching.sort_by(|(one, _), (other, _)| other.cmp(one));
        let entries = matching.into_iter().map(|(_, entry)| entry);
        entries.map(Entry::to_auth).collect()
    }
}

impl fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.auths.keys()).finish()
    }
}

impl Entry {
    fn to_auth(&self) -> AuthConfig {
        AuthConfig {
            username: self.username.clone(),
            password: self.password.clone(),
            auth: self.auth.clone(),
            server_address: String::new(),
            identity_token: self.identitytoken.clone(),
        }
    }

    fn is_set(&self) -> bool {
        [&self.auth, &self.username, &self.identitytoken]
            .iter()
            .any(|text| !text.is_empty())
    }
}

/// Registry and path of an image or a key, which may be a URL with the version of the registry's API.
fn place_of(key: &str) -> String {
    let key = key.strip_prefix("https://").unwrap_or(key);
    let key = key.strip_prefix("http://").unwrap_or(key);
    let (host, path) = key.split_at(key.find('/').unwrap_or(key.len()));
    let rest = path.strip_prefix("/v1").or(path.strip_prefix("/v2"));
    let path = match rest {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
        _ => path,
    };
    let host = match host {
        DEFAULT_REGISTRY_ALIAS => DEFAULT_REGISTRY,
        _ => host,
    };
    format!("{host}{}", if path == "/" { "" } else { path })
}

/// Whether a place contains an image: as many labels in the host, each of which may be a pattern, the same port, and a
/// path that begins with the same text.
fn contains(place: &str, name: &str) -> bool {
    let [place, name] =
        [place, name].map(|text| text.split_at(text.find('/').unwrap_or(text.len())));
    let [(host, port), (name_host, name_port)] = [split_port(place.0), split_port(name.0)];
    let mut labels = host.split('.').zip(name_host.split('.'));
    !host.is_empty()
        && port == name_port
        && name.1.starts_with(place.1)
        && host.split('.').count() == name_host.split('.').count()
        && labels.all(|(pattern, label)| is_match(pattern.as_bytes(), label.as_bytes()))
}

/// Host and port; an IPv6 address without a port has colons too.
fn split_port(address: &str) -> (&str, &str) {
    match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
        _ => (address, ""),
    }
}

/// `*` in a pattern is any text, `?` any character.
fn is_match(pattern: &[u8], label: &[u8]) -> bool {
    match (pattern, label) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => {
            is_match(rest, label)
                || label
                    .split_first()
                    .is_some_and(|(_, label)| is_match(pattern, label))
        }
        ([one, pattern @ ..], [other, label @ ..]) => {
            (one == other || *one == b'?') && is_match(pattern, label)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> PullSecret {
        let text = br#"{"auths": {
            "quay.io": {"auth": "quay"},
            "quay.io/team": {"auth": "team", "email": "x@example.com"},
            "https://index.docker.io/v1/": {"username": "u", "password": "secret-word"},
            "*.registry.example": {"auth": "pattern"},
            "a.registry.example": {"auth": "host"},
            "http://node-?.port.example:5000/v2/": {"auth": "port"},
            "[::1]:5000": {"auth": "address"},
            "token.example:5000": {"identitytoken": "token"},
            "empty.example": {}
        }, "credHelpers": {}}"#;
        PullSecret::parse(text).unwrap()
    }

    #[test]
    fn credentials_of_an_image_are_those_that_the_kubelet_selects() {
        let auths = |image: &str| -> Vec<String> {
            let found = secret().credentials(&format!("{image}@sha256:0"));
            found.into_iter().map(|found| found.auth).collect()
        };
        for (image, expected) in [
            ("quay.io/a/b", &["quay"][..]),
            ("quay.io/team/b", &["team", "quay"]),
            ("quay.io/teams/b", &["team", "quay"]),
            ("a.registry.example/b", &["host", "pattern"]),
            ("b.registry.example/b", &["pattern"]),
            ("b.registry.example:5000/b", &[]),
            ("a.b.registry.example/b", &[]),
            ("registry.example/b", &[]),
            ("node-1.port.example:5000/v1/b", &["port"]),
            ("node-1.port.example/b", &[]),
            ("node-12.port.example:5000/b", &[]),
            ("[::1]:5000/b", &["address"]),
            ("[::1]/b", &[]),
            ("quay.io.example/a", &[]),
            ("ghcr.io/a/b", &[]),
            ("empty.example/a", &[]),
        ] {
            assert_eq!(auths(image), expected, "{image}");
        }
        for image in ["docker.io/library/a@sha256:0", "index.docker.io/a@sha256:0"] {
            let docker = secret().credentials(image);
            assert_eq!(docker.len(), 1, "{image}");
            assert_eq!(docker[0].username, "u");
            assert_eq!(docker[0].password, "secret-word");
        }
        let token = secret().credentials("token.example:5000/a@sha256:0");
        assert_eq!(token[0].identity_token, "token");
    }

    #[test]
    fn no_message_quotes_the_secret() {
        let shown = format!("{:?} {:?}", secret(), secret().credentials("docker.io/a/b"));
        assert!(!shown.contains("secret-word"), "{shown}");
        let error = PullSecret::parse(br#"{"auths": {"a": {"auth": 12345}}}"#).unwrap_err();
        assert!(!error.to_string().contains("12345"), "{error}");
    }
}
