//! The DRA gRPC services for the kubelet, in both versions of the contract.

use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::Arc,
};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use super::{
    api::{health as health_api, v1, v1beta1},
    device_health,
    kubelet_call::{ClaimCommand, ClaimResult, KubeletCall},
};
use crate::kubelet::InFlightAllocations;
use machinist_base::{rate_limit::LogRates, shutdown::Tasks};
use machinist_device::{
    Inventory,
    dra::claim::{ClaimName, is_uid},
};

/// All services of the driver. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct DraService {
    calls: mpsc::Sender<KubeletCall>,
    inventory: watch::Receiver<Arc<Inventory>>,
    node: Arc<str>,
    /// Claims being prepared: an owner that withdraws devices waits for them.
    preparing: InFlightAllocations,
    tasks: Tasks,
    log_rates: LogRates,
}

impl DraService {
    pub(super) fn new(
        calls: mpsc::Sender<KubeletCall>,
        (inventory, node): (watch::Receiver<Arc<Inventory>>, String),
        preparing: InFlightAllocations,
        tasks: &Tasks,
    ) -> Self {
        Self {
            calls,
            inventory,
            node: node.into(),
            preparing,
            tasks: tasks.clone(),
            log_rates: LogRates::default(),
        }
    }

    /// Sends the task a request for each claim, all concurrently.
    async fn call<T>(
        &self,
        asked: Vec<v1::Claim>,
        task: impl Fn(ClaimName, oneshot::Sender<ClaimResult<T>>) -> ClaimCommand,
    ) -> Result<BTreeMap<String, ClaimResult<T>>, Status> {
        let mut answers = BTreeMap::new();
        let mut coming = Vec::new();
        let ends = |()| Status::unavailable("the agent is stopping; the next agent continues");
        for claim in asked {
            let name = ClaimName {
                namespace: claim.namespace,
                name: claim.name,
                uid: claim.uid,
            };
            let uid = name.uid.clone();
            if !is_uid(&uid) {
                let why = format!("claim {name}: {uid:?} is not a valid UID");
                answers.insert(uid, Err(why));
                continue;
            }
            let (reply, answer) = oneshot::channel();
            let sent = self.calls.send(KubeletCall::new(task(name, reply))).await;
            sent.map_err(|_| ends(()))?;
            coming.push((uid, answer));
        }
        for (uid, answer) in coming {
            answers.insert(uid, answer.await.map_err(|_| ends(()))?);
        }
        Ok(answers)
    }

    async fn prepare(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
        // Preparation continues when the kubelet stops waiting, and counts as in progress until it
        // is answered.
        let task = |claim, reply| ClaimCommand::Prepare(claim, reply, self.preparing.begin());
        let answers = self.call(request.into_inner().claims, task).await?;
        let claims = answers.into_iter().map(|(uid, answer)| {
            let answer = match answer {
                Ok(devices) => v1::NodePrepareResourceResponse {
                    devices: devices
                        .into_iter()
                        .map(|held| v1::Device {
                            request_names: vec![held.request],
                            pool_name: held.pool,
                            device_name: held.device,
                            cdi_device_ids: held.cdi,
                            share_id: None,
                        })
                        .collect(),
                    error: String::new(),
                },
                Err(error) => v1::NodePrepareResourceResponse {
                    devices: Vec::new(),
                    error,
                },
            };
            (uid, answer)
        });
        let claims: HashMap<_, _> = claims.collect();
        Ok(Response::new(v1::NodePrepareResourcesResponse { claims }))
    }

    async fn unprepare(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1::NodeUnprepareResourcesResponse>, Status> {
        let answers = self
            .call(request.into_inner().claims, ClaimCommand::Unprepare)
            .await?;
        let claims = answers.into_iter().map(|(uid, answer)| {
            let error = answer.err().unwrap_or_default();
            (uid, v1::NodeUnprepareResourceResponse { error })
        });
        let claims: HashMap<_, _> = claims.collect();
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims }))
    }
}

/// Implements the same two methods for each version; the messages are the same.
macro_rules! speaks {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_plugin_server::DraPlugin for DraService {
            async fn node_prepare_resources(
                &self,
                request: Request<v1::NodePrepareResourcesRequest>,
            ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
                self.prepare(request).await
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<v1::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<v1::NodeUnprepareResourcesResponse>, Status> {
                self.unprepare(request).await
            }
        }
    };
}

speaks!(v1);
speaks!(v1beta1);

#[tonic::async_trait]
impl health_api::dra_resource_health_server::DraResourceHealth for DraService {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<health_api::NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<health_api::NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        // Capacity for one list in preparation while another is being sent.
        let (to, from) = mpsc::channel(1);
        let feed = device_health::feed(
            Arc::clone(&self.node),
            self.inventory.clone(),
            to,
            (self.tasks.token(), self.log_rates.clone()),
        );
        self.tasks.spawn("health of claimed devices", feed);
        Ok(Response::new(Box::pin(ReceiverStream::new(from))))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_claim_in_preparation_counts_until_the_response() {
        let (calls, mut called) = mpsc::channel(1);
        let (_inventory, inventory) = watch::channel(Arc::default());
        let preparing = InFlightAllocations::default();
        let reported = preparing.counts();
        let tasks = Tasks::new();
        let of_node = (inventory, "node".to_owned());
        let service = DraService::new(calls, of_node, preparing, &tasks);
        assert!(!reported.borrow().is_allocating(Duration::MAX));
        let asked = Request::new(v1::NodePrepareResourcesRequest {
            claims: vec![v1::Claim {
                namespace: "lab".to_owned(),
                name: "c".to_owned(),
                uid: "c-uid".to_owned(),
            }],
        });
        let asking = tokio::spawn(async move { service.prepare(asked).await.is_ok() });
        let Some(KubeletCall {
            task: ClaimCommand::Prepare(_, _, in_progress),
            ..
        }) = called.recv().await
        else {
            panic!("it is no prepare");
        };
        assert!(reported.borrow().is_allocating(Duration::ZERO));
        // The kubelet stops waiting, and the claim is prepared nevertheless.
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        assert!(reported.borrow().is_allocating(Duration::ZERO));
        drop(in_progress);
        assert!(!reported.borrow().is_allocating(Duration::ZERO));
        // The kubelet needs a moment to store the result.
        assert!(reported.borrow().is_allocating(Duration::from_secs(60)));
    }
}
