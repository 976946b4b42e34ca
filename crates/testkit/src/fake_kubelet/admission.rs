//! Admission of a pod with one container that requests devices of one resource.

use std::collections::BTreeSet;

use machinist_device_plugins::kubelet::api::v1beta1 as api;

use super::{FakeKubelet, registration::grpc_go_text};

impl FakeKubelet {
    /// Chooses this many devices and calls `Allocate`; an error is the reason with which the pod
    /// fails.
    pub async fn admit(
        &self,
        resource: &str,
        count: usize,
    ) -> Result<api::ContainerAllocateResponse, String> {
        let Some(known) = self.books().remove(resource) else {
            return Err(format!("cannot allocate unregistered device {resource}"));
        };
        if known.healthy.is_empty() {
            return Err(format!(
                "no healthy devices present; cannot allocate unhealthy devices {resource}"
            ));
        }
        let free: BTreeSet<_> = known
            .healthy
            .difference(&known.allocated)
            .cloned()
            .collect();
        if free.len() < count {
            return Err(format!(
                "requested number of devices unavailable for {resource}. Requested: {count}, Available: {}",
                free.len()
            ));
        }
        let stopped = || format!("endpoint of {resource} has been stopped");
        let mut chosen = Vec::new();
        if known.options.get_preferred_allocation_available {
            let preferred = match known.stopped {
                true => Err(stopped()),
                false => self.preferred(resource, &free, count).await,
            };
            chosen = preferred.map_err(|error| {
                format!("device plugin GetPreferredAllocation rpc failed with err: {error}")
            })?;
            chosen.retain(|id| free.contains(id));
        }
        // If the plugin prefers too few devices, others are added.
        let rest: Vec<_> = free.into_iter().filter(|id| !chosen.contains(id)).collect();
        chosen.extend(rest);
        chosen.truncate(count);
        if known.stopped {
            return Err(stopped());
        }
        let ids: Vec<_> = chosen.iter().map(String::as_str).collect();
        let answer = self.allocate(resource, &ids).await;
        let answer = answer.map_err(|status| grpc_go_text(&status))?;
        self.service.books.send_modify(|books| {
            let known = books.get_mut(resource);
            known
                .into_iter()
                .for_each(|known| known.allocated.extend(chosen.clone()));
        });
        Ok(answer)
    }

    async fn preferred(
        &self,
        resource: &str,
        free: &BTreeSet<String>,
        count: usize,
    ) -> Result<Vec<String>, String> {
        let one = api::ContainerPreferredAllocationRequest {
            available_device_i_ds: free.iter().cloned().collect(),
            must_include_device_i_ds: Vec::new(),
            allocation_size: i32::try_from(count).unwrap(),
        };
        let request = api::PreferredAllocationRequest {
            container_requests: vec![one],
        };
        let answer = self
            .plugin(resource)
            .get_preferred_allocation(request)
            .await;
        let answer = answer.map_err(|status| grpc_go_text(&status))?.into_inner();
        let first = answer.container_responses.into_iter().next();
        Ok(first.map(|one| one.device_i_ds).unwrap_or_default())
    }
}
