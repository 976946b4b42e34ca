use std::sync::Mutex;

use tokio::sync::{mpsc, watch};

use super::*;
use crate::{
    device::{
        answer::Answerers,
        dra::ports::{Claims, Given, Published, Reply},
    },
    dra::{Driver, Surroundings, keeper::PATIENCE, sweep::Sweep},
    shutdown::Tasks,
};

/// A cluster that answers, or does not.
#[derive(Debug, Default)]
struct Slow(Mutex<bool>);

impl Claims for Slow {
    fn get<'a>(&'a self, _: &'a str, name: &'a str) -> Reply<'a, Option<Claim>> {
        let answers = *self.0.lock().unwrap();
        Box::pin(async move {
            if !answers {
                return std::future::pending().await;
            }
            Ok(Some(Claim {
                uid: format!("{name}-uid"),
                allocated: Some(Vec::new()),
                parameters: false,
            }))
        })
    }
}

impl Given for Slow {
    fn holders(&self) -> Reply<'_, Holders> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_does_not_answer_in_time_is_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Arc::new(Slow::default());
    let (_inventory, inventory) = watch::channel(Arc::new(Inventory::default()));
    let (_published, published) = watch::channel(Published::default());
    let with = Surroundings {
        node: "node-1".into(),
        claims: slow.clone(),
        given: slow.clone(),
        answerers: Answerers::default(),
        inventory,
        published,
    };
    let (calls, _called) = mpsc::channel(1);
    let sweep = Sweep {
        claims: slow.clone(),
        given: slow.clone(),
        calls,
    };
    let driver = Driver::load(Root::open(dir.path()).unwrap());
    let outlets = (watch::channel(None).0, watch::channel(false).0);
    let mut keeper = Keeper::new(driver, with, outlets, sweep, Tasks::new());
    let claim = ClaimName {
        namespace: "lab".into(),
        name: "c".into(),
        uid: "c-uid".into(),
    };
    let began = Instant::now();
    let why = keeper.prepare(&claim, began + PATIENCE).await.unwrap_err();
    assert!(why.contains("lab/c was not prepared in time"), "{why}");
    assert!(began.elapsed().as_secs() < 45, "the kubelet still reads it");
    *slow.0.lock().unwrap() = true;
    // A kubelet that does not tell what containers have keeps nobody waiting for ever.
    let until = Instant::now() + PATIENCE;
    assert_eq!(keeper.prepare(&claim, until).await, Ok(Vec::new()));
    assert_eq!(keeper.prepare(&claim, Instant::now()).await, Ok(Vec::new()));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the test lays out the machine")]
fn links_are_followed_to_the_node_and_one_that_leads_nowhere_is_named() {
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
    let mut grant = Grant::default();
    grant.nodes.push(crate::device::allocation::NodeGrant {
        host: "/dev/serial/by-id/usb-FTDI".into(),
        inside: "/dev/serial0".into(),
        permissions: "rw".into(),
    });
    find_nodes(&root, &claim, &mut grant).unwrap();
    assert_eq!(grant.nodes[0].host, "/dev/ttyUSB0");
    std::fs::remove_file(dir.path().join("dev/ttyUSB0")).unwrap();
    grant.nodes[0].host = "/dev/serial/by-id/usb-FTDI".into();
    let error = find_nodes(&root, &claim, &mut grant).unwrap_err();
    let told = "node /dev/serial/by-id/usb-FTDI of the host does not exist";
    assert!(error.to_string().contains(told), "{error}");
}
