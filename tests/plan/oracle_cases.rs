//! Rounds of the random comparisons with systemctl that failed once, and their kin.

use super::{
    companions::{Machine, PRESETS, VENDOR, names, quoted},
    oracle::UNITS,
    unit_entries::entries,
};

#[test]
fn a_companion_that_a_disabled_instance_gets_from_its_template_is_disabled() {
    let x = |target: &str| {
        let text = quoted(&format!("WantedBy={target}\n"));
        format!(r#"{{"name": "x.service", "contents": "{text}"}}"#)
    };
    let off = r#"{"name": "f@two.timer", "enabled": false}"#;
    let text = quoted("WantedBy=n.target\n");
    let drop_in =
        r#""dropins": [{"name": "10-also.conf", "contents": "[Install]\nAlso=x.service\n"}]"#;
    let machine = Machine::new(&[], &[]);
    let on = format!(r#"{{"name": "f@.timer", "enabled": true, "contents": "{text}"}}"#);
    machine.apply(&entries("", &format!("{on}, {off}, {}", x("m.target"))));
    assert_eq!(names(&machine.links()), ["m.target.wants/x.service"]);
    let also = format!(r#"{{"name": "f@.timer", "contents": "{text}", {drop_in}}}"#);
    machine.apply(&entries("", &format!("{also}, {off}, {}", x("n.target"))));
    assert_eq!(names(&machine.links()), ["n.target.wants/x.service"]);
    machine.leave();
    assert_eq!(names(&machine.links()), [""; 0]);
}

#[test]
fn an_alias_link_from_before_a_drop_in_comes_back_after_its_unit_was_enabled_by_it() {
    let drop_in =
        r#"{"name": "ssh.service", "dropins": [{"name": "x.conf", "contents": "[Service]\n"}]}"#;
    let on = r#"{"name": "sshd.service", "enabled": true}"#;
    let wants = format!("{UNITS}/multi-user.target.wants/ssh.service");
    let (alias, target) = (
        format!("{UNITS}/sshd.service"),
        format!("{VENDOR}/ssh.service"),
    );
    let mut failed = Vec::new();
    for lines in [
        "WantedBy=multi-user.target\nAlias=sshd.service\n",
        "WantedBy=multi-user.target\n",
    ] {
        for presets in [
            "",
            "enable ssh.service\n",
            "disable *\n",
            "enable sshd.service\ndisable *\n",
        ] {
            for wanted in [true, false] {
                for second in [on.to_owned(), format!("{drop_in}, {on}")] {
                    let vendor = format!("{VENDOR}/ssh.service");
                    let files = [(PRESETS, presets), (vendor.as_str(), lines)];
                    let mut links = vec![(alias.as_str(), target.as_str())];
                    if wanted {
                        links.push((&wants, &target));
                    }
                    let machine = Machine::new(&files, &links);
                    let before = machine.links();
                    machine.apply(&entries("", drop_in));
                    let first = machine.links();
                    machine.apply(&entries("", &second));
                    let then = machine.links();
                    machine.leave();
                    if machine.links() != before
                        || !then.contains_key("etc/systemd/system/sshd.service")
                    {
                        failed.push(format!("{lines:?} {presets:?} {wanted} {second}:\n  {before:?}\n  {first:?}\n  {then:?}\n  {:?}\n", machine.links()));
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The links that systemctl 252 creates.
#[test]
fn a_template_without_a_default_instance_is_enabled_for_templates_and_instances() {
    for (line, link) in [
        ("WantedBy=t@x.service\n", "t@x.service.wants/v@.service"),
        (
            "RequiredBy=t@x.service\n",
            "t@x.service.requires/v@.service",
        ),
        ("WantedBy=t@.service\n", "t@.service.wants/v@.service"),
    ] {
        let text = quoted(line);
        let unit = format!(r#"{{"name": "v@.service", "enabled": true, "contents": "{text}"}}"#);
        let machine = Machine::new(&[], &[]);
        machine.apply(&entries("", &unit));
        assert_eq!(names(&machine.links()), [link]);
        machine.leave();
        assert_eq!(names(&machine.links()), [""; 0]);
    }
}
