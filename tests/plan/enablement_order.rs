//! Configs one after another for units of the vendor that an administrator enabled or masked: the result is that of the
//! last config alone, and without a config the links are as they were.

use std::collections::BTreeMap;

use machinist_ignition::MachineConfig;

use super::{
    companions::{Machine, VENDOR, install, names, quoted},
    oracle::UNITS,
    support::{Dice, from_environment},
    unit_entries::{entries, warnings},
};

const DROP_IN: &str = r#""dropins": [{"name": "d.conf", "contents": "[Unit]\nDescription=q\n"}]"#;

/// Links in the administrator's directory with their targets.
type Links = [(&'static str, &'static str)];

const ENABLED: &Links = &[
    (
        "m.target.wants/w.service",
        "/usr/lib/systemd/system/w.service",
    ),
    ("walias.service", "/usr/lib/systemd/system/w.service"),
];

const MASKED: &Links = &[("m.service", "/dev/null")];

fn machine(links: &Links) -> Machine {
    let files = [
        ("v.service", "WantedBy=m.target\n"),
        ("w.service", "WantedBy=m.target\nAlias=walias.service\n"),
        ("m.service", "WantedBy=m.target\n"),
    ];
    let files = files.map(|(name, lines)| (format!("{VENDOR}/{name}"), lines));
    let links: Vec<_> = links
        .iter()
        .map(|(name, target)| (format!("{UNITS}/{name}"), *target))
        .collect();
    let links: Vec<(&str, &str)> = links
        .iter()
        .map(|(path, target)| (path.as_str(), *target))
        .collect();
    Machine::new(
        &files
            .each_ref()
            .map(|(path, lines)| (path.as_str(), *lines)),
        &links,
    )
}

/// A config with these unit entries, and a preset file of these lines.
fn config(units: &str, presets: &str) -> MachineConfig {
    let storage = match presets {
        "" => String::new(),
        lines => format!(
            r#""files": [{{"path": "/etc/systemd/system-preset/10.preset",
                "contents": {{"source": "data:,{}%0A"}}}}]"#,
            lines.replace(' ', "%20").replace('\n', "%0A")
        ),
    };
    entries(&storage, units)
}

