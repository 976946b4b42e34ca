//! Connects to the webhook: directly, through a proxy that forwards requests, or through a tunnel of a proxy.

use std::{error::Error, sync::Arc};

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_rustls::HttpsConnector;
use hyper_util::client::{
    legacy::connect::{HttpConnector, proxy::Tunnel},
    proxy::matcher::{Intercept, Matcher},
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tower::ServiceExt as _;

use crate::webhook_settings::{ProxyVariables, WebhookError, WebhookSettings, WebhookUrl};
use machinist_base::error_chain::chain;

type ConnectError = Box<dyn Error + Send + Sync>;
type Direct = HttpsConnector<HttpConnector>;

/// A connection over which HTTP is spoken.
pub(crate) trait Connection: Read + Write + Unpin + Send {}

impl<T: Read + Write + Unpin + Send> Connection for T {}

/// How connections are opened.
pub(crate) enum WebhookRoute {
    /// To the receiver itself.
    Direct(Direct),
    /// To a proxy, which gets the requests.
    Forward(Direct, Intercept),
    /// To the receiver through a proxy.
    Tunnel(HttpsConnector<Tunnel<Direct>>),
}

impl WebhookRoute {
    /// The route that the settings determine.
    pub(crate) fn of(settings: &WebhookSettings) -> Result<Self, WebhookError> {
        let url = &settings.url;
        let proxy = proxy(url, &settings.proxies)?;
        let is_https = |uri: &Uri| uri.scheme_str() == Some("https");
        let has_tls = url.is_https() || proxy.as_ref().is_some_and(|it| is_https(it.uri()));
        let tls = Arc::new(tls(has_tls, settings.authorities.as_deref())?);
        let mut plain = HttpConnector::new();
        // TLS is added by the connector around it.
        plain.enforce_http(false);
        let direct = HttpsConnector::from((plain, Arc::clone(&tls)));
        Ok(match proxy {
            None => Self::Direct(direct),
            Some(proxy) if !url.is_https() => Self::Forward(direct, proxy),
            Some(proxy) => {
                let mut tunnel = Tunnel::new(proxy.uri().clone(), direct);
                if let Some(auth) = proxy.basic_auth() {
                    tunnel = tunnel.with_auth(auth.clone());
                }
                Self::Tunnel(HttpsConnector::from((tunnel, tls)))
            }
        })
    }

    /// Opens a connection for requests to `uri`.
    pub(crate) async fn open(&self, uri: &Uri) -> Result<Box<dyn Connection>, ConnectError> {
        Ok(match self {
            Self::Direct(direct) => Box::new(direct.clone().oneshot(uri.clone()).await?),
            Self::Forward(direct, proxy) => {
                Box::new(direct.clone().oneshot(proxy.uri().clone()).await?)
            }
            Self::Tunnel(tunnel) => Box::new(tunnel.clone().oneshot(uri.clone()).await?),
        })
    }

    /// The proxy that gets the requests themselves.
    pub(crate) const fn proxy_of_request(&self) -> Option<&Intercept> {
        match self {
            Self::Forward(_, proxy) => Some(proxy),
            Self::Direct(_) | Self::Tunnel(_) => None,
        }
    }
}

/// The proxy for a URL; `None` if it is to be reached directly.
fn proxy(url: &WebhookUrl, variables: &ProxyVariables) -> Result<Option<Intercept>, WebhookError> {
    let (name, value) = match url.is_https() {
        true => ("HTTPS_PROXY", &variables.https),
        false => ("HTTP_PROXY", &variables.http),
    };
    let Some(value) = value.as_deref() else {
        return Ok(None);
    };
    let found = |no: &str| {
        let builder = Matcher::builder().http(value).https(value);
        builder.no(no).build().intercept(url.uri())
    };
    // The library ignores what it cannot parse.
    let any = found("").ok_or(WebhookError::Proxy(name))?;
    match any.uri().scheme_str() {
        Some("http" | "https") => {
            let no = variables.no.as_deref().unwrap_or_default();
            // The library takes `*` for names of hosts only.
            let is_all = no.split(',').any(|one| one.trim() == "*");
            Ok(found(no).filter(|_| !is_all))
        }
        _ => Err(WebhookError::Proxy(name)),
    }
}

/// The settings of TLS. Its provider is named, because the process has no default one.
fn tls(has_tls: bool, authorities: Option<&[u8]>) -> Result<ClientConfig, WebhookError> {
    let mut roots = match has_tls {
        true => system_roots(),
        false => RootCertStore::empty(),
    };
    if let Some(pem) = authorities {
        let mut count = 0;
        for one in CertificateDer::pem_slice_iter(pem) {
            let one = one.map_err(WebhookError::CertificatesMalformed)?;
            roots.add(one).map_err(WebhookError::CertificateUnusable)?;
            count += 1;
        }
        if count == 0 {
            return Err(WebhookError::NoCertificate);
        }
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(WebhookError::Tls)?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// The authorities of the system, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`; those of Mozilla if there are none, because
/// the image has none.
fn system_roots() -> RootCertStore {
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!("certificate authorities: {}", chain(error));
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    roots
}
