//! Requests to vendors, each with a deadline: allocations for the kubelet, and quiesce and resume
//! orders for updates and reboots.

use std::{collections::BTreeMap, time::Duration};

use tokio::{sync::oneshot, task::JoinSet, time::timeout};

use super::{
    VendorsHandle,
    api::v1::{self as api, answer, question},
    device_spec::{self, TemplateVars},
    limits::{PRE_START_TIMEOUT, PREFERRED_TIMEOUT},
    path_policy::PathPolicy,
    supervisor::VendorHandle,
    task_messages::{RequestDropped, VendorRequest, millis},
};
use machinist_base::text::is_misleading;
use machinist_device::{
    Inventory, Resource,
    allocation::{self, ContainerAllocation, PreferredRequest},
    allocator::{
        AllocateError, AllocationFuture, AllocationRequest, AllocationResponse, Allocator,
    },
    source::ResourceSource,
};

/// Limit, in characters, for a vendor's error text; the kubelet shows it in the pod's events.
const MAX_ERROR_TEXT_CHARS: usize = 1024;
/// How long to wait for a vendor's manager to exist; after the agent starts this takes
/// milliseconds.
const VENDOR_HANDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// How many containers' paths are checked in one go: few enough that a timeout means a file system
/// that hangs.
const MAX_CONTAINERS_PER_LOOKUP: usize = 1000;
const BUSY_MESSAGE: &str = "too many requests are pending";

/// The outcome of an order to one vendor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderOutcome {
    /// The vendor confirmed it.
    Done,
    /// The vendor is not connected, so no program of it can hold the hardware open.
    Disconnected,
    /// The vendor refused, with its own text.
    Refused(String),
    /// The vendor did not answer within the deadline.
    TimedOut,
}

/// A request about one resource of one vendor.
struct VendorCall<'a> {
    vendor_handle: VendorHandle,
    source: &'a ResourceSource,
}

impl VendorsHandle {
    /// Orders every vendor to release its hardware, and waits until each has confirmed or
    /// `deadline` has passed. Vendors that connect later receive the order when they connect.
    pub async fn quiesce(&self, why: &str, deadline: Duration) -> BTreeMap<String, OrderOutcome> {
        let question = question::Asked::Quiesce(api::Quiesce {
            why: why.to_owned(),
        });
        self.quiesced.send_replace(Some(why.to_owned()));
        self.order(question, deadline).await
    }

    /// Whether vendors have been ordered to release their hardware and not yet to resume.
    pub fn are_quiesced(&self) -> bool {
        self.quiesced.borrow().is_some()
    }

    /// Tells every vendor that it may use its hardware again, and waits as
    /// [`VendorsHandle::quiesce`] does.
    pub async fn resume(&self, deadline: Duration) -> BTreeMap<String, OrderOutcome> {
        self.quiesced.send_replace(None);
        let question = question::Asked::Resume(api::Resume {});
        self.order(question, deadline).await
    }

    /// Sends the order to all vendors at once; each has the whole deadline.
    async fn order(
        &self,
        question: question::Asked,
        deadline: Duration,
    ) -> BTreeMap<String, OrderOutcome> {
        let mut waiting = JoinSet::new();
        for (name, vendor_handle) in self.handles().iter() {
            let (name, vendor_handle, question) =
                (name.clone(), vendor_handle.clone(), question.clone());
            waiting.spawn(async move {
                let result =
                    timeout(deadline, send_and_wait(&vendor_handle, question, deadline)).await;
                (
                    name,
                    result.map_or(OrderOutcome::TimedOut, OrderOutcome::of),
                )
            });
        }
        let all = waiting.join_all().await;
        all.into_iter().collect()
    }

    /// Finds the vendor's manager. Just after the agent starts it may not exist yet although the
    /// kubelet already knows the devices, so this waits up to `VENDOR_HANDLE_TIMEOUT`.
    async fn vendor_call<'a>(
        &self,
        source: &'a ResourceSource,
    ) -> Result<VendorCall<'a>, AllocateError> {
        let name = match source {
            ResourceSource::Vendor(name) => name.as_str(),
            ResourceSource::File(_) | ResourceSource::Plugin(_) => "",
        };
        let mut handles = self.handles.clone();
        let there = handles.wait_for(|handles| handles.contains_key(name));
        let found = timeout(VENDOR_HANDLE_TIMEOUT, there).await;
        let found = found.ok().and_then(Result::ok);
        match found.and_then(|handles| handles.get(name).cloned()) {
            Some(vendor_handle) => Ok(VendorCall {
                vendor_handle,
                source,
            }),
            None => Err(AllocateError::Unreachable {
                by: source.clone(),
                why: "no file declares it".to_owned(),
            }),
        }
    }
}

