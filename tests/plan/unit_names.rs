//! Specifiers in `[Install]`, and units beside the administrator's directory, compared with `systemctl --root` where
//! it is installed.

use machinist_ignition::MachineConfig;

use super::{
    oracle::UNITS,
    support::Tree,
    unit_entries::{UNIT, entries, plan, systemctl, unit_set, warnings},
};

#[test]
fn install_section_specifiers_are_expanded_as_by_systemctl() {
    for (word, machine) in [
        ("%m", ""),
        ("%a", ""),
        ("%o", ""),
        ("%w", ""),
        ("%W", ""),
        ("%B", ""),
        ("%A", ""),
        ("%M", ""),
        ("%u", ""),
        ("%U", ""),
        ("%g", ""),
        ("%G", ""),
        ("%n", ""),
        ("%i", ""),
        ("%j", ""),
        ("%h", "not allowed"),
        ("%I", "not allowed"),
        ("%J", "not allowed"),
        ("%z", "not allowed"),
        ("%H", "may change"),
        ("%l", "may change"),
        ("%q", "may change"),
        ("%v", "may change"),
        ("%b", "may change"),
    ] {
        let (ours, theirs) = (Tree::new(), Tree::new());
        for tree in [&ours, &theirs] {
            tree.write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n");
            tree.write(
                "/usr/lib/os-release",
                "ID=\"fedora\"\nVERSION_ID='39'\nIMAGE_ID=i\n",
            );
            // The name of a unit is not part of another name with the same instance.
            let alias = match word {
                "%n" => String::new(),
                _ => format!("Alias=al-{word}@ins.service\n"),
            };
            let text = format!("{UNIT}WantedBy=q-{word}.target\n{alias}");
            tree.write(&format!("{UNITS}/foo-bar@ins.service"), &text);
        }
        let name = "foo-bar@ins.service";
        let plan = plan(&ours, &MachineConfig::default(), &unit_set(name, true)).unwrap();
        ours.apply(&plan);
        let warnings = warnings(&plan);
        let named = |warning: &&&String| warning.contains(word) && warning.contains(machine);
        let expected = if machine.is_empty() { 0 } else { 2 };
        assert_eq!(warnings.len(), expected, "{word}: {warnings:?}");
        assert_eq!(
            warnings.iter().filter(named).count(),
            expected,
            "{warnings:?}"
        );
        if machine == "may change" {
            assert_eq!(ours.links(UNITS).len(), 1, "{word}");
        } else if systemctl(&theirs, &["enable", name]).is_some() {
            assert_eq!(ours.links(UNITS), theirs.links(UNITS), "{word}");
        }
    }
}

#[test]
fn unresolvable_unit_specifiers_are_reported() {
    let tree = Tree::new();
    let text = "[Service]\nExecStart=/x\n[Install]\nWantedBy=q-%m.target\nRequiredBy=q-%o.target\n";
    tree.write(&format!("{UNITS}/x.service"), text);
    let plan = plan(
        &tree,
        &MachineConfig::default(),
        &unit_set("x.service", true),
    )
    .unwrap();
    let warnings = warnings(&plan);
    let [id, os] = &warnings[..] else {
        panic!("{warnings:?}");
    };
    assert!(id.contains("%m") && id.contains("/etc/machine-id"), "{id}");
    assert!(os.contains("%o") && os.contains("os-release"), "{os}");
}

#[test]
fn units_outside_etc_systemd_system_are_found() {
    for directory in [
        "/etc/systemd/system.control",
        "/etc/systemd/system.attached",
        "/run/systemd/system.control",
        "/run/systemd/system.attached",
    ] {
        for more in [&["/usr/lib/systemd/system"][..], &["/etc/systemd/system"]] {
            let (ours, theirs) = (Tree::new(), Tree::new());
            for tree in [&ours, &theirs] {
                tree.write(&format!("{directory}/x.service"), UNIT);
                for other in more {
                    let text = UNIT.replace("m.target", "n.target");
                    tree.write(&format!("{other}/x.service"), &text);
                }
            }
            let plan = plan(
                &ours,
                &MachineConfig::default(),
                &unit_set("x.service", true),
            )
            .unwrap();
            assert_eq!(warnings(&plan), [""; 0], "{directory}");
            ours.apply(&plan);
            assert_eq!(ours.links(UNITS).len(), 1, "{directory} {more:?}");
            if systemctl(&theirs, &["enable", "x.service"]).is_some() {
                assert_eq!(
                    ours.links(UNITS),
                    theirs.links(UNITS),
                    "{directory} {more:?}"
                );
            }
        }
    }
}

