//! Units that `Also=` names, on machines that apply configs one after another and leave them, compared with
//! `systemctl --root` where it is installed.

use std::collections::BTreeMap;

use machinist_base::reason::Reason;
use machinist_ignition::{MachineConfig, Refusal};
use machinist_plan::{Plan, Policies};
use machinist_testkit::sandbox::{Sandbox, Written};
use machinist_update::{
    crash_recovery,
    observe_and_plan::{PlanOptions, observe_and_plan},
    store::StateStore,
};

use super::{
    oracle::UNITS,
    support::{OFFLINE, Tree, links_in},
    unit_entries::{entries, plan, systemctl},
};

pub(crate) const VENDOR: &str = "/usr/lib/systemd/system";
pub(crate) const PRESETS: &str = "/usr/lib/systemd/system-preset/50-x.preset";

/// A unit file with these lines in `[Install]`.
pub(crate) fn install(lines: &str) -> String {
    format!("[Service]\nExecStart=/x\n[Install]\n{lines}")
}

/// The same in a JSON string.
pub(crate) fn quoted(lines: &str) -> String {
    install(lines).replace('\n', "\\n")
}

/// A machine with these unit files and links, and the same tree for systemctl.
pub(crate) struct Machine {
    sandbox: Sandbox,
    pub(crate) theirs: Tree,
}

impl Machine {
    pub(crate) fn new(files: &[(&str, &str)], links: &[(&str, &str)]) -> Self {
        let machine = Self {
            sandbox: Sandbox::new(),
            theirs: Tree::new(),
        };
        for (path, lines) in files {
            let text = match path.ends_with(".preset") {
                true => (*lines).to_owned(),
                false => install(lines),
            };
            machine.sandbox.write(path, &text);
            machine.theirs.write(path, &text);
        }
        for (path, target) in links {
            let at = machine.sandbox.path(path);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, at).unwrap();
            machine.theirs.link(path, target);
        }
        machine
    }

    /// The plan from the present config.
    pub(crate) fn plan(&self, config: &MachineConfig) -> Result<Plan, Vec<Refusal>> {
        let store = StateStore::open(&self.sandbox.root()).unwrap();
        let (journal, _) = crash_recovery::recover(&store).unwrap();
        let options = PlanOptions {
            policies: &Policies::default(),
            capabilities: OFFLINE,
            units: None,
            only: None,
            remembered: store.remembered(),
        };
        let looked = observe_and_plan(store.root(), &journal, config, options);
        looked.unwrap().plan
    }

    /// Applies a config, and looks that nothing is left to do.
    pub(crate) fn apply(&self, config: &MachineConfig) {
        self.sandbox.applied(&Written(config.clone()));
        let again = self.plan(config).unwrap();
        assert!(
            again.operations.is_empty(),
            "{config:#?}\n{:#?}",
            again.operations
        );
    }

    pub(crate) fn leave(&self) {
        self.sandbox.applied(&Written(MachineConfig::default()));
    }

    pub(crate) fn links(&self) -> BTreeMap<String, String> {
        links_in(&self.sandbox.path(""), &format!("{UNITS}/"))
    }

    /// Runs systemctl on the other tree, and compares the links where it is installed.
    pub(crate) fn is_as_after(&self, commands: &[&[&str]]) {
        for words in commands {
            if systemctl(&self.theirs, words).is_none() {
                return;
            }
        }
        let theirs = self.theirs.links(&format!("{UNITS}/"));
        assert_eq!(self.links(), theirs, "{commands:?}");
    }
}

pub(crate) fn names(links: &BTreeMap<String, String>) -> Vec<&str> {
    let names = links.keys();
    names
        .map(|path| path.strip_prefix("etc/systemd/system/").unwrap())
        .collect()
}

