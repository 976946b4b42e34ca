//! The registration service for the kubelet's plugin watcher: it identifies the plugin and receives
//! the result of the registration.

use std::fmt;

use tonic::{Request, Response, Status};

use super::api::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    registration_server::{Registration, RegistrationServer},
};

/// The plugin watcher's directory; the watcher dials every socket in it. The kubelet creates it
/// when it starts.
pub const PLUGINS_REGISTRY_DIR: &str = "/var/lib/kubelet/plugins_registry";

/// Called with the result of a registration.
type ResultCallback = dyn Fn(Result<(), &str>) + Send + Sync;

/// One plugin or driver that the watcher may find.
pub struct Registrar {
    info: PluginInfo,
    on_result: Box<ResultCallback>,
}

impl fmt::Debug for Registrar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.info;
        f.debug_struct("Registrar")
            .field("info", info)
            .finish_non_exhaustive()
    }
}

/// Creates the service, which answers with `info` and passes the result to `on_result`; an error is the
/// kubelet's text. The kubelet retries by itself, with growing delays. Kubelet 1.33 does so only if
/// it refused the version or the name; otherwise it waits until the socket is created again.
pub fn registrar(
    info: PluginInfo,
    on_result: impl Fn(Result<(), &str>) + Send + Sync + 'static,
) -> RegistrationServer<Registrar> {
    let on_result = Box::new(on_result);
    RegistrationServer::new(Registrar { info, on_result })
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
        let result = status.plugin_registered.then_some(());
        (self.on_result)(result.ok_or(status.error.as_str()));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
