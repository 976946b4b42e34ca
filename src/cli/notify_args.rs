//! Flags about the notifications of `machinist controller`.

use std::{
    convert::Infallible,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, anyhow};
use clap::Args;

use machinist_controller::{ProxyVariables, WebhookSettings, WebhookSource, WebhookUrl};
use machinist_rootfs::Root;

/// The longest URL that is read from a file.
const MAX_URL_BYTES: u64 = 8 * 1024;

/// The largest file of certificates: the bundle of a distribution has 200 KiB.
const MAX_AUTHORITIES_BYTES: u64 = 2 * 1024 * 1024;

/// Flags about notifications.
#[derive(Clone, Debug, Args)]
pub struct NotifyArgs {
    /// URL (https or http) that each step of a rollout is posted to, as JSON
    #[arg(
        long,
        value_name = "URL",
        env = "MACHINIST_NOTIFY_URL",
        hide_env_values = true,
        conflicts_with = "notify_url_file"
    )]
    pub notify_url: Option<SecretText>,
    /// File with that URL, such as one of a mounted Secret
    #[arg(long, value_name = "FILE")]
    pub notify_url_file: Option<PathBuf>,
    /// PEM file of certificate authorities for that URL, beside those of the system
    #[arg(long, value_name = "FILE")]
    pub notify_ca_file: Option<PathBuf>,
}

/// A text that is not shown.
#[derive(Clone)]
pub struct SecretText(String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

impl FromStr for SecretText {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.to_owned()))
    }
}

impl NotifyArgs {
    /// The receiver of notifications; `None` without a URL.
    pub(super) fn webhook(&self) -> anyhow::Result<Option<WebhookSource>> {
        if self.notify_url.is_none() && self.notify_url_file.is_none() {
            return Ok(None);
        }
        let flags = self.clone();
        let source = WebhookSource::new(move || Ok(flags.settings()?));
        Ok(Some(source.map_err(|error| {
            anyhow!(error).context("cannot prepare notifications")
        })?))
    }

    fn settings(&self) -> anyhow::Result<WebhookSettings> {
        let authorities = match &self.notify_ca_file {
            Some(file) => Some(read(file, MAX_AUTHORITIES_BYTES).context("--notify-ca-file")?),
            None => None,
        };
        let proxies = ProxyVariables {
            https: variable(["HTTPS_PROXY", "https_proxy"]),
            http: variable(["HTTP_PROXY", "http_proxy"]),
            no: variable(["NO_PROXY", "no_proxy"]),
        };
        Ok(WebhookSettings {
            url: self.url()?,
            proxies,
            authorities,
        })
    }

    fn url(&self) -> anyhow::Result<WebhookUrl> {
        if let Some(SecretText(url)) = &self.notify_url {
            return WebhookUrl::parse(url).context("--notify-url");
        }
        let file = self.notify_url_file.as_deref();
        let file = file.context("neither --notify-url nor --notify-url-file is set")?;
        let place = || format!("--notify-url-file {}", file.display());
        let bytes = read(file, MAX_URL_BYTES).with_context(place)?;
        let url = WebhookUrl::parse(&String::from_utf8_lossy(&bytes));
        url.with_context(place)
    }
}

/// The content of a file, from the working directory.
fn read(file: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    let whole = machinist_agent::plain(&std::path::absolute(file)?)?;
    Ok(Root::open(Path::new("/"))?.read(&whole, limit)?)
}

/// The first of these environment variables that is set; an empty one is not.
fn variable(names: [&str; 2]) -> Option<String> {
    let mut set = names.iter().filter_map(|name| std::env::var(name).ok());
    set.find(|value| !value.is_empty())
}
