use super::*;
use crate::{log_counter::LogCounter, vendor_api::socket::VENDORS_DIR};
use machinist_base::abs_path::AbsPath;
use machinist_device::{
    inventory::ServeMode, registry::RegistrySettings, vendor_declaration::VendorLimits,
};

fn vendor() -> Vendor {
    Vendor {
        name: "acme".into(),
        connects: VendorTransport::Program,
        serve: ServeMode::DevicePlugin,
        users: vec![0],
        group: nix::unistd::getegid().as_raw(),
        resources: Vec::new(),
        devices: Vec::new(),
        mounts: Vec::new(),
        cdi: Vec::new(),
        grace: Duration::from_secs(30),
        deadline: Duration::from_secs(60),
        limits: VendorLimits::default(),
    }
}

#[tokio::test]
async fn a_vendor_that_removes_its_socket_again_and_again_causes_few_log_lines() {
    let dir = tempfile::tempdir().unwrap();
    let (root, tasks) = (Root::open(dir.path()).unwrap(), Tasks::new());
    let settings = RegistrySettings {
        allowances: Default::default(),
        uevents: false,
        rescan: Duration::from_secs(3600),
        save_timeout: Duration::from_secs(60),
        units: watch::channel(Default::default()).1,
        allocation_disabled: None,
    };
    let registry = Registry::start(root.clone(), settings, &tasks);
    let quiesced = watch::channel(None).1;
    let handles = watch::Sender::new(Arc::default());
    let mut supervisor = VendorSupervisor::new(
        root.clone(),
        registry,
        tasks.clone(),
        handles,
        (quiesced, Arc::new(watch::Sender::new(0))),
    );
    supervisor.add("acme", &Arc::new(vendor()));
    let socket: AbsPath = format!("{VENDORS_DIR}/acme/agent.sock").parse().unwrap();
    let (counter, _guard) = LogCounter::start();
    for _ in 0..500 {
        supervisor.create_sockets();
        root.remove_file(&socket).unwrap();
        supervisor.schedule_missing_sockets();
        // As if the delay was over.
        let entry = supervisor.vendors.get_mut("acme").unwrap();
        assert!(entry.socket.is_none() && entry.socket_retry.take().is_some());
    }
    assert!((1..=60).contains(&counter.lines()), "{}", counter.lines());
}
