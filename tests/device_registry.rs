//! What the device service finds and remembers, over a root in a temporary directory.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    dead_code,
    reason = "a test may panic, and plays the outside world that makes files and devices"
)]

use machinist_testkit as support;

use std::os::unix::fs::symlink;

use machinist_device::{
    Allowances,
    registry::{check, list},
    status::DevicesStatus,
};
use machinist_rootfs::Root;
use support::device_host::Machine;

// One thread: nothing else runs between the start of the second agent and the check of its status.
#[tokio::test]
async fn an_agent_starts_with_the_checkpointed_device_list() {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.plug("ttyB");
    machine.declare("tty.yaml", "acme.dev/tty", "/dev/tty?", 1);
    let healths = |status: &DevicesStatus| -> Vec<String> {
        let devices = status.devices.iter().flat_map(|one| &one.devices);
        devices
            .map(|device| format!("{}={}", device.id, device.health))
            .collect()
    };
    let first = machine.agent();
    first
        .until("both", |status| {
            healths(status) == ["ttyA=Healthy", "ttyB=Healthy"]
        })
        .await;
    first.stop().await;
    machine.unplug("ttyB");
    let second = machine.agent();
    let at_once = healths(&second.handle.status().borrow());
    assert_eq!(at_once, ["ttyA=Healthy", "ttyB=Healthy"]);
    second
        .until("corrected", |status| {
            healths(status) == ["ttyA=Healthy", "ttyB=Unhealthy"]
        })
        .await;
    second.stop().await;
    machine.boot("boot-2");
    machine.unplug("ttyA");
    machine.plug("ttyB");
    let third = machine.agent();
    let after_boot = healths(&third.handle.status().borrow());
    assert_eq!(after_boot, ["ttyA=Unhealthy", "ttyB=Healthy"]);
    third.stop().await;
}

