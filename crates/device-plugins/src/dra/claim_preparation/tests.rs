use std::sync::Mutex;

use tokio::sync::mpsc;

use super::*;
use crate::dra::{
    claim_files::CheckpointFile, kubelet_call::KUBELET_CALL_TIMEOUT, status::DriverStatusWriter,
};
use machinist_device::{
    allocator::Allocators,
    dra::traits::{CallFuture, ClaimReader, InUseDevices},
};
use machinist_rootfs::Root;

/// A cluster that answers or hangs.
#[derive(Debug, Default)]
struct Slow(Mutex<bool>);

impl ClaimReader for Slow {
    fn get<'a>(&'a self, _: &'a str, name: &'a str) -> CallFuture<'a, Option<ResourceClaim>> {
        let answers = *self.0.lock().unwrap();
        Box::pin(async move {
            if !answers {
                return std::future::pending().await;
            }
            Ok(Some(ResourceClaim {
                uid: format!("{name}-uid"),
                allocated: Some(Vec::new()),
                parameters: false,
            }))
        })
    }
}

impl InUseDevices for Slow {
    fn holders(&self) -> CallFuture<'_, DeviceHolders> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_preparation_that_times_out_is_retried() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Arc::new(Slow::default());
    let (_inventory, inventory) = watch::channel(Arc::new(Inventory::default()));
    let (calls, _called) = mpsc::channel(1);
    let root = Root::open(dir.path()).unwrap();
    let store = CheckpointFile::new(root.clone());
    let status = DriverStatusWriter::new(&ClaimCheckpoint::default());
    let preparer = ClaimPreparer {
        node: "node-1".into(),
        claim_store: ClaimStore::new(store, ClaimCheckpoint::default(), true, status),
        inventory,
        allocator: ClaimAllocator {
            root,
            allocators: Allocators::default(),
            boot: None,
        },
        gc: ClaimGc {
            claims: slow.clone(),
            in_use: slow.clone(),
            calls,
        },
        log_rates: LogRates::default(),
    };
    let over = CancellationToken::new();
    let claim = ClaimName {
        namespace: "lab".into(),
        name: "c".into(),
        uid: "c-uid".into(),
    };
    let began = Instant::now();
    let why = preparer
        .prepare(&claim, began + KUBELET_CALL_TIMEOUT, &over)
        .await
        .unwrap_err();
    assert!(why.contains("lab/c was not prepared in time"), "{why}");
    assert!(began.elapsed().as_secs() < 45, "the kubelet still reads it");
    *slow.0.lock().unwrap() = true;
    // A kubelet that does not report its containers' devices does not block the call.
    let until = Instant::now() + KUBELET_CALL_TIMEOUT;
    assert_eq!(preparer.prepare(&claim, until, &over).await, Ok(Vec::new()));
    assert_eq!(
        preparer.prepare(&claim, Instant::now(), &over).await,
        Ok(Vec::new())
    );
}
