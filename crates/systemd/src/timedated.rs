//! timedated: whether the clock is synchronised.

use zbus::proxy::CacheProperties;

use super::{
    SystemdError, SystemdErrorKind,
    connection::{Reconnecting, within},
    dbus_proxies::TimeDateProxy,
};

/// timedated of one machine, over the bus. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Timedated {
    link: Reconnecting,
}

impl Timedated {
    pub(super) fn new(link: Reconnecting) -> Self {
        Self { link }
    }

    /// Whether the kernel's clock is synchronised; `None` if the machine has no timedated. Each
    /// call starts the service for half a minute, so call it rarely.
    pub async fn ntp_synchronized(&self) -> Result<Option<bool>, SystemdError> {
        let ask = async {
            let live = self.link.to_bus().await?;
            let proxy = TimeDateProxy::builder(live.connection())
                .cache_properties(CacheProperties::No)
                .build()
                .await?;
            within(proxy.ntp_synchronized()).await
        };
        match ask.await {
            Ok(synchronized) => Ok(Some(synchronized)),
            Err(SystemdErrorKind::NoManager(_) | SystemdErrorKind::Unsupported(_)) => Ok(None),
            Err(trouble) => Err(SystemdError::new("read the clock's state", trouble)),
        }
    }
}
