//! Random machines and configs with units that name each other in `Also=`: what configs enabled and disabled is as it was
//! when they leave.

use machinist_ignition::{MachineConfig, Unit, UnitName};

use super::{
    companions::{Machine, PRESETS, VENDOR, install},
    oracle::UNITS,
    support::{Dice, from_environment, unit},
};

const ALSO: [&str; 8] = [
    "",
    "",
    "Also=b.service\n",
    "Also=c.socket\n",
    "Also=sshd.service\n",
    "Also=t@x.service\n",
    "Also=new.service\n",
    "Also=b.service\nAlso=\n",
];

fn also(dice: &mut Dice) -> &'static str {
    ALSO[dice.below(ALSO.len())]
}

/// The vendor's units, some of them enabled.
fn any_machine(dice: &mut Dice) -> Machine {
    let wants = |target: &str, more: &str| format!("WantedBy={target}.target\n{more}");
    let mut presets = String::new();
    for line in [
        "enable c.*",
        "enable t@.service x",
        "disable a.service",
        "disable *",
    ] {
        if dice.one_in(2) {
            presets.push_str(line);
            presets.push('\n');
        }
    }
    let units = [
        ("a.service", wants("m", also(dice))),
        ("b.service", wants("n", also(dice))),
        ("c.socket", wants("sockets", "")),
        ("ssh.service", wants("m", "Alias=sshd.service\n")),
        ("t@.service", wants("m", also(dice))),
    ];
    let mut files = vec![(PRESETS.to_owned(), presets)];
    for (name, lines) in units {
        files.push((format!("{VENDOR}/{name}"), lines));
    }
    let mut links = Vec::new();
    for (name, unit) in [
        ("m.target.wants/a.service", "a.service"),
        ("n.target.wants/b.service", "b.service"),
        ("sockets.target.wants/c.socket", "c.socket"),
        ("m.target.wants/ssh.service", "ssh.service"),
        ("m.target.wants/t@x.service", "t@.service"),
        ("other.target.wants/b.service", "b.service"),
    ] {
        if dice.one_in(2) {
            links.push((format!("{UNITS}/{name}"), format!("{VENDOR}/{unit}")));
            if unit == "ssh.service" {
                let alias = format!("{UNITS}/sshd.service");
                links.push((alias, format!("{VENDOR}/{unit}")));
            }
        }
    }
    let files: Vec<_> = borrowed(&files);
    Machine::new(&files, &borrowed(&links))
}

fn borrowed(pairs: &[(String, String)]) -> Vec<(&str, &str)> {
    let pairs = pairs.iter();
    pairs
        .map(|(one, other)| (one.as_str(), other.as_str()))
        .collect()
}

fn shown(config: &MachineConfig) -> String {
    let entry = |(name, unit): (&UnitName, &Unit)| {
        let Unit {
            contents,
            dropins,
            enabled,
            ..
        } = unit;
        format!("{name} enabled={enabled:?} {contents:?} {dropins:?}\n")
    };
    config.units.iter().map(entry).collect()
}

fn any_entries(dice: &mut Dice) -> MachineConfig {
    let mut config = MachineConfig::default();
    for name in [
        "a.service",
        "b.service",
        "c.socket",
        "ssh.service",
        "sshd.service",
        "t@.service",
        "t@x.service",
        "new.service",
    ] {
        let lines = |dice: &mut Dice| format!("WantedBy=m.target\n{}", also(dice));
        let contents = (name == "new.service" || dice.one_in(6)).then(|| install(&lines(dice)));
        let drop_in = match dice.below(4) {
            0 => Some("[Unit]\nDescription=x\n".to_owned()),
            1 => Some(format!("[Install]\n{}", also(dice))),
            _ => None,
        };
        let entry = Unit {
            contents,
            enabled: *dice.pick(&[None, None, Some(true), Some(false)]),
            dropins: drop_in
                .map(|text| ("x.conf".to_owned(), text))
                .into_iter()
                .collect(),
            ..Unit::default()
        };
        if entry != Unit::default() && dice.one_in(2) {
            unit(&mut config, name, entry);
        }
    }
    config
}

#[test]
fn configs_that_enable_and_disable_companions_leave_the_links_as_they_were() {
    let seed = from_environment("PLAN_SEED", 1);
    let first = from_environment("PLAN_FIRST", 0);
    let rounds = from_environment("PLAN_ROUNDS", 30);
    let (mut done, mut refused) = (0, 0);
    for round in first..first + rounds {
        let mut dice = Dice(seed.wrapping_mul(15_485_863).wrapping_add(round));
        let machine = any_machine(&mut dice);
        let before = machine.links();
        let mut passed = Vec::new();
        for _ in 0..2 {
            let config = any_entries(&mut dice);
            if machine.plan(&config).is_err() {
                refused += 1;
                continue;
            }
            done += 1;
            passed.push(shown(&config));
            if std::env::var_os("PLAN_VERBOSE").is_some() {
                eprintln!("round {round}: {}", passed[passed.len() - 1]);
            }
            machine.apply(&config);
        }
        machine.leave();
        assert_eq!(
            machine.links(),
            before,
            "PLAN_SEED={seed}, round {round}: {}\n{:#?}",
            passed.join("THEN\n"),
            machine.theirs.dump()
        );
    }
    assert!(done > refused || rounds < 20, "{done}, {refused}");
}
