use std::sync::atomic::{AtomicUsize, Ordering};

use machinist_device::{
    allocator::{AllocationFuture, Allocator},
    testing::resource,
};

use super::*;
use crate::log_counter::LogCounter;

/// Counts the calls, and adds a variable to each container.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

impl Allocator for Counting {
    fn allocate<'a>(
        &'a self,
        _: &'a Resource,
        _: AllocationRequest<'a>,
    ) -> AllocationFuture<'a, AllocationResponse> {
        unreachable!("the device spec answers")
    }

    fn recheck_paths<'a>(
        &'a self,
        _: &'a Resource,
        mut grants: Vec<ContainerAllocation>,
    ) -> AllocationFuture<'a, Vec<ContainerAllocation>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        for (number, grant) in grants.iter_mut().enumerate() {
            grant.env.insert("NUMBER".to_owned(), number.to_string());
        }
        Box::pin(std::future::ready(Ok(grants)))
    }

    fn preferred<'a>(
        &'a self,
        _: &'a Resource,
        _: PreferredRequest<'a>,
    ) -> AllocationFuture<'a, Vec<String>> {
        unreachable!("no choice was requested")
    }

    fn pre_start<'a>(
        &'a self,
        _: &'a Resource,
        _: AllocationRequest<'a>,
    ) -> AllocationFuture<'a, ()> {
        unreachable!("no container starts")
    }
}

/// A service for one resource with the device "a".
fn service(counting: &Arc<Counting>) -> DevicePluginService {
    let one = resource(1, &[("a", &[])]);
    let name = one.name.clone();
    let inventory = Inventory {
        resources: [(name.clone(), Arc::new(one))].into(),
        ..Inventory::default()
    };
    let tasks = Tasks::new();
    DevicePluginService {
        resource: name,
        inventory: watch::channel(Arc::new(inventory)).1,
        allocators: Allocators {
            vendor: Some(Arc::clone(counting) as Arc<dyn Allocator>),
            ..Allocators::default()
        },
        streams: Arc::default(),
        stop: tasks.token(),
        status_writer: KubeletStatusWriter::new(&tasks),
        tasks,
    }
}

fn request(id: &str, containers: usize) -> Request<RawMessage> {
    let container = api::ContainerAllocateRequest {
        devices_ids: vec![id.to_owned()],
    };
    let request = api::AllocateRequest {
        container_requests: vec![container; containers],
    };
    Request::new(RawMessage(request.encode_to_vec().into()))
}

#[tokio::test]
async fn the_paths_of_many_containers_are_rechecked_in_one_call() {
    let counting = Arc::default();
    let service = service(&counting);
    let answer = service.allocate(request("a", 100_000)).await.unwrap();
    let answer = api::AllocateResponse::decode(answer.into_inner().0).unwrap();
    assert_eq!(counting.0.load(Ordering::Relaxed), 1);
    assert_eq!(answer.container_responses.len(), 100_000);
    let last = answer.container_responses.last().unwrap();
    assert_eq!(last.envs["NUMBER"], "99999");
    assert_eq!(last.devices[0].host_path, "/dev/a");
}

#[tokio::test]
async fn rejected_allocations_cause_few_log_lines() {
    let (counter, _guard) = LogCounter::start();
    let service = service(&Arc::default());
    for number in 0..1000 {
        let unknown = request(&number.to_string(), 1);
        service.allocate(unknown).await.unwrap_err();
    }
    assert!((1..=60).contains(&counter.lines()), "{}", counter.lines());
}
