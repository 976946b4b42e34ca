//! The enablement links that a machine has before a config brings the unit are the same after it has left.

use machinist_ignition::{Unit, UnitName};
use machinist_testkit::sandbox::{Sandbox, Written, config, difference};

const UNITS: &str = "/etc/systemd/system";
const VENDOR: &str = "/usr/lib/systemd/system";

fn text(install: &str) -> String {
    format!("[Service]\nExecStart=/bin/true\n[Install]\n{install}\n")
}

fn with(name: &str, unit: Unit) -> Written {
    let mut wanted = config(name);
    wanted
        .0
        .units
        .insert(UnitName::new("x.service").unwrap(), unit);
    wanted
}

fn contents(install: &str) -> Unit {
    Unit {
        contents: Some(text(install)),
        ..Unit::default()
    }
}

fn enable(enabled: bool, unit: Unit) -> Unit {
    Unit {
        enabled: Some(enabled),
        ..unit
    }
}

fn link(sandbox: &Sandbox, path: &str, target: &str) {
    let path = sandbox.path(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(target, path).unwrap();
}

/// A machine whose administrator enabled the unit, with the unit file of the vendor or their own.
fn machine(own_file: bool, preset: Option<&str>) -> Sandbox {
    let sandbox = Sandbox::new();
    let file = match own_file {
        true => format!("{UNITS}/x.service"),
        false => format!("{VENDOR}/x.service"),
    };
    sandbox.write(&file, &text("WantedBy=m.target\nAlias=found.service"));
    link(
        &sandbox,
        &format!("{UNITS}/m.target.wants/x.service"),
        &file,
    );
    link(&sandbox, &format!("{UNITS}/found.service"), &file);
    // Made by hand.
    link(
        &sandbox,
        &format!("{UNITS}/h.target.wants/x.service"),
        "../x.service",
    );
    if let Some(preset) = preset {
        sandbox.write("/usr/lib/systemd/system-preset/50-x.preset", preset);
    }
    sandbox
}

#[test]
fn pre_existing_unit_links_are_restored_when_the_unit_entry_leaves() {
    let (none, mask) = (
        Unit::default(),
        Unit {
            mask: true,
            ..Unit::default()
        },
    );
    let other = || contents("WantedBy=b.target");
    let ways: Vec<(&str, Vec<Unit>)> = vec![
        ("other target", vec![other()]),
        ("same target", vec![contents("WantedBy=m.target")]),
        ("no target", vec![contents("")]),
        ("alias only", vec![contents("Alias=al.service")]),
        ("changed", vec![other(), contents("WantedBy=c.target")]),
        ("disabled first", vec![enable(false, none.clone()), other()]),
        ("enabled first", vec![enable(true, none.clone()), other()]),
        ("masked first", vec![mask.clone(), other()]),
        ("masked later", vec![other(), mask.clone(), other()]),
        ("enabled later", vec![other(), enable(true, other())]),
        ("disabled later", vec![other(), enable(false, other())]),
        (
            "disabled between",
            vec![other(), enable(false, other()), other(), other()],
        ),
        ("enabled", vec![enable(true, other()), other()]),
        (
            "enabled for the same target",
            vec![enable(true, contents("WantedBy=m.target")), other()],
        ),
    ];
    let mut wrong = String::new();
    for (shown, way) in ways {
        for own_file in [false, true] {
            let masked = way.iter().any(|unit| unit.mask);
            for preset in [None, Some("disable *\n"), Some("enable *\n")] {
                // The administrator's own file has to make room for the mask.
                if masked && own_file {
                    continue;
                }
                let sandbox = machine(own_file, preset);
                let before = sandbox.tree();
                for (step, unit) in way.iter().enumerate() {
                    let wanted = with(&format!("{step}"), unit.clone());
                    sandbox.applied(&wanted);
                }
                sandbox.applied(&config("nothing"));
                let after = sandbox.tree();
                if before != after {
                    let found = difference(&before, &after);
                    wrong += &format!("{shown}, own file {own_file}, {preset:?}:\n{found}\n");
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn unit_links_of_a_config_are_removed_and_pre_existing_ones_kept() {
    let sandbox = machine(false, None);
    sandbox.applied(&with("a", contents("WantedBy=b.target\nAlias=al.service")));
    for made in ["b.target.wants/x.service", "al.service"] {
        let made = sandbox.path(&format!("{UNITS}/{made}"));
        assert!(std::fs::symlink_metadata(made).is_ok());
    }
    sandbox.applied(&with("b", contents("WantedBy=c.target")));
    sandbox.applied(&with("c", enable(true, contents("WantedBy=d.target"))));
    let wants = |target: &str| sandbox.path(&format!("{UNITS}/{target}.target.wants/x.service"));
    assert!(std::fs::symlink_metadata(wants("d")).is_ok());
    assert!(std::fs::symlink_metadata(wants("b")).is_err());
    assert!(std::fs::symlink_metadata(wants("m")).is_ok());
    assert!(std::fs::symlink_metadata(wants("h")).is_ok());
}