fn off(name: &str) -> String {
    format!(r#"{{"name": "{name}", "enabled": false}}"#)
}

fn with_drop_in(name: &str) -> String {
    format!(r#"{{"name": "{name}", {DROP_IN}}}"#)
}

#[test]
fn enablement_is_restored_after_presets_enabled_a_disabled_unit_again() {
    for (first, second) in [
        ("w.service", "walias.service"),
        ("walias.service", "walias.service"),
        ("walias.service", "w.service"),
        ("w.service", "w.service"),
    ] {
        let machine = machine(ENABLED);
        let before = machine.links();
        machine.apply(&config(&off(first), ""));
        assert_eq!(names(&machine.links()), [""; 0]);
        machine.apply(&config(&with_drop_in(second), "enable *"));
        assert_eq!(machine.links(), before, "{first} {second}");
        machine.leave();
        assert_eq!(machine.links(), before, "{first} {second}");
    }
}

#[test]
fn a_unit_that_only_an_earlier_config_disabled_is_enabled() {
    for (first, second) in [
        ("w.service", "w.service"),
        ("walias.service", "walias.service"),
        ("w.service", "walias.service"),
    ] {
        let machine = machine(ENABLED);
        let before = machine.links();
        machine.apply(&config(&off(first), ""));
        machine.apply(&config(&with_drop_in(second), ""));
        assert_eq!(machine.links(), before, "{first} {second}");
        machine.leave();
        assert_eq!(machine.links(), before, "{first} {second}");
    }
}

#[test]
fn a_mask_that_comes_back_prevents_enabling_its_unit() {
    let machine = machine(MASKED);
    let before = machine.links();
    machine.apply(&config(r#"{"name": "m.service", "mask": false}"#, ""));
    assert_eq!(names(&machine.links()), [""; 0]);
    let on = config(r#"{"name": "m.service", "enabled": true}"#, "");
    let plan = machine.plan(&on).unwrap();
    let warned = warnings(&plan);
    let expected =
        "systemd.units[0].enabled: cannot enable m.service: it is masked on this machine";
    assert!(
        warned.len() == 1 && warned[0].ends_with(expected),
        "{warned:?}"
    );
    machine.apply(&on);
    assert_eq!(machine.links(), before);
    machine.leave();
    assert_eq!(machine.links(), before);
}

#[test]
fn a_masked_unit_that_is_disabled_has_no_links() {
    let machine = machine(ENABLED);
    let before = machine.links();
    let both = config(
        r#"{"name": "w.service", "mask": true, "enabled": false}"#,
        "",
    );
    machine.apply(&both);
    assert_eq!(names(&machine.links()), ["w.service"]);
    machine.is_as_after(&[&["disable", "w.service"], &["mask", "w.service"]]);
    machine.apply(&config(r#"{"name": "w.service", "mask": true}"#, ""));
    assert_eq!(names(&machine.links()).len(), 3);
    machine.leave();
    assert_eq!(machine.links(), before);
}

#[test]
fn a_name_that_an_enabled_unit_gets_belongs_to_it_also_in_also() {
    let file = |path: &str, lines: &str| {
        let text = install(lines).replace(' ', "%20").replace('\n', "%0A");
        format!(r#"{{"path": "{path}", "contents": {{"source": "data:,{text}"}}}}"#)
    };
    let with_alias = "WantedBy=n.target\nAlias=g.service\n";
    let first = format!(
        r#""files": [{}]"#,
        file("/etc/systemd/system/e.service", with_alias)
    );
    let moved = file("/usr/local/lib/systemd/system/e.service", with_alias);
    let other = file("/etc/systemd/system/h.service", with_alias);
    let then = format!(r#""files": [{moved}, {other}]"#);
    let timer = quoted("WantedBy=n.target\nAlso=g.service\n");
    let units = format!(
        r#"{{"name": "c.timer", "contents": "{timer}"}}, {{"name": "h.service", "mask": false}},
           {{"name": "g.service", "enabled": false}}"#
    );
    let machine = Machine::new(&[], &[]);
    machine.apply(&entries(
        &first,
        r#"{"name": "e.service", "enabled": true}"#,
    ));
    let to = entries(&then, &units);
    machine.apply(&to);
    assert_eq!(names(&machine.links()), ["n.target.wants/c.timer"]);
    assert_eq!(machine.plan(&to).unwrap().operations, []);
}

const NAMES: [&str; 4] = ["v.service", "w.service", "walias.service", "m.service"];

/// One entry for each of [`NAMES`], if any: in JSON without the name, and whether it has only a drop-in.
type Entries = BTreeMap<&'static str, (String, bool)>;

/// `links`: those of the machine. An alias that only a config gives a unit is no name of the unit without that config.
fn any_entries(dice: &mut Dice, links: &Links) -> (Entries, &'static str) {
    let mut all = Entries::new();
    let has_alias = links.iter().any(|(name, _)| *name == "walias.service");
    for name in NAMES {
        if dice.one_in(2) || (name == "walias.service" && !has_alias) {
            continue;
        }
        let mut fields = String::new();
        let enabled = *dice.pick(&["", "", r#", "enabled": true"#, r#", "enabled": false"#]);
        let mask = match dice.below(6) {
            0 => r#", "mask": true"#,
            1 => r#", "mask": false"#,
            _ => "",
        };
        fields.push_str(enabled);
        fields.push_str(mask);
        let drop_in = dice.one_in(2);
        if drop_in {
            fields.push_str(&format!(", {DROP_IN}"));
        }
        let follows = drop_in && enabled.is_empty();
        all.insert(name, (fields, follows));
    }
    let presets = *dice.pick(&[
        "",
        "",
        "enable *",
        "disable *",
        "enable w.service\ndisable *",
    ]);
    (all, presets)
}

fn of((entries, presets): &(Entries, &str)) -> MachineConfig {
    let units = entries
        .iter()
        .map(|(name, (fields, _))| format!(r#"{{"name": "{name}"{fields}}}"#));
    config(&units.collect::<Vec<_>>().join(", "), presets)
}

fn any_machine(dice: &mut Dice) -> Vec<(&'static str, &'static str)> {
    let mut links = Vec::new();
    if dice.one_in(2) {
        links.extend(ENABLED);
    }
    if dice.one_in(2) {
        links.extend(MASKED);
    }
    for link in [
        (
            "m.target.wants/v.service",
            "/usr/lib/systemd/system/v.service",
        ),
        (
            "other.target.wants/w.service",
            "/usr/lib/systemd/system/w.service",
        ),
        (
            "m.target.wants/m.service",
            "/usr/lib/systemd/system/m.service",
        ),
    ] {
        if dice.one_in(3) {
            links.push(link);
        }
    }
    links
}

#[test]
fn the_result_depends_on_the_last_config_alone() {
    let seed = from_environment("PLAN_SEED", 1);
    let first = from_environment("PLAN_FIRST", 20);
    let rounds = from_environment("PLAN_ROUNDS", 15);
    let (mut compared, mut refused) = (0, 0);
    for round in first..first + rounds {
        let mut dice = Dice(seed.wrapping_mul(15_485_863).wrapping_add(round));
        let links = any_machine(&mut dice);
        let passing = machine(&links);
        let before = passing.links();
        let mut passed = format!("{links:?}\n");
        let mut earlier = Entries::new();
        for _ in 0..3 {
            let desired = any_entries(&mut dice, &links);
            let alone = machine(&links);
            if passing.plan(&of(&desired)).is_err() || alone.plan(&of(&desired)).is_err() {
                refused += 1;
                continue;
            }
            passed.push_str(&format!("THEN {desired:?}\n"));
            passing.apply(&of(&desired));
            alone.apply(&of(&desired));
            // A unit that is left to the presets is preset when it is new in the config.
            let follows = |entries: &Entries| entries.values().any(|(_, follows)| *follows);
            let preset = follows(&earlier) && follows(&desired.0);
            earlier = desired.0;
            if preset {
                continue;
            }
            compared += 1;
            assert_eq!(
                passing.links(),
                alone.links(),
                "PLAN_SEED={seed}, round {round}: {passed}"
            );
        }
        passing.leave();
        assert_eq!(
            passing.links(),
            before,
            "PLAN_SEED={seed}, round {round}: {passed}"
        );
    }
    assert!(compared > refused || rounds < 10, "{compared}, {refused}");
}
