//! Permanent differences from the Ignition library. Each has a row in `differences.md`.

use super::{go_program::Case, known_refusals::REFUSALS};

/// A difference, recognised by the comparison's message.
pub(super) struct Difference {
    /// Its row in `differences.md`.
    pub(super) name: &'static str,
    /// Configs that together cause it.
    pub(super) texts: &'static [&'static str],
    /// The comparison's message.
    pub(super) message: &'static str,
}

impl Difference {
    pub(super) fn is(&self, found: &str) -> bool {
        found.contains(self.message)
    }

    pub(super) fn case(&self) -> Case {
        let texts = (0..).zip(self.texts);
        let text = |text: &str| match text.strip_suffix(PADDING) {
            Some(text) => format!("{text}{}", " ".repeat(8 << 20)),
            None => text.to_owned(),
        };
        Case::new(texts.map(|(number, one)| (format!("{number}.ign"), text(one))))
    }
}

/// At the end of a text it stands for 8 MiB of spaces.
pub(super) const PADDING: &str = "PADDING";

pub(super) fn all() -> Vec<&'static Difference> {
    DIFFERENCES.iter().chain(REFUSALS).collect()
}

/// Whether a difference that was found is listed.
pub(super) fn is_known(found: &str) -> bool {
    all().iter().any(|known| known.is(found))
}

macro_rules! difference {
    ($name:literal, $message:literal, $version:literal, $($rest:literal),+) => {
        $crate::ignition::known_differences::Difference {
            name: $name,
            texts: &[$(concat!("{\"ignition\":{\"version\":\"", $version, "\"},", $rest, "}")),+],
            message: $message,
        }
    };
}
pub(super) use difference;

