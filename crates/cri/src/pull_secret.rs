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

    /// The credentials for an image: those of the longest path that contains it. `None` for a public image.
    pub fn credentials(&self, image: &str) -> Option<AuthConfig> {
        let name = image.split('@').next().unwrap_or(image);
        let containing = self.auths.iter().filter(|(key, entry)| {
            let place = place_of(key);
            entry.is_set() && is_within(name, &place)
        });
        let (_, entry) = containing.max_by_key(|(key, _)| place_of(key).len())?;
        Some(AuthConfig {
            username: entry.username.clone(),
            password: entry.password.clone(),
            auth: entry.auth.clone(),
            server_address: String::new(),
            identity_token: entry.identitytoken.clone(),
        })
    }
}

impl fmt::Debug for PullSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.auths.keys()).finish()
    }
}

impl Entry {
    fn is_set(&self) -> bool {
        [&self.auth, &self.username, &self.identitytoken]
            .iter()
            .any(|text| !text.is_empty())
    }
}

/// Registry and path of a key, which may be a URL with the version of the registry's API.
fn place_of(key: &str) -> String {
    let key = key.strip_prefix("https://").unwrap_or(key);
    let key = key.strip_prefix("http://").unwrap_or(key);
    let key = key.trim_end_matches('/');
    let key = key
        .strip_suffix("/v1")
        .or(key.strip_suffix("/v2"))
        .unwrap_or(key);
    match key.strip_prefix(DEFAULT_REGISTRY_ALIAS) {
        Some(path) => format!("{DEFAULT_REGISTRY}{path}"),
        None => key.to_owned(),
    }
}

fn is_within(name: &str, place: &str) -> bool {
    let rest = name.strip_prefix(place);
    !place.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> PullSecret {
        let text = br#"{"auths": {
            "quay.io": {"auth": "cXVheTpw"},
            "quay.io/team": {"auth": "dGVhbTpw", "email": "x@example.com"},
            "https://index.docker.io/v1/": {"username": "u", "password": "secret-word"},
            "registry.example:5000": {"identitytoken": "token"},
            "empty.example": {}
        }, "credHelpers": {}}"#;
        PullSecret::parse(text).unwrap()
    }

    #[test]
    fn the_longest_path_that_contains_an_image_has_its_credentials() {
        let auth = |image: &str| secret().credentials(image).map(|found| found.auth);
        assert_eq!(auth("quay.io/a/b@sha256:0").as_deref(), Some("cXVheTpw"));
        assert_eq!(auth("quay.io/team/b@sha256:0").as_deref(), Some("dGVhbTpw"));
        assert_eq!(
            auth("quay.io/teams/b@sha256:0").as_deref(),
            Some("cXVheTpw")
        );
        for public in [
            "quay.io.example/a@sha256:0",
            "ghcr.io/a/b@sha256:0",
            "empty.example/a@sha256:0",
        ] {
            assert_eq!(auth(public), None, "{public}");
        }
        let docker = secret()
            .credentials("docker.io/library/a@sha256:0")
            .unwrap();
        assert_eq!(
            (docker.username.as_str(), docker.password.as_str()),
            ("u", "secret-word")
        );
        let token = secret()
            .credentials("registry.example:5000/a@sha256:0")
            .unwrap();
        assert_eq!(token.identity_token, "token");
    }

    #[test]
    fn no_message_quotes_the_secret() {
        let shown = format!("{:?} {:?}", secret(), secret().credentials("docker.io/a/b"));
        assert!(!shown.contains("secret-word"), "{shown}");
        let error = PullSecret::parse(br#"{"auths": {"a": {"auth": 12345}}}"#).unwrap_err();
        assert!(!error.to_string().contains("12345"), "{error}");
    }
}