#[test]
fn a_companion_that_the_presets_enable_leaves_with_its_entry() {
    let presets = "enable podman.socket\ndisable *\n";
    let socket =
        r#"{"name": "podman.socket", "dropins": [{"name": "x.conf", "contents": "[Socket]\n"}]}"#;
    let off = r#"{"name": "podman.service", "enabled": false}"#;
    let to = entries("", &format!("{off}, {socket}"));
    let made = ["sockets.target.wants/podman.socket"];
    for enabled_before in [false, true] {
        let files = [
            (PRESETS, presets),
            (
                "/usr/lib/systemd/system/podman.service",
                "WantedBy=m.target\nAlso=podman.socket\n",
            ),
            (
                "/usr/lib/systemd/system/podman.socket",
                "WantedBy=sockets.target\n",
            ),
        ];
        let path = format!("{UNITS}/{}", made[0]);
        let target = format!("{VENDOR}/podman.socket");
        let links = [(path.as_str(), target.as_str())];
        let machine = Machine::new(&files, if enabled_before { &links } else { &[] });
        let before = machine.links();
        machine.apply(&to);
        assert_eq!(names(&machine.links()), made);
        machine.is_as_after(&[&["disable", "podman.service"], &["preset", "podman.socket"]]);
        machine.leave();
        assert_eq!(machine.links(), before);
    }
}

#[test]
fn a_companion_that_came_with_the_config_leaves_with_it() {
    let machine = Machine::new(&[], &[]);
    let a = quoted("WantedBy=m.target\\nAlso=b.service\\n");
    let b = quoted("WantedBy=n.target\\n");
    let to = entries(
        "",
        &format!(
            r#"{{"name": "a.service", "enabled": false, "contents": "{a}"}},
               {{"name": "b.service", "contents": "{b}"}}"#
        ),
    );
    machine.apply(&to);
    assert_eq!(names(&machine.links()), ["n.target.wants/b.service"]);
    machine.leave();
    assert_eq!(names(&machine.links()), [""; 0]);
}

#[test]
fn a_companion_named_by_its_alias_is_enabled_again_when_the_config_leaves() {
    let machine = Machine::new(
        &[
            (
                "/usr/lib/systemd/system/app.service",
                "WantedBy=m.target\nAlso=sshd.service\n",
            ),
            (
                "/usr/lib/systemd/system/ssh.service",
                "WantedBy=m.target\nAlias=sshd.service\n",
            ),
        ],
        &[
            (
                "/etc/systemd/system/m.target.wants/app.service",
                "/usr/lib/systemd/system/app.service",
            ),
            (
                "/etc/systemd/system/m.target.wants/ssh.service",
                "/usr/lib/systemd/system/ssh.service",
            ),
            (
                "/etc/systemd/system/sshd.service",
                "/usr/lib/systemd/system/ssh.service",
            ),
        ],
    );
    let before = machine.links();
    let off = entries("", r#"{"name": "app.service", "enabled": false}"#);
    machine.apply(&off);
    assert_eq!(names(&machine.links()), [""; 0]);
    machine.is_as_after(&[&["disable", "app.service"]]);
    machine.leave();
    assert_eq!(machine.links(), before);
}

#[test]
fn companions_named_in_drop_ins_are_enabled() {
    let on = r#"{"name": "a.service", "enabled": true}"#;
    let drop_in = "/etc/systemd/system/a.service.d/x.conf";
    let file = format!(
        r#""files": [{{"path": "{drop_in}",
            "contents": {{"source": "data:,%5BInstall%5D%0AAlso=b.service%0A"}}}}]"#
    );
    let with_drop_in = r#"{"name": "a.service", "enabled": true, "dropins": [
        {"name": "x.conf", "contents": "[Install]\nAlso=b.service\n"}]}"#;
    for (config, on_machine) in [
        (entries("", with_drop_in), false),
        (entries(&file, on), false),
        (entries("", on), true),
    ] {
        let machine = Machine::new(
            &[
                ("/usr/lib/systemd/system/a.service", "WantedBy=m.target\n"),
                ("/usr/lib/systemd/system/b.service", "WantedBy=n.target\n"),
            ],
            &[],
        );
        let text = "[Install]\nAlso=b.service\n";
        machine.theirs.write(drop_in, text);
        if on_machine {
            machine.sandbox.write(drop_in, text);
        }
        machine.apply(&config);
        let made = ["m.target.wants/a.service", "n.target.wants/b.service"];
        assert_eq!(names(&machine.links()), made);
        machine.is_as_after(&[&["enable", "a.service"]]);
        machine.leave();
        assert_eq!(names(&machine.links()), [""; 0]);
    }
}