#[test]
fn devices_check_validates_a_file_without_an_agent() {
    let machine = Machine::new();
    machine.plug("ttyA");
    machine.declare("tty.yaml", "acme.dev/tty", "/dev/tty?", 2);
    let root = Root::open(machine.root()).unwrap();
    let file = machine.path("etc/machinist/devices.d/tty.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let named = "/etc/machinist/devices.d/tty.yaml".parse().unwrap();
    let named = (&named, "tty.yaml");
    let found = check(&root, named, &text, &Allowances::default()).unwrap();
    let resource = found.resources.values().next().unwrap();
    assert_eq!(resource.devices.keys().collect::<Vec<_>>(), ["ttyA"]);
    let wrong = check(
        &root,
        named,
        &text.replace("path", "pfad"),
        &Allowances::default(),
    );
    let wrong = wrong.unwrap_err();
    assert_eq!((wrong[0].line, wrong[0].column), (Some(6), Some(12)));
    let all = list(&root, Allowances::default());
    assert_eq!(
        all.resources.values().next().unwrap().source.to_string(),
        "/etc/machinist/devices.d/tty.yaml"
    );
}

#[test]
fn two_links_to_one_node_are_one_device_without_sysfs_information() {
    use std::os::unix::fs::MetadataExt as _;
    let machine = Machine::new();
    machine.plug("one");
    if std::fs::metadata(machine.path("dev/one")).unwrap().rdev() == 0 {
        eprintln!("skipped: making a device node needs root");
        return;
    }
    std::fs::create_dir_all(machine.path("dev/same")).unwrap();
    // Another node of the same number, and a link to the first one.
    std::fs::hard_link(machine.path("dev/one"), machine.path("dev/other")).unwrap();
    symlink("../one", machine.path("dev/same/link")).unwrap();
    machine.plug("two");
    machine.write(
        "all.yaml",
        "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {name: x}\nspec:\n  \
         resource: acme.dev/x\n  match: [{path: '/dev/o*'}, {path: /dev/same/link}, {path: /dev/two}]\n",
    );
    let root = Root::open(machine.root()).unwrap();
    let found = list(&root, Allowances::default());
    let resource = found.resources.values().next().unwrap();
    assert_eq!(resource.devices.keys().collect::<Vec<_>>(), ["one", "two"]);
    let message = found.problems.iter().map(ToString::to_string);
    let message: Vec<_> = message
        .filter(|one| one.contains("is another name of one"))
        .collect();
    assert_eq!(message.len(), 2, "{:?}", found.problems);
}

#[test]
fn only_nodes_below_dev_are_advertised_and_untrusted_files_ignored() {
    let machine = Machine::new();
    machine.plug("tty0");
    std::fs::create_dir_all(machine.path("dev/by-id")).unwrap();
    std::fs::write(machine.path("etc/shadow"), "secret").unwrap();
    for (link, to) in [
        ("good", "../tty0"),
        ("shadow", "../../etc/shadow"),
        ("absolute", "/etc/shadow"),
        ("loop", "loop"),
        ("dangling", "../none"),
    ] {
        std::os::unix::fs::symlink(to, machine.path("dev/by-id").join(link)).unwrap();
    }
    nix::unistd::mkfifo(
        &machine.path("dev/by-id/fifo"),
        nix::sys::stat::Mode::S_IRUSR,
    )
    .unwrap();
    machine.declare("x.yaml", "acme.dev/x", "/dev/by-id/*", 1);
    machine.declare("y.yaml", "acme.dev/y", "/dev/by-id/shadow", 1);
    machine.declare("loose.yaml", "acme.dev/loose", "/dev/tty0", 1);
    let loose = machine.path("etc/machinist/devices.d/loose.yaml");
    std::fs::set_permissions(loose, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    machine.write("large.yaml", &"#".repeat(64 * 1024 + 1));
    let found = list(&Root::open(machine.root()).unwrap(), Allowances::default());
    let listed: Vec<_> = found
        .resources
        .values()
        .flat_map(|one| one.advertised())
        .collect();
    assert_eq!(listed.len(), 1);
    assert_eq!(
        (listed[0].0, listed[0].1.nodes[0].host.as_str()),
        ("by-id-good", "/dev/by-id/good")
    );
    let named = found.resources.values().next_back().unwrap();
    assert_eq!(
        named.devices["by-id-shadow"].reason.as_deref(),
        Some("/dev/by-id/shadow is a link to /etc/shadow, outside /dev, not a device node")
    );
    let problems: Vec<_> = found.problems.iter().map(ToString::to_string).collect();
    assert!(
        problems[0].contains("large.yaml: it is larger than 65536 bytes"),
        "{problems:?}"
    );
    assert!(
        problems[1].contains("loose.yaml: its mode 0666 lets others write"),
        "{problems:?}"
    );
    let message = "/dev/by-id/shadow is a link to /etc/shadow, outside /dev, not a device node";
    let message = problems.iter().filter(|one| one.contains(message));
    let message: Vec<_> = message.collect();
    assert!(
        message.len() == 1 && message[0].contains("x.yaml"),
        "{problems:?}"
    );
}

#[test]
fn declarations_writable_by_others_are_reported_and_not_read() {
    let machine = Machine::new();
    machine.plug("tty0");
    for name in ["good", "theirs", "half"] {
        machine.declare(
            &format!("{name}.yaml"),
            &format!("acme.dev/{name}"),
            "/dev/tty0",
            1,
        );
    }
    let dir = machine.path("etc/machinist/devices.d");
    let whole = std::fs::read_to_string(dir.join("half.yaml")).unwrap();
    let half = &whole[..whole.find("share").unwrap() + "share: {repl".len()];
    std::fs::write(dir.join("half.yaml"), half).unwrap();
    symlink("good.yaml", dir.join("link.yaml")).unwrap();
    // Only root can chown a file; other users test the rest.
    let given_away = std::os::unix::fs::chown(dir.join("theirs.yaml"), Some(1234), None).is_ok();
    let found = list(&Root::open(machine.root()).unwrap(), Allowances::default());
    let mut names: Vec<_> = found.resources.keys().map(ToString::to_string).collect();
    names.retain(|name| given_away || name != "acme.dev/theirs");
    assert_eq!(names, ["acme.dev/good"]);
    let problems: Vec<_> = found.problems.iter().map(ToString::to_string).collect();
    let problem = |file: &str, why: &str| {
        problems
            .iter()
            .any(|one| one.contains(file) && one.contains(why))
    };
    assert!(problem("half.yaml:", ""), "{problems:?}");
    assert!(
        problem(
            "link.yaml: ",
            "it is a symbolic link; declarations are regular"
        ),
        "{problems:?}"
    );
    let why = "it belongs to user 1234, not to root or the agent's user";
    assert!(!given_away || problem("theirs.yaml: ", why), "{problems:?}");
}

#[tokio::test]
async fn declarations_from_a_config_map_are_replaced_atomically() {
    let machine = Machine::new();
    machine.plug("tty0");
    let volume = machine.path("run/machinist/cluster/devices.d");
    let fill = |version: &str, resource: &str| {
        let dir = volume.join(version);
        std::fs::create_dir_all(&dir).unwrap();
        machine.declare("serial.yaml", resource, "/dev/tty0", 1);
        let text = machine.path("etc/machinist/devices.d/serial.yaml");
        std::fs::rename(text, dir.join("serial.yaml")).unwrap();
        symlink(version, volume.join("..data_tmp")).unwrap();
        std::fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    };
    fill("..2026_1", "acme.dev/one");
    symlink("..data/serial.yaml", volume.join("serial.yaml")).unwrap();
    // The mode that the kubelet sets.
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&volume, everybody).unwrap();
    std::fs::write(volume.join("stray.yaml"), "").unwrap();
    symlink("../../../../etc/passwd", volume.join("away.yaml")).unwrap();
    let agent = machine.agent();
    let names = |status: &DevicesStatus| -> Vec<String> {
        let all = status.devices.iter();
        all.map(|one| one.resource.to_string()).collect()
    };
    let status = agent
        .until("read", |status| names(status) == ["acme.dev/one"])
        .await;
    let problems: Vec<_> = status.problems.iter().map(ToString::to_string).collect();
    let problem = |file: &str, why: &str| {
        problems
            .iter()
            .any(|one| one.contains(file) && one.contains(why))
    };
    assert!(
        problem("stray.yaml: ", "0777 lets others write"),
        "{problems:?}"
    );
    assert!(
        problem("away.yaml: ", "dangling symbolic link"),
        "{problems:?}"
    );
    fill("..2026_2", "acme.dev/two");
    agent
        .until("read again", |status| names(status) == ["acme.dev/two"])
        .await;
    // Files that another user could have written are ignored.
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(volume.join("..2026_2"), everybody).unwrap();
    agent.handle.rescan().await.unwrap();
    agent
        .until("not believed", |status| {
            let mut problems = status.problems.iter().map(ToString::to_string);
            problems.any(|one| one.contains("..2026_2: its mode 0777 lets others write"))
        })
        .await;
    agent.stop().await;
}
