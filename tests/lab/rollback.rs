//! Updates that fail on the machine: it is rolled back, services included.

use serde_json::{Value, json};

use crate::single_machine::{SOURCE, TREES};
use crate::support::agent::{example, manifest};
use crate::support::digest::differences;
use crate::support::{Machine, wait};

#[test]
fn an_update_whose_service_dies_is_rolled_back_and_not_retried() {
    let machine = Machine::build("undone")
        .machinist()
        .config(example("10"))
        .file(
            "/usr/lib/systemd/system/steady.service",
            "[Service]\nExecStart=/bin/sleep infinity\n",
        )
        .enable("steady.service")
        .boot();
    machine.start_agent();
    let first = machine.wait_updated("", wait::seconds(30));
    let without = [SOURCE, &["/var/lib/machinist"]].concat();
    let before = machine.tree(TREES, &without);

    let dies = "[Service]\nExecStart=\nExecStart=/bin/sh -c 'sleep 0.2; exit 3'\n";
    let dropin = json!({"name": "10-dies.conf", "contents": dies});
    let units = json!({"units": [{"name": "steady.service", "dropins": [dropin]}]});
    machine.give_config("20-dies.yaml", &manifest("20-dies", Value::Null, units));
    let status = machine.wait_status("the update to fail", wait::seconds(30), |status| {
        status["phase"] == "Failed"
    });
    println!("{}", machine.agent_log().join("\n"));
    assert_eq!(status["updates"][0]["outcome"], "RolledBack", "{status:#}");
    assert_eq!(status["failure"]["code"], "UnitDied");
    assert_eq!(status["failure"]["retryable"], false);
    assert_eq!(status["config"]["digest"], first["config"]["digest"]);
    assert_eq!(
        differences(&before, &machine.tree(TREES, &without)),
        [""; 0]
    );
    assert_eq!(machine.property("steady.service", "ActiveState"), "active");
    assert_eq!(machine.property("steady.service", "DropInPaths"), "");
    assert_eq!(machine.property("steady.service", "NeedDaemonReload"), "no");

    // The same config is not retried automatically, not even after an agent restart; once it is
    // removed, the failure is cleared.
    machine.exec(&["systemctl", "restart", "machinist"]);
    let again = machine.wait_status("the failure to be reported", wait::seconds(10), |status| {
        status["config"]["desired"] != "" && !status["failure"].is_null()
    });
    assert_eq!(
        again["updates"][0]["id"], status["updates"][0]["id"],
        "{again:#}"
    );
    machine.take_config("20-dies.yaml");
    machine.wait_status("the failure to go", wait::seconds(10), |status| {
        status["phase"] == "Idle" && status["failure"].is_null()
    });
    assert_eq!(machine.probe("/readyz").unwrap().0, 200);
}
