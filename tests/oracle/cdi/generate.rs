//! Random spec files: mostly valid ones, some with one defect, as JSON and as YAML.

use super::{Case, Text, tree::Tree};
use crate::support::Dice;

const VERSIONS: [&str; 17] = [
    "\"0.3.0\"",
    "\"0.4.0\"",
    "\"0.5.0\"",
    "0.6.0",
    "\"0.7.0\"",
    "0.8.0",
    "\"1.0.0\"",
    "\"1.1.0\"",
    "\"v0.6.0\"",
    "v1.1.0",
    "\"0.2.0\"",
    "\"1.2.0\"",
    "0.6",
    "\"vv1.1.0\"",
    "\"1.1.0 \"",
    "\"V1.1.0\"",
    "\"0.10.0\"",
];
const KINDS: [&str; 10] = [
    "acme.dev/gpu",
    "acme.dev/gpu",
    "acme.dev/gpu",
    "acme.dev/net",
    "a/b",
    "acme.dev/g.pu",
    "acme.dev/gpu/0",
    "acme",
    "1a/b",
    "acme.dev/g_",
];
const NAMES: [&str; 12] = [
    "\"0\"",
    "\"1\"",
    "gpu0",
    "gpu1",
    "a:b",
    "all",
    "1.5",
    "07",
    "true",
    "\"-x\"",
    "\"a_\"",
    "\"\u{e9}\"",
];
const TEXTS: [&str; 16] = [
    "\"A=1\"",
    "A=1",
    "\"A\"",
    "\"=1\"",
    "A==",
    "/dev/a",
    "\"/dev/a b\"",
    "'/dev/a'",
    "\"\"",
    "''",
    "~",
    "rw",
    "\"/dev/\\u0061\"",
    "\"/dev/\\/a\"",
    "\"A=\\ud83d\\ude00\"",
    "\"A=\\t\\\"\\\\\"",
];
const NUMBERS: [&str; 24] = [
    "0",
    "1",
    "195",
    "0666",
    "0o666",
    "438",
    "08",
    "-1",
    "+5",
    "4294967295",
    "4294967296",
    "0x1F",
    "0b11",
    "1_000",
    "1.5",
    "1e3",
    "\"5\"",
    "!!int 5",
    "!!int \"5\"",
    "!!float 5",
    "9223372036854775808",
    ".inf",
    "5.",
    "00",
];
const HOOKS: [&str; 7] = [
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
    "createruntime",
];
const LETTERS: [&str; 26] = [
    "{", "}", "[", "]", ":", ",", "\"", "'", "#", "&a ", "*a", "!", "|", ">", "-", "? ", "\n",
    "\t", " ", "%", "@", "\\", "~", "---\n", "...\n", "\r\n",
];

/// One to three files in two directories.
pub(super) fn case(dice: &mut Dice) -> Case {
    let mut case = Case::default();
    for _ in 0..=dice.below(3) {
        let ending = dice.pick(&["json", "yaml"]);
        let name = format!("{}.{ending}", dice.pick(&["a", "b", ".c"]));
        let dir = dice.below(2);
        case.dirs[dir].insert(name, Text(text(dice).into_bytes()));
    }
    case
}

fn text(dice: &mut Dice) -> String {
    let mut tree = spec(dice);
    for _ in 0..dice.below(3) {
        if dice.one_in(2) {
            tree.spoil(dice);
        }
    }
    let mut text = match dice.below(5) {
        0 => tree.flow("", ""),
        1 => tree.flow("\n", "  "),
        2 => tree.flow("\n", "\t"),
        _ => {
            let mut text = String::new();
            tree.block(&mut text, 0, dice);
            text
        }
    };
    if dice.one_in(8) {
        text.insert_str(
            0,
            dice.pick::<&str>(&[
                "---\n",
                "%YAML 1.1\n---\n",
                "%YAML 1.2\n---\n",
                "# x\n",
                "\u{feff}",
                "\n",
                "--- ",
            ]),
        );
    }
    if dice.one_in(8) {
        text += *dice.pick(&[
            "---\n", "\n---\n[", "\n...\n", "}", "\n# x\n", "]", "\n\n", " x", "\n...",
        ]);
    }
    if dice.one_in(10) {
        let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let at = *dice.pick(&places);
        match dice.below(3) {
            0 => text.insert_str(at, dice.pick::<&str>(&LETTERS)),
            1 => drop(text.remove(at)),
            _ => {
                text.remove(at);
                text.insert_str(at, dice.pick::<&str>(&LETTERS));
            }
        }
    }
    text
}

/// The first `right` values of `from` are valid, and chosen mostly.
fn mostly(dice: &mut Dice, from: &[&str], right: usize) -> Tree {
    match dice.one_in(12) {
        true => Tree::one(dice, from),
        false => Tree::one(dice, &from[..right]),
    }
}

fn list(dice: &mut Dice, item: impl Fn(&mut Dice) -> Tree) -> Tree {
    let count = 1 + dice.below(2);
    Tree::List((0..count).map(|_| item(dice)).collect())
}

/// Some of the fields, the first `always` of them at any rate.
/// A key, and what makes its value.
type Field<'f> = (&'f str, &'f dyn Fn(&mut Dice) -> Tree);

