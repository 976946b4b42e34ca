//! Specs that are intentionally judged differently, and specs that once were by mistake.

/// A permanent difference.
pub(super) struct Difference {
    /// Its row in `differences.md`.
    pub(super) name: &'static str,
    pub(super) text: &'static str,
    /// A part of the refusal, by which all differences of this kind are recognised.
    pub(super) told: &'static str,
    /// Whether machinist accepts it and the library does not, or the reverse.
    pub(super) ours: bool,
}

pub(super) const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "a closing bracket after the end of the document",
        text: "{cdiVersion: 1.1.0, kind: acme.dev/gpu, devices: [{name: a, containerEdits: {env: [A=1]}}]}}",
        told: "misplaced bracket",
        ours: false,
    },
    Difference {
        name: "a comment right behind a quoted text or a bracket",
        text: "{cdiVersion: 1.1.0, kind: acme.dev/gpu, devices: [{name: a, containerEdits: {env: [A=1]}}]}#x",
        told: "comments must be separated",
        ours: false,
    },
    Difference {
        name: "the tag `!!binary`",
        text: "{cdiVersion: 1.1.0, kind: acme.dev/gpu, devices: [{name: !!binary Zw==, containerEdits: {env: [A=1]}}]}",
        told: "!!binary is not supported",
        ours: false,
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
];
