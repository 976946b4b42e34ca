//! Small updates with one feature each, so that every state which a power loss may leave can be
//! tried.

use machinist_ignition::{Unit, UnitName, User};
use machinist_rootfs::Root;

use machinist_testkit::{
    sandbox::{Sandbox, Written, apply, at, config, long},
    stepwise_update::StepwiseUpdate,
    update_case::Case,
};

/// The course of a case's update.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// From one config to the other.
    Forward,
    /// Through the configs in between, one after the other.
    InARow(fn() -> Vec<Written>),
    /// Committed, and rolled back because the config is no longer desired.
    Withdrawn,
    /// Staged, and rolled back.
    WithdrawnEarly,
}

impl Way {
    pub(crate) fn run(self, root: &Root, case: &Case) {
        match self {
            Self::Forward => drop(apply(root, &case.to)),
            Self::InARow(between) => {
                for config in between().iter().chain([&case.to]) {
                    // If one is killed, the next does not begin.
                    if apply(root, config).is_ok_and(|report| report.failure.is_some()) {
                        return;
                    }
                }
            }
            Self::Withdrawn => {
                let mut update = StepwiseUpdate::open(root);
                update.stage(&case.to).unwrap();
                update.commit().unwrap();
                update.undo().unwrap();
            }
            Self::WithdrawnEarly => {
                let mut update = StepwiseUpdate::open(root);
                update.stage(&case.to).unwrap();
                update.undo().unwrap();
            }
        }
    }
}

trait More {
    fn with_unit(self, name: &str, unit: Unit) -> Self;
    fn keys(self, user: &str, keys: &[&str]) -> Self;
}

impl More for Written {
    fn with_unit(mut self, name: &str, unit: Unit) -> Self {
        self.0.units.insert(UnitName::new(name).unwrap(), unit);
        self
    }

    fn keys(mut self, user: &str, keys: &[&str]) -> Self {
        let ssh_authorized_keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let user_of = User {
            ssh_authorized_keys,
            ..User::default()
        };
        self.0.users.insert(user.to_owned(), user_of);
        self
    }
}

const DATA: &[&str] = &["/data"];
const THREE: &[&str] = &["/data", "/etc", "/srv"];
const UNIT: &str = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n";

fn enabled(text: &str, enabled: bool) -> Unit {
    Unit {
        contents: Some(text.to_owned()),
        enabled: Some(enabled),
        ..Unit::default()
    }
}

fn masked() -> Unit {
    Unit {
        mask: true,
        ..Unit::default()
    }
}

/// A machine with objects of every kind.
fn furnished(mounts: &[&str]) -> Sandbox {
    let sandbox = Sandbox::with_mounts(mounts);
    for (path, text) in [
        ("/etc/found", "found\n"),
        ("/etc/dir/in", "in a directory\n"),
        ("/data/found", "found\n"),
        ("/srv/found", "found\n"),
        ("/usr/lib/systemd/system/x.service", UNIT),
        ("/etc/passwd", "core:x:1000:1000::/home/core:/bin/sh\n"),
        ("/etc/group", "core:x:1000:\n"),
        ("/home/core/.ssh/authorized_keys", "ssh-ed25519 AAAA mine\n"),
    ] {
        sandbox.write(path, text);
    }
    sandbox
}

fn base() -> Written {
    config("from")
        .file("/etc/ours", "ours\n", 0o644)
        .file("/srv/tree/a", "a\n", 0o644)
        .file("/srv/tree/b", "b\n", 0o600)
        .link("/etc/link", "ours")
}

fn to() -> Written {
    let mut to = base();
    to.0.name = "to".to_owned();
    to
}

fn without(mut config: Written, path: &str) -> Written {
    config.0.files.remove(&at(path));
    config.0.links.remove(&at(path));
    config
}

fn middle() -> Vec<Written> {
    vec![
        to().file("/etc/ours", "middle\n", 0o644)
            .link("/etc/link", "found"),
    ]
}

fn forward(name: &'static str, to: Written) -> (&'static str, Case, Way) {
    on(name, DATA, base(), to)
}

fn on(
    name: &'static str,
    mounts: &'static [&'static str],
    from: Written,
    to: Written,
) -> (&'static str, Case, Way) {
    let case = Case::of(furnished(mounts), from, to, mounts);
    (name, case, Way::Forward)
}

/// Every case by its name.
pub(crate) fn all() -> Vec<(&'static str, Case, Way)> {
    [objects(), hard_links(), units(), sequences()]
        .into_iter()
        .flatten()
        .collect()
}