fn map(dice: &mut Dice, always: usize, fields: &[Field<'_>]) -> Tree {
    let mut map = Vec::new();
    for (at, (name, field)) in fields.iter().enumerate() {
        if at < always || dice.one_in(4) {
            map.push(((*name).to_owned(), field(dice)));
        }
    }
    Tree::Map(map)
}

fn spec(dice: &mut Dice) -> Tree {
    map(
        dice,
        3,
        &[
            ("cdiVersion", &|dice| match dice.one_in(2) {
                true => Tree::one(dice, &["\"1.1.0\"", "1.1.0"]),
                false => mostly(dice, &VERSIONS, 10),
            }),
            ("kind", &|dice| mostly(dice, &KINDS, 6)),
            ("devices", &|dice| list(dice, device)),
            ("containerEdits", &edits),
            ("annotations", &annotations),
        ],
    )
}

fn device(dice: &mut Dice) -> Tree {
    map(
        dice,
        2,
        &[
            ("name", &|dice| mostly(dice, &NAMES, 9)),
            ("containerEdits", &edits),
            ("annotations", &annotations),
        ],
    )
}

fn annotations(dice: &mut Dice) -> Tree {
    map(
        dice,
        1,
        &[
            ("acme.dev/a", &|dice| mostly(dice, &TEXTS, 2)),
            ("not a key!", &|dice| Tree::one(dice, &NUMBERS)),
        ],
    )
}

fn edits(dice: &mut Dice) -> Tree {
    let env = |dice: &mut Dice| list(dice, |dice| mostly(dice, &TEXTS, 2));
    let always = usize::from(!dice.one_in(8));
    map(
        dice,
        always,
        &[
            ("env", &env),
            ("deviceNodes", &|dice| list(dice, node)),
            ("mounts", &|dice| list(dice, mount)),
            ("hooks", &|dice| list(dice, hook)),
            ("netDevices", &|dice| {
                list(dice, |dice| {
                    let name = |dice: &mut Dice| Tree::one(dice, &["eth0", "eth1", "eth2", "\"\""]);
                    map(dice, 2, &[("hostInterfaceName", &name), ("name", &name)])
                })
            }),
            ("intelRdt", &rdt),
            ("additionalGids", &|dice| {
                list(dice, |dice| mostly(dice, &NUMBERS, 6))
            }),
        ],
    )
}

fn node(dice: &mut Dice) -> Tree {
    let number = |dice: &mut Dice| mostly(dice, &NUMBERS, 6);
    map(
        dice,
        1,
        &[
            ("path", &|dice| {
                mostly(
                    dice,
                    &["/dev/a", "/dev/b", "\"\"", "dev/a", "/dev/../a", "~"],
                    2,
                )
            }),
            ("hostPath", &|dice| {
                Tree::one(dice, &["/dev/h", "\"\"", "~", "h"])
            }),
            ("type", &|dice| {
                Tree::one(dice, &["b", "c", "u", "p", "\"\"", "x", "bc"])
            }),
            ("permissions", &|dice| {
                Tree::one(dice, &["rwm", "none", "\"\"", "rr", "rx", "\"r w\"", "mwr"])
            }),
            ("major", &number),
            ("minor", &number),
            ("fileMode", &number),
            ("uid", &number),
            ("gid", &number),
        ],
    )
}

fn mount(dice: &mut Dice) -> Tree {
    let path = |dice: &mut Dice| mostly(dice, &["/opt/a", "/opt/b", "\"\"", "opt", "~", "1"], 2);
    map(
        dice,
        2,
        &[
            ("hostPath", &path),
            ("containerPath", &path),
            ("options", &|dice| {
                list(dice, |dice| {
                    Tree::one(dice, &["ro", "bind", "~", "1", "\"\""])
                })
            }),
            ("type", &|dice| {
                Tree::one(dice, &["bind", "tmpfs", "\"\"", "~"])
            }),
        ],
    )
}

fn hook(dice: &mut Dice) -> Tree {
    let texts = |dice: &mut Dice| list(dice, |dice| mostly(dice, &TEXTS, 2));
    map(
        dice,
        2,
        &[
            ("hookName", &|dice| mostly(dice, &HOOKS, 6)),
            ("path", &|dice| mostly(dice, &["/bin/a", "a", "\"\""], 2)),
            ("args", &texts),
            ("env", &texts),
            ("timeout", &|dice| mostly(dice, &NUMBERS, 6)),
        ],
    )
}

fn rdt(dice: &mut Dice) -> Tree {
    let text = |dice: &mut Dice| {
        Tree::one(
            dice,
            &["a", "\"/\"", "..", "\"a/b\"", "\"\"", "L3:0=f", "~"],
        )
    };
    map(
        dice,
        1,
        &[
            ("closID", &text),
            ("l3CacheSchema", &text),
            ("memBwSchema", &text),
            ("schemata", &|dice| match dice.one_in(3) {
                true => Tree::one(dice, &["[]", "~"]),
                false => list(dice, text),
            }),
            ("enableMonitoring", &|dice| {
                Tree::one(
                    dice,
                    &["true", "false", "yes", "off", "~", "1", "\"true\"", "y"],
                )
            }),
            ("enableCMT", &|dice| Tree::one(dice, &["true"])),
        ],
    )
}
