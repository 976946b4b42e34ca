//! Whether a change of registries.conf drains, compared with the rule of machine-config-daemon on
//! generated pairs: never a drain where that has none, except the cases in docs/policies.md.

use std::{collections::BTreeMap, fmt::Write as _};

use machinist_plan::same_images;

use super::support::{Dice, from_environment};

#[derive(Clone, Debug, PartialEq)]
struct Mirror {
    location: &'static str,
    pull: &'static str,
    insecure: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Registry {
    prefix: &'static str,
    location: &'static str,
    blocked: bool,
    insecure: bool,
    by_digest: bool,
    mirrors: Vec<Mirror>,
}

#[derive(Clone, Debug, PartialEq)]
struct Conf {
    search: Vec<&'static str>,
    mode: &'static str,
    registries: Vec<Registry>,
}

impl Mirror {
    fn any(dice: &mut Dice) -> Self {
        Self {
            location: *dice.pick(&["m.one", "m.two", "m.three/x"]),
            pull: *dice.pick(&["", "", "", "digest-only", "all"]),
            insecure: dice.one_in(6),
        }
    }

    fn for_digests(&self, of: &Registry) -> bool {
        match self.pull {
            "" => of.by_digest,
            pull => pull == "digest-only",
        }
    }
}

impl Registry {
    fn any(dice: &mut Dice) -> Self {
        let location = *dice.pick(&["quay.io", "quay.io/one", "quay.io/two", "docker.io/x"]);
        Self {
            prefix: match dice.below(5) {
                0 => location,
                1 => "other.io",
                _ => "",
            },
            location,
            blocked: dice.one_in(8),
            insecure: dice.one_in(8),
            by_digest: !dice.one_in(3),
            mirrors: (0..dice.below(4)).map(|_| Mirror::any(dice)).collect(),
        }
    }

    fn scope(&self) -> &'static str {
        match self.prefix {
            "" => self.location,
            prefix => prefix,
        }
    }

    fn all_for_digests(&self) -> bool {
        self.mirrors.iter().all(|it| it.for_digests(self))
    }

    /// Mirrors for tags, in their order, with their transport.
    fn for_tags(&self) -> Vec<&Mirror> {
        let all = self.mirrors.iter();
        all.filter(|it| !it.for_digests(self)).collect()
    }
}

impl Conf {
    fn any(dice: &mut Dice) -> Self {
        Self {
            search: vec!["registry.example", "docker.io"],
            mode: *dice.pick(&["", "", "permissive"]),
            registries: (0..1 + dice.below(4))
                .map(|_| Registry::any(dice))
                .collect(),
        }
    }

    fn change(&mut self, dice: &mut Dice) {
        let at = dice.below(self.registries.len());
        let registry = &mut self.registries[at];
        match dice.below(12) {
            0 => self.search.push("quay.io"),
            1 => self.search.swap(0, 1),
            2 => self.mode = *dice.pick(&["", "enforcing", "permissive"]),
            3 | 4 => self.registries.push(Registry::any(dice)),
            5 => self.registries.push(self.registries[at].clone()),
            6 | 7 => registry.mirrors.push(Mirror::any(dice)),
            8 => registry.mirrors.reverse(),
            9 => registry.by_digest = !registry.by_digest,
            10 => registry.blocked = !registry.blocked,
            _ => registry
                .mirrors
                .iter_mut()
                .for_each(|it| it.pull = "digest-only"),
        }
    }

    /// By name; of a duplicate name the last one counts.
    fn by_scope(&self) -> BTreeMap<&str, &Registry> {
        self.registries.iter().map(|it| (it.scope(), it)).collect()
    }

    /// The text as a user, a controller or a program writes it.
    fn spelled(&self, dice: &mut Dice) -> String {
        let mut text = String::new();
        let maybe = |dice: &mut Dice, output: bool| output || dice.one_in(2);
        if dice.one_in(3) {
            text += "# written by a program\n";
        }
        let _ = writeln!(text, "unqualified-search-registries = {:?}", self.search);
        if maybe(dice, !self.mode.is_empty()) {
            let _ = writeln!(text, "short-name-mode = \"{}\"  # a word", self.mode);
        }
        if dice.one_in(2) {
            text += "additional-layer-store-auth-helper = \"\"\n";
        }
        if dice.one_in(3) {
            text += "credential-helpers = []\n";
        }
        for registry in &self.registries {
            text += "[[registry]]\n";
            if maybe(dice, !registry.prefix.is_empty()) {
                let _ = writeln!(text, "  prefix = \"{}\"", registry.prefix);
            }
            let _ = writeln!(text, "  location = \"{}\"", registry.location);
            for (key, value) in [
                ("blocked", registry.blocked),
                ("insecure", registry.insecure),
                ("mirror-by-digest-only", registry.by_digest),
            ] {
                if maybe(dice, value) {
                    let _ = writeln!(text, "  {key} = {value}");
                }
            }
            for mirror in &registry.mirrors {
                let _ = writeln!(
                    text,
                    "  [[registry.mirror]]\n  location = \"{}\"",
                    mirror.location
                );
                if maybe(dice, !mirror.pull.is_empty()) {
                    let _ = writeln!(text, "  pull-from-mirror = \"{}\"", mirror.pull);
                }
                if maybe(dice, mirror.insecure) {
                    let _ = writeln!(text, "  insecure = {}", mirror.insecure);
                }
            }
        }
        text
    }
}

