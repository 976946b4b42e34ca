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
