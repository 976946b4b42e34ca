//! Specs that are intentionally judged differently, and specs that once were by mistake.

/// A permanent difference.
pub(super) struct Difference {
    /// Its row in `differences.md`.
    pub(super) name: &'static str,
    /// The content of a spec file.
    pub(super) spec: fn() -> Vec<u8>,
    /// The mode of that file.
    pub(super) mode: u32,
    /// A part of the refusal, by which all differences of this kind are recognised; empty where
    /// nothing is refused.
    pub(super) message: &'static str,
    /// The names of the devices that machinist offers.
    pub(super) ours: &'static [&'static str],
    /// The names of the devices that the library offers.
    pub(super) theirs: &'static [&'static str],
}

/// A valid spec with one device, followed by `after`.
fn spec(name: &str, after: &str) -> Vec<u8> {
    let device = format!("{{name: {name}, containerEdits: {{env: [A=1]}}}}");
    format!("{{cdiVersion: 1.1.0, kind: acme.dev/gpu, devices: [{device}]}}{after}").into_bytes()
}

/// A spec that only machinist refuses.
const REFUSED: Difference = Difference {
    name: "",
    spec: Vec::new,
    mode: 0o644,
    message: "",
    ours: &[],
    theirs: &["a"],
};

pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "a closing bracket after the end of the document",
        spec: || spec("a", "}"),
        message: "misplaced bracket",
        ..REFUSED
    },
    Difference {
        name: "a comment right behind a quoted text or a bracket",
        spec: || spec("a", "#x"),
        message: "comments must be separated",
        ..REFUSED
    },
    Difference {
        name: "the tag `!!binary`",
        spec: || spec("!!binary Zw==", ""),
        message: "!!binary is not supported",
        theirs: &["g"],
        ..REFUSED
    },
    Difference {
        name: "a device called `all`",
        spec: || {
            let other = "name: all, containerEdits: {env: [A=1]}}, {name: a";
            let text = String::from_utf8(spec("a", "")).unwrap();
            text.replace("name: a", other).into_bytes()
        },
        ours: &["a"],
        theirs: &["a", "all"],
        ..REFUSED
    },
    Difference {
        name: "a file of more than 4 MiB",
        spec: || spec("a", &"\n".repeat(4 << 20)),
        message: "is longer than 4194304 bytes",
        ..REFUSED
    },
    Difference {
        name: "a file that is not UTF-8",
        // The library reads UTF-16 as well.
        spec: || {
            let text = String::from_utf8(spec("a", "")).unwrap();
            let units = std::iter::once(0xfeff).chain(text.encode_utf16());
            units.flat_map(u16::to_le_bytes).collect()
        },
        message: "not UTF-8",
        ..REFUSED
    },
    Difference {
        name: "aliases that repeat more than 8 MiB",
        spec: || {
            let long = "x".repeat(1 << 20);
            let aliases = ", *a".repeat(9);
            let edits = format!("env: [&a \"A={long}\"{aliases}]");
            let text = String::from_utf8(spec("a", "")).unwrap();
            text.replace("env: [A=1]", &edits).into_bytes()
        },
        message: "alias",
        ..REFUSED
    },
    Difference {
        name: "a file that others than root may write",
        spec: || spec("a", ""),
        mode: 0o666,
        message: "lets others write",
        ..REFUSED
    },
];

macro_rules! spec {
    ($before:literal, $device:literal, $after:literal) => {
        concat!(
            $before,
            "{\"cdiVersion\": \"1.1.0\", \"kind\": \"acme.dev/gpu\", \"devices\": [",
            $device,
            "]}",
            $after
        )
    };
}

pub(super) const MENDED: &[&str] = &[
    spec!(
        "\t",
        "{\"name\": \"0\", \"containerEdits\": {\"env\": [\"A=1\"]}}",
        ""
    ),
    spec!(
        "%YAML 1.2\n---\n",
        "{\"name\": \"0\", \"containerEdits\": {\"env\": [\"A=1\"]}}",
        ""
    ),
    spec!(
        "%YAML 1.1\n---\n",
        "{\"name\": \"0\", \"containerEdits\": {\"env\": [\"A=1\"]}}",
        ""
    ),
    spec!(
        "",
        "{\"name\": \"0\", \"containerEdits\": {\"env\": [\"A=\\/x\"]}}",
        ""
    ),
    spec!(
        "",
        "{\"name\": \"0\", \"containerEdits\": {\"env\": [\"A=\\ud83d\\ude00\"]}}",
        ""
    ),
    spec!(
        "",
        "{\"name\": 07, \"containerEdits\": {\"env\": [null, \"A=1\"]}}",
        "\n---\n: [}"
    ),
    spec!(
        "",
        "{\"name\": \"0\", \"containerEdits\": {\"env\": [\"A\"]}}",
        ""
    ),
    spec!(
        "",
        "{\"name\": \"0\", \"containerEdits\": {\"deviceNodes\": [{\"path\": \"/dev/a\", \"permissions\": \"rwx\"}]}}",
        ""
    ),
    "{cdiVersion: 1.1.0, kind: acme.dev/gpu, devices: [{name: a, containerEdits: {env: [A=1]}}], annotations: {\"a\nb\": c}}",
    spec!(
        "%YAM 1.1\n---\n",
        "{\"name\": \"0\", \"containerEdits\": {\"env\": [\"A=1\"]}}",
        ""
    ),
    spec!(
        "",
        "{\"name\": \"0\", \"containerEdits\": {\"env\": [\"A=1\",!]}}",
        ""
    ),
    spec!(
        "",
        "{\"name\": \"0\", \"containerEdits\": {\"env\": [\"A=1\"]}, : x}",
        ""
    ),
    "cdiVersion: 1.1.0\nkind: acme.dev/gpu\ndevices:\n- name: a\n  containerEdits:\n    env: [A=1]\n  : x\n",
];