const DIFFERENCES: &[Difference] = &[
    difference!(
        "an Ignition 2.0 or 2.1 file without a mode",
        "file /etc/without-mode: Ignition (Some(0)",
        "2.1.0",
        r#""storage":{"files":[{"filesystem":"root","path":"/etc/without-mode","contents":{"source":"data:,x"}}]}"#
    ),
    difference!(
        "an Ignition 2.1 directory without a mode",
        "directory /etc/without-mode: Ignition (Some(0)",
        "2.1.0",
        r#""storage":{"directories":[{"filesystem":"root","path":"/etc/without-mode"}]}"#
    ),
    difference!(
        "a user twice in one Ignition 2 config",
        "user ann gecos: Ignition , machinist String(\"Twice\")",
        "2.2.0",
        r#""passwd":{"users":[{"name":"ann","gecos":"Twice"},{"name":"ann"}]}"#
    ),
    difference!(
        "the fields of `create` of a user in Ignition 2.0",
        "user ann uid: Ignition , machinist Number(1500)",
        "2.0.0",
        r#""passwd":{"users":[{"name":"ann","create":{"uid":1500}}]}"#
    ),
    Difference {
        name: "a MachineConfig with `config: {}`",
        texts: &[
            "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata: {name: a, labels: {machineconfiguration.openshift.io/role: worker}}\nspec: {config: {}}\n",
        ],
        message: "Ignition refuses it: invalid config version (couldn't parse)",
    },
    difference!(
        "an owner by name over an owner by id of an earlier config",
        "directory /etc/named: Ignition (None, (Number(7), Null)), machinist (None, (String(\"bob\"), Null))",
        "3.4.0",
        r#""storage":{"directories":[{"path":"/etc/named","user":{"id":7}}]}"#,
        r#""storage":{"directories":[{"path":"/etc/named","user":{"name":"bob"}}]}"#
    ),
    difference!(
        "an Ignition 2.0 file without an owner over one with an owner",
        "file /etc/without-owner: Ignition (Some(420), (Number(0), Number(0))",
        "2.0.0",
        r#""storage":{"files":[{"filesystem":"root","path":"/etc/without-owner","mode":420,"user":{"id":7},"contents":{"source":"data:,x"}}]}"#,
        r#""storage":{"files":[{"filesystem":"root","path":"/etc/without-owner","mode":420,"contents":{"source":"data:,x"}}]}"#
    ),
    difference!(
        "contents whose compression differs from the declared one",
        "compression is gzip, but the data is not",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,x","compression":"gzip"}}]}"#,
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,x","compression":""}}]}"#
    ),
    difference!(
        "`enable` and `enabled` that contradict each other",
        "enable and enabled contradict each other",
        "2.2.0",
        r#""systemd":{"units":[{"name":"a.service","contents":"[Service]\nExecStart=/bin/a\n","enable":true,"enabled":false}]}"#
    ),
    difference!(
        "a drop-in twice in one unit of Ignition 2",
        "10-a.conf is defined twice in one config [EntryDuplicate]",
        "2.2.0",
        r#""systemd":{"units":[{"name":"a.service","dropins":[{"name":"10-a.conf","contents":""},{"name":"10-a.conf","contents":""}]}]}"#
    ),
    difference!(
        "a password hash of no known form",
        "not a password hash",
        "3.4.0",
        r#""passwd":{"users":[{"name":"ann","passwordHash":"text"}]}"#
    ),
    difference!(
        "a sha256 hash in Ignition 2 and 3.0",
        "unrecognized hash function",
        "2.2.0",
        r#""storage":{"files":[{"filesystem":"root","path":"/etc/a","mode":420,"contents":{"source":"data:,","verification":{"hash":"sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}}]}"#
    ),
    difference!(
        "contents that do not match their hash",
        "[HashMismatch]",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,x","verification":{"hash":"sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}}]}"#,
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,","verification":{"hash":"sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}}]}"#
    ),
    difference!(
        "an empty hash",
        "malformed hash specifier",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,x","verification":{"hash":""}}}]}"#
    ),
    difference!(
        "contents from a server",
        "[SourceRemote]",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"http://example.com/a"}}]}"#,
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,x"}}]}"#
    ),
    difference!(
        "a data URL with characters that must be escaped there, such as a space",
        "invalid data character",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,a b"}}]}"#
    ),
    difference!(
        "a file twice in one Ignition 2 config, the second time to append",
        "file /etc/twice: Ignition (Some(420), (Null, Null), None)",
        "2.2.0",
        r#""storage":{"files":[{"filesystem":"root","path":"/etc/twice","mode":420,"contents":{"source":"data:,x"}},{"filesystem":"root","path":"/etc/twice","mode":420,"append":true,"contents":{"source":"data:,x"}}]}"#
    ),
    difference!(
        "a unit that systemd does not load",
        "[UnitInvalid]",
        "3.4.0",
        r#""systemd":{"units":[{"name":"a.service","contents":"ExecStart=/bin/a\n"}]}"#
    ),
    difference!(
        "a unit name with characters that systemd does not allow",
        "[UnitNameInvalid]",
        "3.4.0",
        r#""systemd":{"units":[{"name":"a b.service","contents":"[Service]\nExecStart=/bin/a\n"}]}"#
    ),
    difference!(
        "`append` to a file whose contents no config gives",
        "no config defines its contents",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","append":[{"source":"data:,x"}]}]}"#
    ),
    difference!(
        "an entry below a file of the config",
        "excludes it [EntryDuplicate]",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/d","contents":{"source":"data:,x"}},{"path":"/etc/d/x","contents":{"source":"data:,x"}}]}"#
    ),
    difference!(
        "an entry below a link of the config",
        "path includes link in config",
        "3.4.0",
        r#""storage":{"links":[{"path":"/etc/d","target":"/srv"}],"files":[{"path":"/etc/d/x","contents":{"source":"data:,x"}}]}"#
    ),
    difference!(
        "the same in Ignition 2",
        "Please use a link not defined in Storage:Links",
        "2.2.0",
        r#""storage":{"links":[{"filesystem":"root","path":"/etc/d","target":"/srv"}],"files":[{"filesystem":"root","path":"/etc/d/x","mode":420,"contents":{"source":"data:,x"}}]}"#
    ),
    difference!(
        "a hard link with an owner",
        "cannot have an owner of its own",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,x"}}],"links":[{"path":"/etc/b","target":"/etc/a","hard":true,"user":{"id":7}}]}"#
    ),
    difference!(
        "a hard link with a relative target",
        "is no absolute path: it does not start with /; expected the absolute path of a file",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,x"}}],"links":[{"path":"/etc/b","target":"a","hard":true}]}"#
    ),
    difference!(
        "a hard link to a directory of the config",
        "hard link target is a directory",
        "3.4.0",
        r#""storage":{"directories":[{"path":"/etc/a"}],"links":[{"path":"/etc/b","target":"/etc/a","hard":true}]}"#
    ),
    difference!(
        "a path with `.`, `..` or an empty component in Ignition 2",
        "is no absolute path: it holds",
        "2.2.0",
        r#""storage":{"directories":[{"filesystem":"root","mode":493,"path":"/etc//b"}]}"#
    ),
    difference!(
        "a link without a target in Ignition 2 and before 3.4",
        "target is missing [ValueInvalid]",
        "3.1.0",
        r#""storage":{"links":[{"path":"/etc/a"}]}"#
    ),
    difference!(
        "a mode whose digits were meant in the other base",
        "is a decimal number and would be mode",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","mode":755,"contents":{"source":"data:,x"}}]}"#
    ),
    difference!(
        "a home directory or shell that is no absolute path",
        "is not a valid path for the account database",
        "3.4.0",
        r#""passwd":{"users":[{"name":"ann","shell":"text"}]}"#
    ),
    difference!(
        "base64 without padding, or with `%3D` for `=`",
        "illegal base64 data",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:;base64,aGk"}}]}"#
    ),
    difference!(
        "`DATA:` or `;BASE64` in capital letters",
        "missing data prefix",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"DATA:,x"}}]}"#
    ),
    difference!(
        "an SSH key twice in one user of Ignition 3",
        "sshAuthorizedKeys.1, line",
        "3.4.0",
        r#""passwd":{"users":[{"name":"ann","sshAuthorizedKeys":["ssh-ed25519 AAAA","ssh-ed25519 AAAA"]}]}"#
    ),
    difference!(
        "plain contents over compressed ones of an earlier config",
        "/etc/packed: unexpected EOF",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/packed","contents":{"compression":"gzip","source":"data:;base64,H4sIABr9B2sC/6sAAIMW3IwBAAAA"}}]}"#,
        r#""storage":{"files":[{"path":"/etc/packed","contents":{"source":"data:,x"}}]}"#
    ),
    difference!(
        "a comment between the lines of a continued line of a unit",
        "unexpected newline encountered while parsing option name",
        "3.4.0",
        r#""systemd":{"units":[{"name":"a.service","contents":"[Service]\nExecStart=/bin/a \\\n# c\n b\n"}]}"#
    ),
];
