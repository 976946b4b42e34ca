//! Forwards the kubelet's requests about a plugin's resource to that plugin.

use std::{error::Error as _, future::Future, time::Duration};

use prost::{Message as _, bytes::Bytes};
use tokio::time::{error::Elapsed, timeout};
use tonic::{Code, Response, Status};

use super::{PluginProxy, allocate_policy, plugin_client::status_text, plugin_routes::PluginRoute};
use crate::{
    kubelet::{api::v1beta1 as api, raw_message::RawMessage},
    protobuf_scan::{CountedField, FieldCost, parts},
};
use machinist_base::abs_path::AbsPath;
use machinist_device::{
    Resource,
    allocation::PreferredRequest,
    allocator::{
        AllocateError, AllocationFuture, AllocationRequest, AllocationResponse, Allocator,
    },
    registry::{is_stable_name, path_for_container},
    source::ResourceSource,
};
use machinist_rootfs::Root;

/// How long to wait for a plugin that is just restarting. A failed allocation fails the pod for
/// good; on the other hand the kubelet admits no other pod while it waits.
const PLUGIN_WAIT_TIMEOUT: Duration = Duration::from_secs(5);
/// A plugin that is stopped closes its connection within this time after its last answer.
const CLOSE_GRACE: Duration = Duration::from_millis(500);
/// The kubelet's own limit for what is done before a container starts.
const PRE_START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the kubelet's request for a preferred allocation waits for the plugin's answer.
const PREFERRED_TIMEOUT: Duration = Duration::from_secs(2);

impl Allocator for PluginProxy {
    fn allocate<'a>(
        &'a self,
        resource: &'a Resource,
        wanted: AllocationRequest<'a>,
    ) -> AllocationFuture<'a, AllocationResponse> {
        Box::pin(async move {
            let own = || {
                let one = api::ContainerAllocateRequest {
                    devices_ids: wanted.ids.to_vec(),
                };
                let question = api::AllocateRequest {
                    container_requests: vec![one],
                };
                question.encode_to_vec()
            };
            let asked = RawMessage(wanted.wire.map_or_else(own, <[u8]>::to_vec).into());
            let question = |route: &PluginRoute| {
                let (mut client, question) = (route.connection.client(), asked.clone());
                async move { client.allocate(question).await }
            };
            let (answer, route) = self.ask(resource, Duration::MAX, question).await?;
            self.check_allocation(answer.0, resource, route).await
        })
    }

    fn preferred<'a>(
        &'a self,
        resource: &'a Resource,
        preference: PreferredRequest<'a>,
    ) -> AllocationFuture<'a, Vec<String>> {
        Box::pin(async move {
            // A preferred allocation is only advice: do not wait for a plugin that is unreachable.
            let route = self.routes.get(&vendor(resource), &resource.name);
            let route = route.ok_or_else(|| unreachable_error(resource))?;
            let one = api::ContainerPreferredAllocationRequest {
                available_device_i_ds: preference.available.to_vec(),
                must_include_device_i_ds: preference.must.to_vec(),
                allocation_size: i32::try_from(preference.size).unwrap_or(i32::MAX),
            };
            let question = api::PreferredAllocationRequest {
                container_requests: vec![one],
            };
            let (mut client, deadline) = (route.connection.client(), route.vendor.deadline);
            // Only advice, and the kubelet admits no other pod meanwhile.
            let deadline = deadline.min(PREFERRED_TIMEOUT);
            let request = client.get_preferred_allocation(question);
            let answer = checked_answer(resource, deadline, timeout(deadline, request).await)?;
            decode_preference(&answer.0, preference.size).map_err(|why| AllocateError::Refused {
                by: resource.source.clone(),
                why,
            })
        })
    }

    fn pre_start<'a>(
        &'a self,
        resource: &'a Resource,
        wanted: AllocationRequest<'a>,
    ) -> AllocationFuture<'a, ()> {
        Box::pin(async move {
            let own = || {
                let devices_ids = wanted.ids.to_vec();
                api::PreStartContainerRequest { devices_ids }.encode_to_vec()
            };
            let asked = RawMessage(wanted.wire.map_or_else(own, <[u8]>::to_vec).into());
            let question = |route: &PluginRoute| {
                let (mut client, question) = (route.connection.client(), asked.clone());
                async move { client.pre_start_container(question).await }
            };
            self.ask(resource, PRE_START_TIMEOUT, question)
                .await
                .map(drop)
        })
    }
}

