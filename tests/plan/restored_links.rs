//! Links of an administrator that a config removed or kept: they are as before when it has left.

use super::{
    companions::{Machine, VENDOR, install, quoted},
    unit_entries::entries,
};

const OFF: &str = r#", "enabled": false"#;

fn unit(name: &str, fields: &str) -> String {
    format!(r#"{{"name": "{name}"{fields}}}"#)
}

fn contents(lines: &str) -> String {
    format!(r#", "contents": "{}""#, quoted(lines))
}

/// Applies a config of these entries and leaves it. Returns the links while it was in force.
fn pass(machine: &Machine, units: &[String]) -> Vec<String> {
    let before = machine.links();
    machine.apply(&entries("", &units.join(", ")));
    let within = machine.links().into_keys().collect();
    machine.leave();
    assert_eq!(machine.links(), before, "{units:?}");
    within
}

#[test]
fn a_unit_disabled_by_an_alias_that_hides_another_unit_is_enabled_again() {
    let ssh = "WantedBy=m.target\nAlias=sshd.service\n";
    let [ssh_path, other] = ["ssh", "sshd"].map(|name| format!("{VENDOR}/{name}.service"));
    let links = [
        ("/etc/systemd/system/sshd.service", ssh_path.as_str()),
        ("/etc/systemd/system/m.target.wants/ssh.service", &ssh_path),
    ];
    let files = [(ssh_path.as_str(), ssh), (&other, "WantedBy=n.target\n")];
    let machine = Machine::new(&files, &links);
    assert_eq!(pass(&machine, &[unit("sshd.service", OFF)]), [""; 0]);
}

#[test]
fn the_link_of_a_linked_unit_that_also_disables_comes_back() {
    let links = [
        ("/etc/systemd/system/c.service", "/opt/c.service"),
        (
            "/etc/systemd/system/x.target.wants/c.service",
            "/opt/c.service",
        ),
    ];
    let machine = Machine::new(&[("/opt/c.service", "WantedBy=x.target\n")], &links);
    let with_also = contents("WantedBy=m.target\nAlso=c.service\n");
    let within = pass(&machine, &[unit("n.service", &format!("{with_also}{OFF}"))]);
    assert_eq!(within, [""; 0]);
}

#[test]
fn the_link_of_an_instance_stays_when_its_template_loses_its_install_section() {
    let template = format!("{VENDOR}/getty@.service");
    let link = "/etc/systemd/system/getty.target.wants/getty@tty2.service";
    let files = [(template.as_str(), "WantedBy=getty.target\n")];
    let machine = Machine::new(&files, &[(link, template.as_str())]);
    let without = install("").replace("[Install]\n", "").replace('\n', "\\n");
    let units = [
        unit("getty@.service", &format!(r#", "contents": "{without}""#)),
        unit("getty@tty2.service", r#", "enabled": true"#),
    ];
    let within = pass(&machine, &units);
    assert_eq!(within, [link.trim_start_matches('/')]);
}

#[test]
fn a_link_to_a_name_that_only_a_preset_gives_is_removed_with_its_unit() {
    let link = ("/etc/systemd/system/g.service", "a.service");
    let machine = Machine::new(&[], &[link]);
    let units = [
        unit("a.service", OFF),
        unit("b.service", &contents("Alias=a.service\n")),
    ];
    assert_eq!(pass(&machine, &units), [""; 0]);
}

#[test]
fn a_unit_of_the_config_keeps_its_name_when_another_one_claims_it_as_alias() {
    let machine = Machine::new(&[], &[]);
    let also = format!(r#", "enabled": true{}"#, contents("Also=b.service\n"));
    let units = [
        unit("a.service", &contents("Alias=b.service h.service\n")),
        unit("b.service", &contents("Alias=g.service\n")),
        unit("t@.service", &also),
        unit("h.service", OFF),
    ];
    assert_eq!(pass(&machine, &units), ["etc/systemd/system/g.service"]);
}
