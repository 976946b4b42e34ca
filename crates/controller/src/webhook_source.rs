//! The webhook by the settings of the moment: the files of a mounted Secret change while the process runs.

use std::{error::Error, fmt, sync::Arc};

use crate::{webhook::Webhook, webhook_settings::WebhookSettings};
use machinist_base::error_chain::chain;

/// Why settings cannot be read.
type SettingsError = Box<dyn Error + Send + Sync>;

/// Reads the settings of the webhook before each notification. Cheap to clone.
#[derive(Clone)]
pub struct WebhookSource {
    read: Arc<dyn Fn() -> Result<WebhookSettings, SettingsError> + Send + Sync>,
    settings: WebhookSettings,
    webhook: Webhook,
    /// Whether it was logged that the settings cannot be used.
    is_reported: bool,
}

impl fmt::Debug for WebhookSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSource(..)")
    }
}

impl WebhookSource {
    /// Reads the settings for the first time.
    ///
    /// # Errors
    ///
    /// The settings cannot be read or used.
    pub fn new(
        read: impl Fn() -> Result<WebhookSettings, SettingsError> + Send + Sync + 'static,
    ) -> Result<Self, SettingsError> {
        let settings = read()?;
        let webhook = Webhook::new(settings.clone())?;
        Ok(Self {
            read: Arc::new(read),
            settings,
            webhook,
            is_reported: false,
        })
    }

    /// The webhook by the present settings. Settings that cannot be used leave the last ones in force.
    pub(crate) fn webhook(&mut self) -> &Webhook {
        match self.update() {
            Ok(()) => self.is_reported = false,
            Err(error) if !self.is_reported => {
                self.is_reported = true;
                let why = chain(&*error);
                tracing::warn!("the earlier settings of notifications remain in force: {why}");
            }
            Err(_) => {}
        }
        &self.webhook
    }

    fn update(&mut self) -> Result<(), SettingsError> {
        let settings = (self.read)()?;
        if settings != self.settings {
            self.webhook = Webhook::new(settings.clone())?;
            self.settings = settings;
            tracing::info!("the settings of notifications have changed");
        }
        Ok(())
    }
}