/// Shortens a vendor's text to one line of limited length.
fn one_line(given: &str) -> String {
    let line = given.chars();
    let line = line.map(|c| if is_misleading(c) { ' ' } else { c });
    let mut left = MAX_ERROR_TEXT_CHARS;
    line.take_while(|c| {
        let fits = left >= c.len_utf8();
        left = left.saturating_sub(c.len_utf8());
        fits
    })
    .collect()
}

/// Sends a question and waits for the answer; the caller applies the timeout. Safe to drop:
/// dropping it cancels the question.
async fn send_and_wait(
    vendor_handle: &VendorHandle,
    question: question::Asked,
    deadline: Duration,
) -> Result<answer::Answer, RequestDropped> {
    let (reply, answer) = oneshot::channel();
    let request = VendorRequest {
        question,
        deadline_ms: millis(deadline),
        reply,
    };
    let undeclared = || RequestDropped::Disconnected("it is no longer declared".to_owned());
    vendor_handle
        .requests
        .send(request)
        .await
        .map_err(|_| undeclared())?;
    answer.await.unwrap_or_else(|_| Err(undeclared()))
}

impl OrderOutcome {
    fn of(answer: Result<answer::Answer, RequestDropped>) -> Self {
        match answer {
            Ok(answer::Answer::Done(_)) => Self::Done,
            Ok(answer::Answer::Error(why)) => Self::Refused(one_line(&why)),
            Ok(_) => Self::Refused("its answer is for another request".to_owned()),
            Err(RequestDropped::Disconnected(_)) => Self::Disconnected,
            Err(RequestDropped::Busy) => Self::Refused(BUSY_MESSAGE.to_owned()),
        }
    }
}

impl VendorCall<'_> {
    fn deadline(&self) -> Duration {
        self.vendor_handle.vendor.borrow().deadline
    }

    fn unreachable(&self, why: impl Into<String>) -> AllocateError {
        AllocateError::Unreachable {
            by: self.source.clone(),
            why: why.into(),
        }
    }

    fn refused(&self, why: impl AsRef<str>) -> AllocateError {
        AllocateError::Refused {
            by: self.source.clone(),
            why: one_line(why.as_ref()),
        }
    }

    fn mismatched_answer(&self) -> AllocateError {
        self.refused("its answer is for another request")
    }

    async fn request(
        &self,
        question: question::Asked,
        deadline: Duration,
    ) -> Result<answer::Answer, AllocateError> {
        match timeout(
            deadline,
            send_and_wait(&self.vendor_handle, question, deadline),
        )
        .await
        {
            Err(_) => Err(self.timed_out(deadline)),
            Ok(Ok(answer::Answer::Error(why))) => Err(self.refused(why)),
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(RequestDropped::Disconnected(why))) => Err(self.unreachable(why)),
            Ok(Err(RequestDropped::Busy)) => Err(self.unreachable(BUSY_MESSAGE)),
        }
    }

    fn timed_out(&self, after: Duration) -> AllocateError {
        AllocateError::TimedOut {
            by: self.source.clone(),
            after,
        }
    }

    /// Checks paths on the machine, on a blocking thread.
    async fn check_on_machine<T: Send + 'static>(
        &self,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, AllocateError> {
        let checked = self.vendor_handle.path_checker.check_path(look).await;
        checked.map_err(|why| self.refused(why.to_string()))
    }

    /// The merged device specs of these devices, if each device has one; an error when one may no
    /// longer be handed out.
    async fn allocate_from_specs(
        &self,
        handle: &VendorsHandle,
        resource: &Resource,
        ids: &[String],
    ) -> Option<Result<AllocationResponse, AllocateError>> {
        let grant = merged_specs(resource, ids)?;
        let rechecked = self.recheck(handle, resource, vec![grant]).await;
        let only = |grants: Vec<_>| grants.into_iter().next().unwrap_or_default();
        Some(rechecked.map(|grants| AllocationResponse::Grant(only(grants))))
    }

    /// Checks the paths of device specs again, against the machine's current state.
    async fn recheck(
        &self,
        handle: &VendorsHandle,
        resource: &Resource,
        grants: Vec<ContainerAllocation>,
    ) -> Result<Vec<ContainerAllocation>, AllocateError> {
        let mut checked = Vec::with_capacity(grants.len());
        let mut left = grants.into_iter();
        loop {
            let some: Vec<_> = left.by_ref().take(MAX_CONTAINERS_PER_LOOKUP).collect();
            if some.is_empty() {
                return Ok(checked);
            }
            let (root, vendor) = (
                handle.root.clone(),
                self.vendor_handle.vendor.borrow().clone(),
            );
            let name = resource.name.clone();
            let look = move || {
                let mut policy = PathPolicy::new(Some(&root), &vendor, name.domain());
                let all = some.into_iter().map(|grant| policy.granted(grant));
                all.collect::<Result<Vec<_>, _>>()
            };
            let seen = self.check_on_machine(look).await?;
            let seen = seen.map_err(|why| self.refused(format!("its recipe was rejected: {why}")));
            checked.extend(seen?);
        }
    }

    /// Asks the vendor for the allocation and checks its answer by the same rules as its device
    /// specs.
    async fn grant(
        &self,
        handle: &VendorsHandle,
        resource: &Resource,
        ids: &[String],
    ) -> Result<AllocationResponse, AllocateError> {
        let question = question::Asked::Allocate(api::Allocate {
            resource: resource.name.to_string(),
            devices: ids.to_vec(),
        });
        let answer::Answer::Recipe(recipe) = self.request(question, self.deadline()).await? else {
            return Err(self.mismatched_answer());
        };
        let (root, vendor) = (
            handle.root.clone(),
            self.vendor_handle.vendor.borrow().clone(),
        );
        let name = resource.name.clone();
        let check = move || {
            let mut bounds = PathPolicy::new(Some(&root), &vendor, name.domain());
            device_spec::check(&mut bounds, recipe, TemplateVars::Plain, true)
        };
        match self.check_on_machine(check).await? {
            Ok(checked) => Ok(AllocationResponse::Grant(checked.into_grant())),
            Err((_, why)) => Err(self.refused(format!("its answer was rejected: {why}"))),
        }
    }
}

