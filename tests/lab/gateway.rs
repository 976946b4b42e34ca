//! The IPv6 default gateway.

use serde_json::{Value, json};

use crate::support::agent::{example, manifest};
use crate::support::{Machine, wait};

const SETTINGS: &str = "update: {verifyTimeout: 5s}\nactions: {settle: 200ms}\n";

/// A router in a network namespace of its own, at the far end of a link.
const ROUTER: &str = "ip netns add router
    ip link add way6 type veth peer name far6 netns router
    ip -n router link set far6 up
    ip -n router address add fe80::1/64 dev far6 nodad
    ip link set way6 up
    ip -6 route add default via fe80::1 dev way6 metric 50";

/// Sends a datagram, for which the kernel has to resolve the gateway.
const PROBE: &str = "echo >/dev/udp/fe80::1%way6/9; ip -6 neigh show fe80::1 dev way6";

#[test]
fn an_update_that_loses_the_ipv6_gateway_is_rolled_back() {
    let machine = Machine::build("six")
        .machinist()
        .file("/etc/machinist/machinist.yaml", SETTINGS)
        .config(example("10"))
        .boot();
    machine.sh(ROUTER);
    machine.wait("the router to answer", wait::seconds(20), || {
        let found = machine.exec(&["bash", "-c", PROBE]);
        found.contains("REACHABLE")
    });
    machine.start_agent();
    machine.wait_updated("", wait::seconds(30));
    // Takes the IPv6 link down and keeps the IPv4 route.
    let cut = "[Service]\nType=oneshot\nExecStart=/bin/ip link set way6 down\n\
               [Install]\nWantedBy=multi-user.target\n";
    let units = json!({"units": [{"name": "cut.service", "contents": cut, "enabled": true}]});
    machine.give_config("90-cut.yaml", &manifest("90-cut", Value::Null, units));
    let status = machine.wait_status(
        "the update to be rolled back",
        wait::seconds(90),
        |status| status["phase"] == "Failed" && status["updates"][0]["outcome"] == "RolledBack",
    );
    println!("{}", machine.agent_log().join("\n"));
    let message = status["failure"]["message"].as_str().unwrap();
    let silent = "gateway fe80::1%way6 is unreachable, but was reachable before";
    assert!(message.contains(silent), "{message}");
    assert!(
        machine
            .try_read("/etc/systemd/system/cut.service")
            .is_none()
    );
}
