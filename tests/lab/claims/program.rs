//! Devices that a vendor's program reports, claimed by their attributes and capacity: the example
//! of the documentation, unchanged.

use serde_json::{Value, json};

use super::Stage;
use crate::support::wait;

pub(super) const OFFERED: &str = "acme.dev/accelerator";
pub(super) const FILE: &str = "/etc/machinist/vendors.d/acme.yaml";
pub(super) const VENDOR: &str = "apiVersion: machinist.dev/v1\nkind: DeviceVendor\nmetadata: {name: acme}\n\
    spec: {connects: program, serve: dra, resources: [acme.dev/*], devices: [\"/dev/acme*\", /dev/fuse, /dev/net/tun]}\n";
pub(super) const UNIT: &str = "/etc/systemd/system/program.service";
pub(super) const SERVICE: &str = "[Service]\n\
    Environment=MACHINIST_VENDOR_SOCKET=/run/machinist/vendors/acme/agent.sock\n\
    ExecStart=/usr/local/bin/acme\n";

/// A claim's requirement besides the device class.
const LARGE: &str = "device.capacity['dra.machinist.dev'].memory.compareTo(quantity('16Gi')) >= 0";

fn is_offered(device: &&Value) -> bool {
    device["attributes"]["resource"]["string"] == OFFERED
}

fn offered(stage: &Stage) -> Vec<Value> {
    let devices = stage.devices();
    devices.iter().filter(is_offered).cloned().collect()
}

/// How many sessions the program has had, and whether one is open.
fn sessions(stage: &Stage) -> (u64, bool) {
    let status = stage.machine.status().unwrap_or_default();
    let vendor = &status["vendors"][0];
    (
        vendor["sessions"].as_u64().unwrap_or_default(),
        vendor["connected"] == true,
    )
}

/// The resource version of each slice: it changes with every write.
fn versions(stage: &Stage) -> Vec<Value> {
    let slices = stage.slices();
    let version = |slice: &Value| slice["metadata"]["resourceVersion"].clone();
    slices.iter().map(version).collect()
}

pub(super) fn is_claimed(stage: &Stage) {
    let machine = &stage.machine;
    machine.sh("ln -s fuse /dev/acme0; ln -s net/tun /dev/acme1");
    machine.exec(&["systemctl", "start", "program"]);
    wait::until("what the program offers", wait::seconds(60), || {
        offered(stage).len() == 2
    });
    for device in offered(stage) {
        let memory = &device["capacity"]["memory"];
        assert_eq!(memory, &json!({"value": "16Gi"}), "{device:#}");
    }
    stage.create_claim("accelerator", OFFERED, &[LARGE]);
    stage.run_with("worker", "accelerator");
    let look = "echo $ACME_DEVICES; stat -c %F /dev/$ACME_DEVICES";
    let taken = stage.inside("worker", look);
    let (device, kind) = taken.split_once('\n').unwrap();
    assert!(device.starts_with("acme"), "{taken}");
    assert_eq!(kind, "character special file\n");

    // A restart of the program affects neither the pod nor the kubelet nor the scheduler.
    let (run, written) = (stage.run_of("worker"), versions(stage));
    let (registered, (before, _)) = (stage.registrations(), sessions(stage));
    machine.exec(&["systemctl", "restart", "program"]);
    machine.wait("the program's next session", wait::seconds(30), || {
        let (now, connected) = sessions(stage);
        now > before && connected
    });
    stage.run_with("second-worker", "accelerator");
    let other = stage.inside("second-worker", look);
    assert!(other.starts_with("acme") && other != taken, "{other}");
    assert_eq!(stage.run_of("worker"), run, "the pod noticed");
    assert_eq!(versions(stage), written, "no slice was written again");
    assert_eq!(stage.registrations(), registered, "the kubelet noticed");
    for pod in ["worker", "second-worker"] {
        stage.delete(pod);
    }
    machine.wait("no spec", wait::seconds(30), || stage.specs() == 0);
}