#[test]
fn instances_of_a_template_that_also_names_are_enabled() {
    let machine = Machine::new(
        &[
            (
                "/usr/lib/systemd/system/a.service",
                "Also=wg-quick@wg0.service\n",
            ),
            (
                "/usr/lib/systemd/system/wg-quick@.service",
                "WantedBy=multi-user.target\nAlso=b.service c-%i.service\n",
            ),
            ("/usr/lib/systemd/system/b.service", "WantedBy=m.target\n"),
            (
                "/usr/lib/systemd/system/c-wg0.service",
                "WantedBy=m.target\n",
            ),
        ],
        &[],
    );
    machine.apply(&entries("", r#"{"name": "a.service", "enabled": true}"#));
    let made = [
        "m.target.wants/b.service",
        "m.target.wants/c-wg0.service",
        "multi-user.target.wants/wg-quick@wg0.service",
    ];
    assert_eq!(names(&machine.links()), made);
    machine.is_as_after(&[&["enable", "a.service"]]);
    machine.leave();
    assert_eq!(names(&machine.links()), [""; 0]);
}

#[test]
fn an_empty_also_keeps_the_names_before_it() {
    let machine = Machine::new(
        &[
            (
                "/usr/lib/systemd/system/a.service",
                "Also=b.service\nAlso=\n",
            ),
            ("/usr/lib/systemd/system/b.service", "WantedBy=m.target\n"),
        ],
        &[],
    );
    machine.apply(&entries("", r#"{"name": "a.service", "enabled": true}"#));
    assert_eq!(names(&machine.links()), ["m.target.wants/b.service"]);
    machine.is_as_after(&[&["enable", "a.service"]]);
}

#[test]
fn a_template_with_an_invalid_default_instance_is_not_enabled() {
    for default in ["a/b", "a/b\nDefaultInstance=ok"] {
        let text = format!("WantedBy=m.target\nDefaultInstance={default}\n");
        let also = "WantedBy=m.target\nAlso=t@.service\n";
        let machine = Machine::new(
            &[
                ("/usr/lib/systemd/system/t@.service", &text),
                ("/usr/lib/systemd/system/a.service", also),
            ],
            &[],
        );
        let both =
            r#"{"name": "t@.service", "enabled": true}, {"name": "a.service", "enabled": true}"#;
        let to = entries("", both);
        let planned = plan(&machine.theirs, &MachineConfig::default(), &to).unwrap();
        let mut warnings = planned.warnings.iter();
        assert!(
            warnings.any(|warning| warning.contains("DefaultInstance=a/b")),
            "{planned:?}"
        );
        machine.apply(&to);
        assert_eq!(names(&machine.links()), ["m.target.wants/a.service"]);
        machine.is_as_after(&[&["enable", "t@.service"], &["enable", "a.service"]]);
    }
}

#[test]
fn an_entry_by_an_alias_that_two_preset_units_get_is_refused() {
    let (e, h) = (
        quoted("WantedBy=m.target\\nAlias=g.service\\n"),
        quoted("WantedBy=n.target\\nAlias=g.service\\n"),
    );
    let units = format!(
        r#"{{"name": "e.service", "contents": "{e}"}}, {{"name": "h.service", "contents": "{h}"}},
           {{"name": "g.service", "enabled": false}}"#
    );
    let to = entries("", &units);
    let refusals = plan(&Tree::new(), &MachineConfig::default(), &to).unwrap_err();
    let [refusal] = &refusals[..] else {
        panic!("{refusals:?}");
    };
    assert_eq!(refusal.reason, Reason::EntryDuplicate);
    let shown = refusal.to_string();
    assert!(
        shown.contains("e.service, h.service") && shown.contains("g.service"),
        "{shown}"
    );
}

#[test]
fn disabling_by_an_alias_of_a_preset_unit_and_of_an_enabled_one_is_refused() {
    let tree = Tree::new();
    let h = "[Install]\nWantedBy=n.target\nAlias=g.service\n";
    tree.write("/usr/lib/systemd/system/h.service", h);
    let e = quoted("WantedBy=m.target\\nAlias=g.service\\n");
    let also = quoted("WantedBy=m.target\\nAlso=h.service\\n");
    let units = format!(
        r#"{{"name": "e.service", "contents": "{e}"}}, {{"name": "g.service", "enabled": false}},
           {{"name": "t.service", "contents": "{also}", "enabled": true}}"#
    );
    let refusals = plan(&tree, &MachineConfig::default(), &entries("", &units)).unwrap_err();
    assert_eq!(refusals[0].reason, Reason::EntryDuplicate, "{refusals:?}");
    assert!(refusals[0].to_string().contains("e.service, h.service"));
}

#[test]
fn disabling_by_an_alias_of_the_base_config_contradicts_also() {
    let machine = Machine::new(&[], &[]);
    let h = |lines: &str| {
        format!(
            r#"{{"name": "h.service", "contents": "{}"}}"#,
            quoted(lines)
        )
    };
    let alias = h("WantedBy=n.target\nAlias=g.service\n").replace('}', r#", "enabled": true}"#);
    machine.apply(&entries("", &alias));
    let to = format!(
        r#"{}, {{"name": "b.service", "enabled": true, "contents": "{}"}},
           {{"name": "g.service", "enabled": false}}"#,
        h("WantedBy=m.target\n").replace('}', r#", "enabled": null}"#),
        quoted("WantedBy=n.target\nAlso=h.service\n")
    );
    let refusals = machine.plan(&entries("", &to)).unwrap_err();
    let reasons: Vec<_> = refusals.iter().map(|refusal| refusal.reason).collect();
    assert_eq!(reasons, [Reason::EntryDuplicate], "{refusals:?}");
    assert!(refusals[0].to_string().contains("Also= of b.service"));
    // Without the other unit, the entry disables the unit behind its alias.
    let alone = format!(
        r#"{}, {{"name": "g.service", "enabled": false}}"#,
        h("WantedBy=m.target\n")
    );
    machine.apply(&entries("", &alone));
    assert_eq!(machine.links(), BTreeMap::new());
}

/// Presets, a unit with an alias that is enabled, and a timer with its service.
fn server() -> Machine {
    let ssh = "/usr/lib/systemd/system/ssh.service";
    Machine::new(
        &[
            (PRESETS, "enable ssh.service\nenable t.*\ndisable *\n"),
            (ssh, "WantedBy=multi-user.target\nAlias=sshd.service\n"),
            (
                "/usr/lib/systemd/system/t.service",
                "WantedBy=multi-user.target\n",
            ),
        ],
        &[
            (
                "/etc/systemd/system/multi-user.target.wants/ssh.service",
                ssh,
            ),
            ("/etc/systemd/system/sshd.service", ssh),
        ],
    )
}

#[test]
fn a_preset_companion_with_a_drop_in_leaves_with_its_entry() {
    let machine = server();
    let before = machine.links();
    let t = r#"{"name": "t.service", "dropins": [
        {"name": "x.conf", "contents": "[Install]\nWantedBy=timers.target\n"}]}"#;
    let sshd = quoted("WantedBy=multi-user.target\\nAlso=t.service\\n");
    let sshd = format!(r#"{{"name": "sshd.service", "enabled": false, "contents": "{sshd}"}}"#);
    machine.apply(&entries("", &format!("{t}, {sshd}")));
    let made = [
        "multi-user.target.wants/t.service",
        "timers.target.wants/t.service",
    ];
    let links = machine.links();
    for link in made {
        assert!(names(&links).contains(&link), "{links:?}");
    }
    machine.leave();
    assert_eq!(machine.links(), before);
}

#[test]
fn an_alias_link_from_before_the_config_is_restored_after_two_configs() {
    for more in ["", "Alias=al.service\\n"] {
        let machine = server();
        let before = machine.links();
        let sshd = quoted(&format!("WantedBy=multi-user.target\\n{more}"));
        let ssh = quoted("WantedBy=multi-user.target\\n");
        let sshd = format!(r#"{{"name": "sshd.service", "enabled": true, "contents": "{sshd}"}}"#);
        let ssh = format!(r#"{{"name": "ssh.service", "contents": "{ssh}"}}"#);
        machine.apply(&entries("", &format!("{sshd}, {ssh}")));
        machine.apply(&entries("", &ssh));
        machine.leave();
        assert_eq!(machine.links(), before, "{more}");
    }
}

#[test]
fn links_that_loop_count_as_missing() {
    let loops = [
        ("/etc/systemd/system/a.service", "a.service"),
        ("/etc/systemd/system/x.service.d/l.conf", "l.conf"),
        (
            "/etc/systemd/system/x.service.d/k.conf",
            "../x.service.d/k.conf",
        ),
        ("/etc/systemd/system/y.service.d", "y.service.d"),
        ("/etc/systemd/system/m.target.wants", "m.target.wants"),
        ("/etc/systemd/system-preset/10-l.preset", "10-l.preset"),
        ("/usr/lib/systemd/system-preset", "system-preset"),
        ("/etc/os-release", "os-release"),
        ("/usr/lib/os-release", "os-release"),
        ("/etc/ssh/sshd_config", "sshd_config"),
        ("/etc/ssh/sshd_config.d/l.conf", "l.conf"),
    ];
    let units = r#"{"name": "a.service", "enabled": false}, {"name": "x.service", "enabled": true},
        {"name": "y.service", "enabled": true}"#;
    let own = format!(r#""links": [{{"path": "{UNITS}/b.service", "target": "b.service"}}]"#);
    for at in loops {
        let machine = Machine::new(
            &[("/usr/lib/systemd/system/x.service", "WantedBy=n.target\n")],
            &[at],
        );
        let before = machine.links();
        machine.apply(&entries(&own, units));
        assert!(names(&machine.links()).contains(&"b.service"), "{at:?}");
        assert!(
            names(&machine.links()).contains(&"n.target.wants/x.service"),
            "{at:?}"
        );
        machine.leave();
        assert_eq!(machine.links(), before, "{at:?}");
    }
}

#[test]
fn an_instance_that_is_enabled_by_name_keeps_the_links_of_its_template() {
    let machine = Machine::new(&[], &[]);
    let template = |lines: &str| {
        let text = quoted(&format!("DefaultInstance=one\\n{lines}"));
        format!(r#"{{"name": "d@.service", "contents": "{text}"}}"#)
    };
    machine.apply(&entries("", &template("WantedBy=m.target\\n")));
    let made = ["m.target.wants/d@one.service"];
    assert_eq!(names(&machine.links()), made);
    let one = r#"{"name": "d@one.service", "enabled": true}"#;
    machine.apply(&entries("", &format!("{}, {one}", template(""))));
    assert_eq!(names(&machine.links()), made);
    machine.leave();
    assert_eq!(names(&machine.links()), [""; 0]);
}
