//! One claim: judged, written down, and made ready for the runtime.

use std::{collections::BTreeMap, sync::Arc};

use tokio::time::{Instant, timeout_at};

use super::keeper::{Keeper, blocking};
use crate::{
    device::{
        Inventory,
        allocation::{AllocationError, Grant},
        answer::{Answer, AnswerError},
        dra::{
            claim::{Claim, ClaimName},
            edits,
            ports::PortError,
            prepared::{self, Batch, Chosen, Held, Prepared, Refused},
        },
        holders::Holders,
        registry::follow,
    },
    path::AbsPath,
    root::Root,
    telemetry::chain,
};

/// Why a claim is not prepared.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error(transparent)]
    Refused(Box<Refused>),
    #[error("claim {0} cannot be asked for")]
    Ask(Box<ClaimName>, #[source] PortError),
    #[error("claim {0} was not prepared in time: it is tried again")]
    TooLate(ClaimName),
    #[error("claim {claim}, request {request}: it is tried again")]
    Answer {
        claim: Box<ClaimName>,
        request: String,
        #[source]
        source: AnswerError,
    },
    #[error("claim {claim}, request {request}: {why}")]
    Cannot {
        claim: Box<ClaimName>,
        request: String,
        why: &'static str,
    },
    #[error("claim {claim}: node {node} of the host cannot be found: it is tried again")]
    Node {
        claim: Box<ClaimName>,
        node: String,
        #[source]
        source: Box<crate::root::RootError>,
    },
    #[error("claim {claim}: node {node} of the host does not exist: it is tried again")]
    Gone { claim: Box<ClaimName>, node: String },
    #[error("claim {0} cannot be written down: it is tried again")]
    Book(Box<ClaimName>, #[source] super::book::BookError),
}

impl From<Refused> for PrepareError {
    fn from(refused: Refused) -> Self {
        Self::Refused(Box::new(refused))
    }
}

impl Keeper {
    /// Makes a claim ready, or says why not. The same again gives the same, without asking anybody.
    pub(super) async fn prepare(
        &mut self,
        claim: &ClaimName,
        until: Instant,
    ) -> Result<Vec<Held>, String> {
        self.try_prepare(claim, until).await.map_err(|e| chain(&e))
    }

    async fn try_prepare(
        &mut self,
        claim: &ClaimName,
        until: Instant,
    ) -> Result<Vec<Held>, PrepareError> {
        if let Some(known) = self.book.claims.get(&claim.uid).cloned() {
            self.write_spec(&known).await?;
            return Ok(known.devices);
        }
        let asked = timeout_at(until, self.sweep.claims.get(&claim.namespace, &claim.name));
        let asked = asked
            .await
            .map_err(|_| PrepareError::TooLate(claim.clone()))?;
        let found = asked.map_err(|e| PrepareError::Ask(Box::new(claim.clone()), e))?;
        let found = found.ok_or_else(|| Refused::Gone(claim.clone()))?;
        let given = self.given(until).await;
        let inventory = self.inventory.borrow().clone();
        let chosen = self
            .choose(&inventory, (claim, &found), given, until)
            .await?;
        let grants = self.grants(claim, &chosen, until).await?;
        let prepared = self.recorded(claim, &chosen, grants).await?;
        self.book.claims.insert(claim.uid.clone(), prepared.clone());
        if let Err(error) = self.save().await {
            self.book.claims.remove(&claim.uid);
            return Err(PrepareError::Book(Box::new(claim.clone()), error));
        }
        self.write_spec(&prepared).await?;
        let count = prepared.devices.len();
        tracing::info!(claim = %claim, "claim {claim} is prepared: {count} device(s)");
        Ok(prepared.devices)
    }

    /// What containers have; none where the kubelet does not tell.
    async fn given(&self, until: Instant) -> Option<Holders> {
        match timeout_at(until, self.sweep.given.holders()).await {
            Ok(Ok(holders)) => Some(holders),
            Ok(Err(error)) => {
                tracing::debug!("{}", chain(&error));
                None
            }
            Err(_) => None,
        }
    }

    /// Judges the claim; a claim in the way that the cluster does not have any more, and no container either, is given
    /// back first.
    ///
    /// A kubelet that does not tell what containers have is no reason to let pods wait: devices go from one contract to
    /// the other once in their life, and what it tells is a net below that.
    async fn choose(
        &mut self,
        inventory: &Inventory,
        claim: (&ClaimName, &Claim),
        given: Option<Holders>,
        until: Instant,
    ) -> Result<Vec<Chosen>, PrepareError> {
        let told = given.is_some();
        let given = given.unwrap_or_default();
        let refused = match prepared::choose(inventory, &self.node, claim, &self.book, &given) {
            Ok(chosen) => return Ok(chosen),
            Err(refused) => refused,
        };
        if let Refused::Held { device, .. } = &refused
            && told
            && given.of_claimed(device).is_none()
            && let Some(other) = self.book.holder_of(device).map(|one| one.claim.clone())
            && timeout_at(until, self.sweep.is_gone(&other)).await == Ok(true)
        {
            let freed = self.unprepare(&other).await;
            freed.map_err(|e| PrepareError::Book(Box::new(other), e))?;
            let again = prepared::choose(inventory, &self.node, claim, &self.book, &given);
            return Ok(again?);
        }
        Err(refused.into())
    }

    /// What the containers of each request get.
    async fn grants(
        &self,
        claim: &ClaimName,
        chosen: &[Chosen],
        until: Instant,
    ) -> Result<BTreeMap<String, Grant>, PrepareError> {
        let mut parts = Vec::new();
        for batch in prepared::batches(chosen) {
            let grant = self.grant(claim, &batch, until).await?;
            if !grant.annotations.is_empty() {
                return Err(PrepareError::Cannot {
                    claim: Box::new(claim.clone()),
                    request: batch.request,
                    why: "by claim a container gets no annotations",
                });
            }
            parts.push((batch, grant));
        }
        let mut grants = prepared::join(claim, parts)?;
        let (root, of) = (self.root.clone(), claim.clone());
        blocking(move || {
            grants
                .values_mut()
                .try_for_each(|grant| find_nodes(&root, &of, grant))?;
            Ok(grants)
        })
        .await
    }

    async fn grant(
        &self,
        claim: &ClaimName,
        batch: &Batch,
        until: Instant,
    ) -> Result<Grant, PrepareError> {
        let misfit = |source: AllocationError| Refused::Grant {
            claim: Box::new(claim.clone()),
            request: batch.request.clone(),
            source: Box::new(source),
        };
        if !batch.resource.asks.allocate {
            return Ok(batch.grant().map_err(misfit)?);
        }
        let unanswered = |source| PrepareError::Answer {
            claim: Box::new(claim.clone()),
            request: batch.request.clone(),
            source,
        };
        let by = self
            .answerers
            .of(&batch.resource.source)
            .map_err(unanswered)?;
        let answer = timeout_at(until, by.allocate(&batch.resource, &batch.shares)).await;
        match answer.map_err(|_| PrepareError::TooLate(claim.clone()))? {
            Ok(Answer::Grant(grant)) => Ok(grant),
            Ok(Answer::Wire(_)) => Err(PrepareError::Cannot {
                claim: Box::new(claim.clone()),
                request: batch.request.clone(),
                why: "its source answers in the words of device plugins",
            }),
            Err(source) => Err(unanswered(source)),
        }
    }

    /// What is written down of a claim, and what the kubelet is told.
    async fn recorded(
        &self,
        claim: &ClaimName,
        chosen: &[Chosen],
        grants: BTreeMap<String, Grant>,
    ) -> Result<Prepared, PrepareError> {
        let devices = chosen.iter().map(|one| {
            let grant = grants.get(&one.given.request);
            Held {
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
        Ok(Prepared {
            claim: claim.clone(),
            devices: devices.collect(),
            spec: edits::spec(claim, each),
        })
    }

    async fn write_spec(&self, prepared: &Prepared) -> Result<(), PrepareError> {
        let (store, of) = (self.store.clone(), prepared.clone());
        let written = blocking(move || store.write_spec(&of)).await;
        written.map_err(|e| PrepareError::Book(Box::new(prepared.claim.clone()), e))
    }

    /// Writes specs anew whose nodes are others by now: a container that starts again finds the device where it is.
    pub(super) async fn refresh(&mut self, inventory: &Arc<Inventory>) {
        let mut changed = Vec::new();
        for prepared in self.book.claims.values() {
            if let Some(anew) = self.anew(inventory, prepared).await
                && anew.spec != prepared.spec
            {
                changed.push(anew);
            }
        }
        for anew in changed {
            let claim = anew.claim.clone();
            let before = self.book.claims.insert(claim.uid.clone(), anew.clone());
            let done = match self.save().await {
                Ok(()) => self.write_spec(&anew).await,
                Err(error) => Err(PrepareError::Book(Box::new(claim.clone()), error)),
            };
            match done {
                Ok(()) => {
                    tracing::info!(claim = %claim, "claim {claim}: its devices have other nodes now")
                }
                Err(error) => {
                    tracing::warn!("{}", chain(&error));
                    self.book
                        .claims
                        .extend(before.map(|before| (claim.uid, before)));
                }
            }
        }
    }

    /// The same claim as it would be prepared now; none where a device is away, or only its source can tell.
    async fn anew(&self, inventory: &Inventory, prepared: &Prepared) -> Option<Prepared> {
        let mut chosen = Vec::new();
        for held in &prepared.devices {
            let resource = inventory.resources.get(&held.resource)?;
            let (_, device) = resource.find(&held.share)?;
            if resource.asks.allocate || device.health != crate::device::Health::Healthy {
                return None;
            }
            chosen.push(Chosen {
                given: crate::device::dra::claim::Allocated {
                    request: held.request.clone(),
                    pool: held.pool.clone(),
                    device: held.device.clone(),
                    admin: held.admin,
                    tolerations: Vec::new(),
                },
                resource: Arc::clone(resource),
                share: held.share.clone(),
            });
        }
        let until = Instant::now();
        let grants = self.grants(&prepared.claim, &chosen, until).await.ok()?;
        self.recorded(&prepared.claim, &chosen, grants).await.ok()
    }
}

/// The runtime looks at what stands at a path itself and follows no link, so links are resolved here.
fn find_nodes(root: &Root, claim: &ClaimName, grant: &mut Grant) -> Result<(), PrepareError> {
    for node in &mut grant.nodes {
        let path = AbsPath::new(node.host.as_str());
        let Ok(path) = path else { continue };
        let found = follow(root, &path).map_err(|source| PrepareError::Node {
            claim: Box::new(claim.clone()),
            node: node.host.clone(),
            source: Box::new(source),
        })?;
        let (found, _) = found.ok_or_else(|| PrepareError::Gone {
            claim: Box::new(claim.clone()),
            node: node.host.clone(),
        })?;
        node.host = found.to_string();
    }
    Ok(())
}

/// How the runtime is told of a request: by its own device of the spec, and by those of others.
fn named(claim: &ClaimName, request: &str, grant: &Grant) -> Vec<String> {
    let own = (!edits::is_empty(grant)).then(|| edits::qualified(claim, request));
    own.into_iter().chain(grant.cdi.iter().cloned()).collect()
}

#[cfg(test)]
mod tests;
