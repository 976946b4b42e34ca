//! Settings of the webhook of notifications.

use std::fmt;

use http::{HeaderValue, Uri, uri::PathAndQuery};

/// The URL of a webhook, which is a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookUrl {
    uri: Uri,
    host: HeaderValue,
}

impl fmt::Debug for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookUrl(..)")
    }
}

/// A setting of the webhook that cannot be used. No message names the URL.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The URL cannot be parsed.
    #[error("the URL cannot be parsed; expected https://HOST/PATH or http://HOST/PATH")]
    NotAUrl,
    /// The URL has another scheme.
    #[error("the URL has the scheme {0:?}; expected https or http")]
    Scheme(String),
    /// The URL has a user name.
    #[error("the URL has a user name; expected https://HOST/PATH or http://HOST/PATH")]
    UserInfo,
    /// The certificates cannot be parsed.
    #[error("the file of certificate authorities cannot be parsed; expected PEM")]
    CertificatesMalformed(#[source] rustls::pki_types::pem::Error),
    /// A certificate is not one of an authority.
    #[error("a certificate authority cannot be used")]
    CertificateUnusable(#[source] rustls::Error),
    /// There is no certificate.
    #[error("the file of certificate authorities has no certificate; expected PEM")]
    NoCertificate,
    /// The environment variable is not a proxy.
    #[error("{0} is not the URL of a proxy; expected http://HOST:PORT or https://HOST:PORT")]
    Proxy(&'static str),
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] rustls::Error),
}

impl WebhookUrl {
    /// Parses a URL; white space around it is left out, such as the end of a line in a file.
    ///
    /// # Errors
    ///
    /// It is not a URL of https or http.
    pub fn parse(text: &str) -> Result<Self, WebhookError> {
        let uri: Uri = text.trim().parse().map_err(|_| WebhookError::NotAUrl)?;
        match uri.scheme_str() {
            Some("https" | "http") => {}
            Some(other) => return Err(WebhookError::Scheme(other.to_owned())),
            None => return Err(WebhookError::NotAUrl),
        }
        let authority = uri.authority().ok_or(WebhookError::NotAUrl)?.as_str();
        if authority.contains('@') {
            return Err(WebhookError::UserInfo);
        }
        let host = HeaderValue::from_str(authority).map_err(|_| WebhookError::NotAUrl)?;
        match uri.host() {
            Some("") | None => Err(WebhookError::NotAUrl),
            Some(_) => Ok(Self { uri, host }),
        }
    }

    /// Whether it needs TLS.
    pub(crate) fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    pub(crate) const fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Path and query, as a request to the receiver itself names it.
    pub(crate) fn path(&self) -> Uri {
        let path = self.uri.path_and_query().cloned();
        Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")))
    }

    pub(crate) fn host_header(&self) -> HeaderValue {
        self.host.clone()
    }
}

/// Environment variables about proxies, in upper or lower case.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ProxyVariables {
    /// `HTTPS_PROXY`, for URLs of https.
    pub https: Option<String>,
    /// `HTTP_PROXY`, for URLs of http.
    pub http: Option<String>,
    /// `NO_PROXY`: hosts, domains and networks that are reached without a proxy.
    pub no: Option<String>,
}

impl fmt::Debug for ProxyVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // They may hold a password.
        f.write_str("ProxyVariables(..)")
    }
}

/// How the webhook is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    /// The URL.
    pub url: WebhookUrl,
    /// The proxies.
    pub proxies: ProxyVariables,
    /// Certificates of further authorities as PEM, beside those of the system.
    pub authorities: Option<Vec<u8>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_another_kind_is_refused_without_being_named() {
        for (text, expected) in [
            ("slack://token@T000/B000", "scheme \"slack\""),
            ("ftp://host/secret", "scheme \"ftp\""),
            ("hooks.example.com/secret", "cannot be parsed"),
            ("https:///secret", "cannot be parsed"),
            ("https://a b/secret", "cannot be parsed"),
            ("", "cannot be parsed"),
            ("https://user:secret@host/", "user name"),
        ] {
            let error = WebhookUrl::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(
                !error.contains("secret") && !error.contains("token"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_url_is_trimmed_and_not_shown() {
        let url = WebhookUrl::parse(" https://hooks.example.com:8443/a/secret?b=c\n").unwrap();
        assert_eq!(url.path(), "/a/secret?b=c");
        assert_eq!(url.host_header(), "hooks.example.com:8443");
        assert!(url.is_https());
        assert!(!format!("{url:?}").contains("secret"));
        assert_eq!(WebhookUrl::parse("http://a").unwrap().path(), "/");
    }
}