fn objects() -> Vec<(&'static str, Case, Way)> {
    let tree_away = without(without(to(), "/srv/tree/a"), "/srv/tree/b");
    vec![
        forward("file new", to().file("/etc/new", "new\n", 0o600)),
        forward("file changed", to().file("/etc/ours", "other\n", 0o640)),
        forward("file found", to().file("/etc/found", "ours now\n", 0o644)),
        forward("file removed", without(to(), "/etc/ours")),
        on(
            "file back",
            DATA,
            base().file("/etc/found", "ours\n", 0o644),
            to(),
        ),
        forward(
            "file to directory",
            without(to(), "/etc/ours").dir("/etc/ours", 0o755),
        ),
        forward(
            "file to link",
            without(to(), "/etc/ours").link("/etc/ours", "found"),
        ),
        forward(
            "link to file",
            without(to(), "/etc/link").file("/etc/link", "f\n", 0o644),
        ),
        forward(
            "link to directory",
            without(to(), "/etc/link").dir("/etc/link", 0o700),
        ),
        forward("link changed", to().link("/etc/link", "found")),
        on(
            "directory to file",
            DATA,
            base().dir("/etc/made", 0o755),
            to().file("/etc/made", "f\n", 0o644),
        ),
        on(
            "directory to link",
            DATA,
            base().dir("/etc/made", 0o755),
            to().link("/etc/made", "found"),
        ),
        forward(
            "tree new",
            to().file("/srv/new/a/b", "b\n", 0o644)
                .link("/srv/new/l", "a")
                .dir("/srv/new/e", 0o711),
        ),
        forward(
            "tree changed",
            to().file("/srv/tree/a", "z\n", 0o600)
                .file("/srv/tree/c", "c\n", 0o644),
        ),
        forward("tree removed", tree_away.clone()),
        forward("tree to file", tree_away.file("/srv/tree", "f\n", 0o644)),
        forward("mode of a directory", to().dir("/etc/dir", 0o700)),
        on("mode given back", DATA, base().dir("/etc/dir", 0o700), to()),
        on(
            "three mounts",
            THREE,
            base(),
            to().file("/data/found", "1\n", 0o644)
                .file("/srv/found", "2\n", 0o644)
                .file("/etc/found", "3\n", 0o644),
        ),
    ]
}

fn hard_links() -> Vec<(&'static str, Case, Way)> {
    let linked = |config: Written| config.hard("/etc/hard", "/etc/ours");
    let tree = |config: Written| {
        config
            .file("/srv/one/file", "one\n", 0o644)
            .file("/srv/two/file", "two\n", 0o600)
            .dir("/srv/one", 0o755)
            .dir("/srv/two", 0o700)
            .hard("/srv/one/two", "/srv/two/file")
            .hard("/srv/two/one", "/srv/one/file")
    };
    let changed = || linked(to()).file("/etc/ours", "other\n", 0o640);
    vec![
        forward("hard link new", linked(to())),
        forward(
            "hard link where a file was",
            to().hard("/etc/found", "/etc/ours"),
        ),
        forward(
            "hard link to what is found",
            to().hard("/etc/hard", "/etc/found"),
        ),
        on(
            "hard link follows its file",
            DATA,
            linked(base()),
            changed(),
        ),
        on(
            "hard link parted",
            DATA,
            linked(base()),
            to().file("/etc/hard", "ours\n", 0o644),
        ),
        on("hard link removed", DATA, linked(base()), to()),
        forward("hard links between trees", tree(to())),
        on("hard links between trees removed", DATA, tree(base()), to()),
    ]
}

fn units() -> Vec<(&'static str, Case, Way)> {
    let dropin = |text: &str| Unit {
        dropins: [("10-x.conf".to_owned(), text.to_owned())].into(),
        ..Unit::default()
    };
    let one = |config: Written, unit: Unit| config.with_unit("y.service", unit);
    let key = ["ssh-ed25519 AAAB one"];
    vec![
        forward("unit enabled", one(to(), enabled(UNIT, true))),
        on(
            "unit disabled",
            DATA,
            one(base(), enabled(UNIT, true)),
            one(to(), enabled(UNIT, false)),
        ),
        on(
            "unit masked",
            DATA,
            one(base(), enabled(UNIT, true)),
            one(to(), masked()),
        ),
        on("unit removed", DATA, one(base(), enabled(UNIT, true)), to()),
        on(
            "drop-in changed",
            DATA,
            base().with_unit("x.service", dropin("[Service]\nNice=1\n")),
            to().with_unit("x.service", dropin("[Service]\nNice=2\n")),
        ),
        forward("keys beside a person's own", to().keys("core", &key)),
        on(
            "keys changed",
            DATA,
            base().keys("core", &key),
            to().keys("core", &["ssh-ed25519 AAAC two"]),
        ),
        on("keys removed", DATA, base().keys("core", &key), to()),
    ]
}

fn sequences() -> Vec<(&'static str, Case, Way)> {
    let wide = || {
        without(to(), "/srv/tree/a")
            .file("/etc/ours", "other\n", 0o644)
            .file("/data/found", "ours now\n", 0o600)
            .dir("/etc/dir", 0o700)
            .file("/etc/new/file", "new\n", 0o644)
    };
    let case = || Case::of(furnished(DATA), base(), wide(), DATA);
    let linked = |config: Written| config.hard("/etc/hard", "/etc/ours");
    let linked = || Case::of(furnished(DATA), linked(base()), linked(wide()), DATA);
    let row = Case::through(furnished(DATA), base(), &middle(), wide(), DATA);
    let mut all = vec![
        ("everything", Case::everything(), Way::Forward),
        ("everything, withdrawn", Case::everything(), Way::Withdrawn),
        (
            "everything, withdrawn early",
            Case::everything(),
            Way::WithdrawnEarly,
        ),
    ];
    if long() {
        // More objects than are synced one by one: their states are drawn at random.
        all.push(("many", many(), Way::Forward));
        all.push(("many, withdrawn", many(), Way::Withdrawn));
    }
    all.extend([
        ("two configs in a row", row, Way::InARow(middle)),
        ("withdrawn after the commit", case(), Way::Withdrawn),
        ("hard link, withdrawn", linked(), Way::Withdrawn),
        ("withdrawn before the commit", case(), Way::WithdrawnEarly),
        ("several at once", case(), Way::Forward),
    ]);
    all
}

fn many() -> Case {
    let (mut from, mut to) = (base(), to());
    for number in 0..70 {
        let path = format!("/{}/many-{number}", ["etc", "data", "srv"][number % 3]);
        from = from.file(&path, "from\n", 0o644);
        to = to.file(&path, "to\n", 0o644);
    }
    Case::of(furnished(THREE), from, to, THREE)
}