/// The daemon's rule; where its versions differ, that of the version that drains less.
fn daemon_drains(old: &Conf, new: &Conf) -> bool {
    let (before, after) = (old.by_scope(), new.by_scope());
    let changed = |(name, new): (&&str, &&Registry)| {
        let Some(old) = before.get(name) else {
            return !new.by_digest && (new.mirrors.is_empty() || !new.all_for_digests());
        };
        let removed = |mirror: &Mirror| {
            let mut now = new.mirrors.iter();
            !now.any(|it| it.location == mirror.location)
        };
        let added = |mirror: &Mirror| {
            let mut known = old.mirrors.iter();
            !known.any(|it| it.location == mirror.location) && !mirror.for_digests(new)
        };
        let opened = |mirror: &Mirror| {
            let mut now = new
                .mirrors
                .iter()
                .filter(|it| it.location == mirror.location);
            mirror.for_digests(old) && now.any(|it| !it.for_digests(new))
        };
        (old.prefix, old.location, old.blocked, old.insecure)
            != (new.prefix, new.location, new.blocked, new.insecure)
            || old.by_digest && !new.by_digest && !new.all_for_digests()
            || old.mirrors.iter().any(removed)
            || new.mirrors.iter().any(added)
            || old.mirrors.iter().any(opened)
    };
    !new.search.starts_with(&old.search)
        || before.keys().any(|name| !after.contains_key(name))
        || after.iter().any(changed)
}

/// The differences that docs/policies.md names.
fn is_named(old: &Conf, new: &Conf) -> bool {
    let before = old.by_scope();
    let twice = |conf: &Conf| conf.registries.len() != conf.by_scope().len();
    let added = |(name, registry): (&&str, &&Registry)| {
        let odd = registry.blocked || registry.insecure || registry.location != *name;
        !before.contains_key(name) && (odd || !registry.all_for_digests())
    };
    let reached_otherwise = |(name, registry): (&&str, &&Registry)| {
        let known = before.get(name);
        known.is_some_and(|known| {
            let still = known.for_tags();
            let still = still.into_iter().filter(|it| {
                let mut now = registry.mirrors.iter();
                now.any(|now| now.location == it.location && !now.for_digests(registry))
            });
            !still.eq(registry.for_tags()) || registry.mirrors.iter().any(|it| it.insecure)
        })
    };
    old.mode != new.mode
        || twice(old) && old.registries != new.registries
        || twice(new) && !new.registries.starts_with(&old.registries)
        || twice(new)
            && new
                .registries
                .iter()
                .any(|it| it != new.by_scope()[it.scope()])
        || new.by_scope().iter().any(added)
        || new.by_scope().iter().any(reached_otherwise)
}

#[test]
fn registries_changes_never_drain_where_machine_config_daemon_does_not() {
    let long = std::env::var_os("LONG").is_some();
    let rounds = from_environment("ROUNDS", if long { 200_000 } else { 5_000 });
    let seed = from_environment("SEED", 1);
    let (mut compared, mut drains) = (0, 0);
    for round in seed..seed + rounds {
        let mut dice = Dice(round);
        let old = Conf::any(&mut dice);
        let mut new = old.clone();
        for _ in 0..dice.below(3) {
            new.change(&mut dice);
        }
        let texts = [old.spelled(&mut dice), new.spelled(&mut dice)];
        let context = || format!("ROUNDS=1 SEED={round}\n{}\nto\n{}", texts[0], texts[1]);
        let same = same_images(&texts[0], &texts[1]);
        if daemon_drains(&old, &new) {
            drains += 1;
        } else if !is_named(&old, &new) {
            compared += 1;
            assert!(same, "{}", context());
        }
        assert!(old != new || same, "another spelling drains: {}", context());
    }
    assert!(
        rounds < 100 || compared * 5 > rounds && drains * 5 > rounds,
        "{compared}, {drains}"
    );
}
