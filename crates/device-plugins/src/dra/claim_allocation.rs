//! Builds the container allocation of a claim, from device specs or from the sources' answers;
//! every path is checked against the machine's current state.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::{Instant, timeout_at};

use super::{claim_store::blocking, prepare_error::PrepareError};
use machinist_base::abs_path::AbsPath;
use machinist_device::{
    allocation::ContainerAllocation,
    allocator::{AllocateError, AllocationResponse, Allocators},
    dra::{
        cdi_edits,
        claim::ClaimName,
        claim_checkpoint::{
            self, ClaimError, PreparedClaim, PreparedDevice, SelectedDevice, ShareId,
        },
    },
    registry::follow,
};
use machinist_rootfs::Root;

/// The allocation backends, and the machine on which their paths are checked.
#[derive(Clone, Debug)]
pub(super) struct ClaimAllocator {
    pub(super) root: Root,
    pub(super) allocators: Allocators,
    /// The boot id; `None` where the root has none.
    pub(super) boot: Option<Arc<str>>,
}

impl ClaimAllocator {
    /// Prepares a claim with these devices, in the form that the checkpoint stores.
    pub(super) async fn prepared(
        &self,
        claim: &ClaimName,
        chosen: &[SelectedDevice],
        until: Instant,
    ) -> Result<PreparedClaim, PrepareError> {
        let mut parts = Vec::new();
        for batch in claim_checkpoint::group_by_request(chosen) {
            let grant = self.grant(claim, &batch, until).await?;
            if !grant.annotations.is_empty() {
                return Err(PrepareError::Unsupported {
                    claim: Box::new(claim.clone()),
                    request: batch.request,
                    why: "annotations are not supported with serve: dra",
                });
            }
            parts.push((batch, grant));
        }
        let mut grants = claim_checkpoint::join(claim, parts)?;
        let (root, of) = (self.root.clone(), claim.clone());
        let found = blocking(move || {
            let mut links = BTreeMap::new();
            for grant in grants.values_mut() {
                links.extend(find_nodes(&root, &of, grant)?);
            }
            Ok::<_, PrepareError>((grants, links))
        });
        let found = timeout_at(until, found).await;
        let (grants, links) = found.map_err(|_| PrepareError::TimedOut(claim.clone()))??;
        Ok(PreparedClaim {
            links,
            boot: self.boot.as_deref().map(str::to_owned),
            ..written(claim, chosen, &grants)
        })
    }

    async fn grant(
        &self,
        claim: &ClaimName,
        batch: &ShareId,
        until: Instant,
    ) -> Result<ContainerAllocation, PrepareError> {
        let resource = &*batch.resource;
        let unanswered = |source: AllocateError| PrepareError::Allocation {
            claim: Box::new(claim.clone()),
            request: batch.request.clone(),
            source,
        };
        let late = |_| PrepareError::TimedOut(claim.clone());
        let by = self.allocators.of(&resource.source);
        if !resource.asks.allocate {
            let mut grant = batch.grant().map_err(|source| ClaimError::Grant {
                claim: Box::new(claim.clone()),
                request: batch.request.clone(),
                source: Box::new(source),
            })?;
            // The paths may lead elsewhere than when the device spec was first checked.
            if let Ok(by) = by {
                let checked = timeout_at(until, by.recheck_paths(resource, vec![grant])).await;
                let checked = checked.map_err(late)?.map_err(unanswered)?;
                grant = checked.into_iter().next().unwrap_or_default();
            }
            return Ok(grant);
        }
        let by = by.map_err(unanswered)?;
        let answer = timeout_at(until, by.allocate(resource, (&batch.shares).into())).await;
        match answer.map_err(late)? {
            Ok(AllocationResponse::Grant(grant)) => Ok(grant),
            Ok(AllocationResponse::Wire(_)) => Err(PrepareError::Unsupported {
                claim: Box::new(claim.clone()),
                request: batch.request.clone(),
                why: "its source returned a device plugin response, which claims do not support",
            }),
            Err(source) => Err(unanswered(source)),
        }
    }
}