#[test]
fn a_mask_overridden_by_a_directory_of_higher_precedence_is_reported() {
    let tree = Tree::new();
    tree.write("/etc/systemd/system.control/x.service", UNIT);
    let to = entries("", r#"{"name": "x.service", "mask": true}"#);
    let plan = plan(&tree, &MachineConfig::default(), &to).unwrap();
    let warned = plan
        .warnings
        .iter()
        .any(|warning| warning.contains("system.control"));
    assert!(warned, "{:?}", plan.warnings);
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of links")]
fn unit_files_behind_links_are_found_as_by_systemctl() {
    let storage = |path: &str, target: &str, hard: bool| {
        format!(r#""links": [{{"path": "{path}", "target": "{target}", "hard": {hard}}}]"#)
    };
    let unit = format!("{UNITS}/x.service");
    let template = format!("{UNITS}/x@.service");
    let part = format!("{UNITS}/v.service.d/i.conf");
    let parts = format!("{UNITS}/v.service.d");
    let preset = "/etc/systemd/system-preset/10-x.preset";
    let relative = |target: &str| format!("../../..{target}");
    let enabled = |name: &str| format!(r#"{{"name": "{name}", "enabled": true}}"#);
    let contents = r#"{"name": "n.service", "contents": "[Service]\nExecStart=/x\n[Install]\nWantedBy=m.target\n"}"#;
    let conf = "/opt/dd/i.conf".to_owned();
    for (path, target, hard, entry, verb) in [
        (
            unit.as_str(),
            "/opt/x.service".to_owned(),
            true,
            enabled("x.service"),
            "enable x.service",
        ),
        (
            &template,
            "/opt/x.service".to_owned(),
            true,
            enabled("x@1.service"),
            "enable x@1.service",
        ),
        (
            &part,
            conf.clone(),
            true,
            enabled("v.service"),
            "enable v.service",
        ),
        (
            &part,
            format!("../{}", relative(&conf)),
            false,
            enabled("v.service"),
            "enable v.service",
        ),
        (
            &parts,
            relative("/opt/dd"),
            false,
            enabled("v.service"),
            "enable v.service",
        ),
        (
            preset,
            "/opt/p".to_owned(),
            true,
            contents.to_owned(),
            "preset n.service",
        ),
        (
            preset,
            relative("/opt/p"),
            false,
            contents.to_owned(),
            "preset n.service",
        ),
    ] {
        let (ours, theirs) = (Tree::new(), Tree::new());
        for tree in [&ours, &theirs] {
            tree.write("/opt/x.service", UNIT);
            tree.write("/usr/lib/systemd/system/v.service", UNIT);
            tree.write(&conf, "[Install]\nWantedBy=y.target\n");
            tree.write("/opt/p", "disable *\n");
            for target in ["m", "y"] {
                std::fs::create_dir_all(tree.at(&format!("{UNITS}/{target}.target.wants")))
                    .unwrap();
            }
        }
        let to = entries(&storage(path, &target, hard), &entry);
        let planned = plan(&ours, &MachineConfig::default(), &to).unwrap();
        assert_eq!(warnings(&planned), [""; 0], "{path}");
        let starts = |plan: &machinist_plan::Plan| {
            let wants = plan.operations.iter();
            let wants = wants.map(|operation| operation.target.to_string());
            let wants = wants.filter_map(|target| Some(target.split_once(".wants")?.0.to_owned()));
            wants.collect::<std::collections::BTreeSet<_>>()
        };
        if hard {
            let at = theirs.at(path);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::fs::hard_link(theirs.at(&target), at).unwrap();
        } else {
            theirs.link(path, &target);
        }
        if verb.starts_with("preset") {
            theirs.write(&format!("{UNITS}/n.service"), UNIT);
        }
        let words: Vec<&str> = verb.split(' ').collect();
        if systemctl(&theirs, &words).is_some() {
            let links = theirs.links(UNITS).into_keys();
            let made = links.filter_map(|link| Some(format!("/{}", link.split_once(".wants")?.0)));
            assert_eq!(starts(&planned), made.collect(), "{path} {target}");
        }
    }
}