impl PluginProxy {
    /// Calls the plugin that serves the resource; when that one turns out to have ended, the next
    /// one. Dropping the future cancels the call, which the plugin notices.
    async fn ask<T, F>(
        &self,
        resource: &Resource,
        longest: Duration,
        question: impl Fn(&PluginRoute) -> F,
    ) -> Result<(T, PluginRoute), AllocateError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let (vendor, mut ended) = (vendor(resource), None);
        loop {
            let route = self
                .routes
                .wait(&vendor, &resource.name, ended, PLUGIN_WAIT_TIMEOUT);
            let route = route.await.ok_or_else(|| unreachable_error(resource))?;
            let deadline = route.vendor.deadline.min(longest);
            let answer = timeout(deadline, question(&route)).await;
            if ended.is_none()
                && let Ok(Err(status)) = &answer
                && self.has_ended(status, resource, &route).await
            {
                ended = Some(route.connection.number);
                continue;
            }
            return Ok((checked_answer(resource, deadline, answer)?, route));
        }
    }

    /// Whether the plugin ended instead of answering. A plugin that shuts down orderly cancels open
    /// calls with a message of its own and then closes the connection.
    async fn has_ended(&self, status: &Status, resource: &Resource, route: &PluginRoute) -> bool {
        if is_ours(status) {
            return true;
        }
        let (vendor, number) = (vendor(resource), route.connection.number);
        matches!(status.code(), Code::Unavailable | Code::Cancelled)
            && self
                .routes
                .ends(&vendor, &resource.name, number, CLOSE_GRACE)
                .await
    }

    /// Forwards an answer that the vendor's file allows.
    async fn check_allocation(
        &self,
        answer: Bytes,
        resource: &Resource,
        route: PluginRoute,
    ) -> Result<AllocationResponse, AllocateError> {
        let (root, name, bytes) = (self.root.clone(), resource.name.clone(), answer.clone());
        let PluginRoute {
            vendor,
            path_checker,
            ..
        } = route;
        let look = move |path: &AbsPath| {
            let leads_to = canonical_path(&root, path);
            allocate_policy::ResolvedPath {
                is_stable: is_stable_name(&root, path),
                handed_out: path_for_container(&root, path, &leads_to).clone(),
                leads_to,
            }
        };
        let check = move || allocate_policy::check(&bytes, &vendor, &name, look);
        let checked = path_checker.check_path(check).await;
        let refused = match checked {
            Ok(Ok(links)) => {
                return Ok(AllocationResponse::Wire(allocate_policy::resolved(
                    &answer, &links,
                )));
            }
            Ok(Err(refused)) => refused.to_string(),
            Err(no_look) => no_look.to_string(),
        };
        Err(AllocateError::Refused {
            by: resource.source.clone(),
            why: refused,
        })
    }
}

/// The protobuf shape of a preferred allocation.
const PREFERRED_SHAPE: [CountedField; 1] = [CountedField(
    1,
    FieldCost::One,
    Some(&[CountedField(1, FieldCost::One, None)]),
)];

/// The ids that a plugin prefers. More than `size` of them are refused before they are decoded.
fn decode_preference(wire: &Bytes, size: usize) -> Result<Vec<String>, String> {
    let found = parts(wire, &PREFERRED_SHAPE).map_err(|error| error.to_string())?;
    // One for the container, and one for each device.
    if found > 1 + size {
        return Err(format!(
            "its preferred allocation has {found} parts for {size} device(s)"
        ));
    }
    let answer = api::PreferredAllocationResponse::decode(wire.clone());
    let answer =
        answer.map_err(|error| format!("its preferred allocation cannot be decoded: {error}"))?;
    let first = answer.container_responses.into_iter().next();
    Ok(first.map(|one| one.device_i_ds).unwrap_or_default())
}

/// The path on the machine with all links resolved, the last component included.
fn canonical_path(root: &Root, path: &AbsPath) -> AbsPath {
    let below = path.join("x").ok();
    let resolved = below.and_then(|below| root.canonical(&below).ok()?.parent());
    // A path that cannot be resolved counts as `/`.
    resolved.unwrap_or_else(AbsPath::root)
}

/// Whether the error comes from the connection rather than from the plugin: a call during which the
/// connection ends returns "cancelled" or, when half of it was written, "unknown"; a later one
/// cannot connect.
fn is_ours(status: &Status) -> bool {
    let codes = [Code::Unavailable, Code::Cancelled, Code::Unknown];
    codes.contains(&status.code()) && status.source().is_some()
}

fn checked_answer<T>(
    resource: &Resource,
    deadline: Duration,
    answer: Result<Result<Response<T>, Status>, Elapsed>,
) -> Result<T, AllocateError> {
    let by = || resource.source.clone();
    match answer {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) if is_ours(&status) => Err(AllocateError::Unreachable {
            by: by(),
            why: status_text(&status),
        }),
        Ok(Err(status)) => Err(AllocateError::Refused {
            by: by(),
            why: format!("{} ({:?})", status_text(&status), status.code()),
        }),
        Err(_) => Err(AllocateError::TimedOut {
            by: by(),
            after: deadline,
        }),
    }
}

fn vendor(resource: &Resource) -> String {
    match &resource.source {
        ResourceSource::Plugin(vendor) => vendor.clone(),
        ResourceSource::File(_) | ResourceSource::Vendor(_) => String::new(),
    }
}

fn unreachable_error(resource: &Resource) -> AllocateError {
    AllocateError::Unreachable {
        by: resource.source.clone(),
        why: format!("no plugin is registered for {}", resource.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_devices_are_counted_before_decoding() {
        let advice = |count: usize| {
            let one = api::ContainerPreferredAllocationResponse {
                device_i_ds: vec!["a".to_owned(); count],
            };
            let answer = api::PreferredAllocationResponse {
                container_responses: vec![one],
            };
            decode_preference(&answer.encode_to_vec().into(), 2)
        };
        assert_eq!(advice(2).unwrap(), ["a", "a"]);
        assert_eq!(
            advice(3).unwrap_err(),
            "its preferred allocation has 4 parts for 2 device(s)"
        );
        assert!(decode_preference(&Bytes::from_static(&[0xff]), 2).is_err());
        assert_eq!(decode_preference(&Bytes::new(), 2), Ok(Vec::new()));
    }
}