/// Builds the claim's checkpoint entry, which also holds the devices for the kubelet.
fn written(
    claim: &ClaimName,
    chosen: &[SelectedDevice],
    grants: &BTreeMap<String, ContainerAllocation>,
) -> PreparedClaim {
    let devices = chosen.iter().map(|one| {
        let grant = grants.get(&one.given.request);
        PreparedDevice {
            request: one.given.request.clone(),
            pool: one.given.pool.clone(),
            device: one.given.device.clone(),
            resource: one.resource.name.clone(),
            share: one.share.clone(),
            admin: one.given.admin,
            cdi: grant.map_or_else(Vec::new, |grant| named(claim, &one.given.request, grant)),
        }
    });
    let each = grants
        .iter()
        .map(|(request, grant)| (request.as_str(), grant));
    PreparedClaim {
        claim: claim.clone(),
        devices: devices.collect(),
        spec: cdi_edits::spec(claim, each),
        links: BTreeMap::new(),
        boot: None,
    }
}

/// Resolves the links among the nodes, since the runtime does not follow links; returns each link
/// with its node.
fn find_nodes(
    root: &Root,
    claim: &ClaimName,
    grant: &mut ContainerAllocation,
) -> Result<BTreeMap<AbsPath, AbsPath>, PrepareError> {
    let mut links = BTreeMap::new();
    for node in &mut grant.nodes {
        let path = AbsPath::new(node.host.as_str());
        let Ok(path) = path else { continue };
        let found = follow(root, &path).map_err(|source| PrepareError::NodeLookup {
            claim: Box::new(claim.clone()),
            node: node.host.clone(),
            source: Box::new(source),
        })?;
        let (found, _) = found.ok_or_else(|| PrepareError::NodeMissing {
            claim: Box::new(claim.clone()),
            node: node.host.clone(),
        })?;
        node.host = found.to_string();
        if found != path {
            links.insert(path, found);
        }
    }
    Ok(links)
}

/// The CDI device names of a request: the one of the claim's own spec, and those of other specs.
fn named(claim: &ClaimName, request: &str, grant: &ContainerAllocation) -> Vec<String> {
    let own = (!cdi_edits::is_empty(grant)).then(|| cdi_edits::qualified(claim, request));
    own.into_iter().chain(grant.cdi.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test lays out the machine")]
    fn claim_allocation_resolves_links_and_names_a_dangling_one() {
        let dir = tempfile::tempdir().unwrap();
        let by_id = dir.path().join("dev/serial/by-id");
        std::fs::create_dir_all(&by_id).unwrap();
        std::fs::write(dir.path().join("dev/ttyUSB0"), "").unwrap();
        std::os::unix::fs::symlink("../../ttyUSB0", by_id.join("usb-FTDI")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let claim = ClaimName {
            namespace: "lab".into(),
            name: "one".into(),
            uid: "u".into(),
        };
        let mut grant = ContainerAllocation::default();
        grant
            .nodes
            .push(machinist_device::allocation::AllocatedNode {
                host: "/dev/serial/by-id/usb-FTDI".into(),
                inside: "/dev/serial0".into(),
                permissions: "rw".into(),
            });
        let links = find_nodes(&root, &claim, &mut grant).unwrap();
        assert_eq!(grant.nodes[0].host, "/dev/ttyUSB0");
        let path = |text: &str| AbsPath::new(text).unwrap();
        let link = (path("/dev/serial/by-id/usb-FTDI"), path("/dev/ttyUSB0"));
        assert_eq!(links, [link].into());
        std::fs::remove_file(dir.path().join("dev/ttyUSB0")).unwrap();
        grant.nodes[0].host = "/dev/serial/by-id/usb-FTDI".into();
        let error = find_nodes(&root, &claim, &mut grant).unwrap_err();
        let reported = "host device node /dev/serial/by-id/usb-FTDI does not exist";
        assert!(error.to_string().contains(reported), "{error}");
    }
}