/// The container allocation made of the device specs, if every device has one.
fn merged_specs(resource: &Resource, ids: &[String]) -> Option<ContainerAllocation> {
    let has_recipe = |id: &String| {
        resource
            .find(id)
            .is_some_and(|(_, device)| device.recipe.is_some())
    };
    if !ids.iter().all(has_recipe) {
        return None;
    }
    // Whether these devices may be allocated was checked before the vendor was asked.
    allocation::allocate(&Inventory::default(), resource, ids).ok()
}

impl Allocator for VendorsHandle {
    fn allocate<'a>(
        &'a self,
        resource: &'a Resource,
        wanted: AllocationRequest<'a>,
    ) -> AllocationFuture<'a, AllocationResponse> {
        Box::pin(async move {
            let ids = wanted.ids;
            let call = self.vendor_call(&resource.source).await?;
            match call.grant(self, resource, ids).await {
                Err(AllocateError::Unreachable { by, why }) => {
                    let answer = call.allocate_from_specs(self, resource, ids).await;
                    answer.unwrap_or(Err(AllocateError::Unreachable { by, why }))
                }
                answer => answer,
            }
        })
    }

    fn recheck_paths<'a>(
        &'a self,
        resource: &'a Resource,
        grants: Vec<ContainerAllocation>,
    ) -> AllocationFuture<'a, Vec<ContainerAllocation>> {
        Box::pin(async move {
            let call = self.vendor_call(&resource.source).await?;
            call.recheck(self, resource, grants).await
        })
    }

    fn preferred<'a>(
        &'a self,
        resource: &'a Resource,
        wish: PreferredRequest<'a>,
    ) -> AllocationFuture<'a, Vec<String>> {
        Box::pin(async move {
            let call = self.vendor_call(&resource.source).await?;
            let question = question::Asked::Preferred(api::Preferred {
                resource: resource.name.to_string(),
                available: wish.available.to_vec(),
                must: wish.must.to_vec(),
                size: u32::try_from(wish.size).unwrap_or(u32::MAX),
            });
            match call
                .request(question, call.deadline().min(PREFERRED_TIMEOUT))
                .await?
            {
                answer::Answer::Choice(choice) => Ok(choice.devices),
                _ => Err(call.mismatched_answer()),
            }
        })
    }

    fn pre_start<'a>(
        &'a self,
        resource: &'a Resource,
        wanted: AllocationRequest<'a>,
    ) -> AllocationFuture<'a, ()> {
        Box::pin(async move {
            let call = self.vendor_call(&resource.source).await?;
            let question = question::Asked::PreStart(api::PreStart {
                resource: resource.name.to_string(),
                devices: wanted.ids.to_vec(),
            });
            match call
                .request(question, call.deadline().min(PRE_START_TIMEOUT))
                .await?
            {
                answer::Answer::Done(_) => Ok(()),
                _ => Err(call.mismatched_answer()),
            }
        })
    }
}
