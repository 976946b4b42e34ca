//! What the kubelet's plugin watcher is answered: who we are, and that we heard what became of it.

use std::fmt;

use tonic::{Request, Response, Status};

use super::api::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    registration_server::{Registration, RegistrationServer},
};

/// Where the plugin watcher looks, and dials every socket. The kubelet makes it when it starts.
pub const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";

/// Hears what became of a registration.
type Told = dyn Fn(Result<(), &str>) + Send + Sync;

/// One plugin, driver or other, that the watcher may find.
pub struct Registrar {
    info: PluginInfo,
    told: Box<Told>,
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.info;
        f.debug_struct("Registrar")
            .field("info", info)
            .finish_non_exhaustive()
    }
}

/// The service that answers `info`, and says what became of the registration: an error holds the kubelet's own
/// words. The kubelet tries again by itself, with growing pauses; one of 1.33 does so only where it refused the
/// version or the name, and else takes no notice before the socket is made anew.
pub fn registrar(
    info: PluginInfo,
    told: impl Fn(Result<(), &str>) + Send + Sync + 'static,
) -> RegistrationServer<Registrar> {
    let told = Box::new(told);
    RegistrationServer::new(Registrar { info, told })
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let became = status.plugin_registered.then_some(());
        (self.told)(became.ok_or(status.error.as_str()));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
