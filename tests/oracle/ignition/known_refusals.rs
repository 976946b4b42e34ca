//! Configs that machinist refuses for what they ask of a machine, and that the Ignition library
//! accepts. Each has a row in `differences.md`.

use super::known_differences::{Difference, difference};

/// A difference of a text that is not JSON.
const fn written(
    name: &'static str,
    message: &'static str,
    texts: &'static [&'static str],
) -> Difference {
    Difference {
        name,
        texts,
        message,
    }
}

const FORBIDDEN: &str = "a path below `/proc`, `/sys`, `/dev`, `/run`, `/var/run` or `/var/lib/machinist`, below a directory `.machinist`, or `/` itself";
const BAD_PATH: &str = "a path or link target with a NUL byte or of more than 4095 bytes, a path with a part of more than 255 bytes";
const BAD_OWNER: &str =
    "an owner whose id is negative or above 4294967294, or whose name contains `:` or `/`";
const ACCOUNT_TEXTS: &str =
    "a `:` or control character in a field of a user, or a group name that `useradd` refuses";
const INVALID_LAYOUT: &str =
    "values in `disks`, `filesystems`, `raid` and `luks` that Ignition refuses";
const UNKNOWN_KEYS: &str = "a key that no version knows, or that differs from a known one in upper and lower case, in a file";
const TAGS: &str = "tags such as `!!int` and `!!binary` in YAML";
const MERGE_KEYS: &str =
    "a field in front of a merge key (`<<`) that merges a field of the same name";
const BUTANE_SECTIONS: &str =
    "`boot_device`, `grub`, `ignition`, `kernel_arguments` and `password_hash_local` in Butane";
const BUTANE: &str = "Butane's `openshift` with directories, links, special mode bits, without a name or a role, or with `64k-pages` in a version before its own";

pub(super) const REFUSALS: &[Difference] = &[
    difference!(
        "disks, file systems, RAID and LUKS in Ignition 2 and Butane",
        "the disk layout is set when a machine is installed",
        "2.2.0",
        r#""storage":{"raid":[{"name":"md0","level":"raid1","devices":["/dev/sda","/dev/sdb"]}]}"#
    ),
    written(
        INVALID_LAYOUT,
        "$.storage.disks",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"disks":[{"device":"sda","wipeTable":true}]}}"#,
        ],
    ),
    written(
        INVALID_LAYOUT,
        "$.storage.filesystems",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"filesystems":[{"device":"sda","format":"ext4"}]}}"#,
        ],
    ),
    written(
        INVALID_LAYOUT,
        "$.storage.luks",
        &[r#"{"ignition":{"version":"3.4.0"},"storage":{"luks":[{"name":"a","device":"sda"}]}}"#],
    ),
    written(
        INVALID_LAYOUT,
        "$.storage.raid",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"raid":[{"name":"a","level":"raid99","devices":["/dev/sda"]}]}}"#,
        ],
    ),
    written(
        "`ignition.config`",
        "config is not supported: machinist does not fetch remote content",
        &[
            r#"{"ignition":{"version":"3.4.0","config":{"merge":[{"source":"https://example.com/a.ign"}]}}}"#,
        ],
    ),
    difference!(
        "`httpHeaders`",
        "httpHeaders is not supported: machinist does not fetch remote content",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"https://example.com/a","httpHeaders":[{"name":"a","value":"b"}]}}]}"#,
        r#""storage":{"files":[{"path":"/etc/a","contents":{"source":"data:,x"}}]}"#
    ),
    difference!(
        "Ignition's `kernelArguments`",
        "kernelArguments is not supported",
        "3.4.0",
        r#""kernelArguments":{"shouldExist":["nosmt"]}"#
    ),
    written(
        FORBIDDEN,
        "its contents are created by",
        &[r#"{"ignition":{"version":"3.4.0"},"storage":{"directories":[{"path":"/proc/a"}]}}"#],
    ),
    written(
        FORBIDDEN,
        "emptied at boot",
        &[r#"{"ignition":{"version":"3.4.0"},"storage":{"directories":[{"path":"/run/a"}]}}"#],
    ),
    written(
        FORBIDDEN,
        "it contains machinist's own state",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"directories":[{"path":"/var/lib/machinist/a"}]}}"#,
        ],
    ),
    written(
        FORBIDDEN,
        "is reserved for machinist's staging directory",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"directories":[{"path":"/etc/.machinist/a"}]}}"#,
        ],
    ),
    written(
        FORBIDDEN,
        "/ itself cannot be an entry",
        &[r#"{"ignition":{"version":"3.4.0"},"storage":{"directories":[{"path":"/"}]}}"#],
    ),
    written(
        BAD_OWNER,
        "is not a valid uid or gid; expected 0 to",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"directories":[{"path":"/etc/a","user":{"id":-1}}]}}"#,
        ],
    ),
    written(
        BAD_OWNER,
        "is not a valid user or group name",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"directories":[{"path":"/etc/a","user":{"name":"a:b"}}]}}"#,
        ],
    ),
    written(
        BAD_PATH,
        "the target is empty, too long or contains a NUL byte",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"links":[{"path":"/etc/a","target":"a\u0000b"}]}}"#,
        ],
    ),
    written(
        BAD_PATH,
        "it contains a NUL byte [PathInvalid]",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"directories":[{"path":"/etc/a\u0000b"}]}}"#,
        ],
    ),
    difference!(
        "a user or group that the settings do not allow",
        "is not among the",
        "3.4.0",
        r#""passwd":{"users":[{"name":"eve"}]}"#
    ),
    difference!(
        "fields of the user `core` other than its keys and password",
        "only SSH keys and the password are managed for user core",
        "3.4.0",
        r#""passwd":{"users":[{"name":"core","shell":"/bin/sh"}]}"#
    ),
    difference!(
        "the uid or gid 0, 65535 or 4294967295",
        "is not a valid uid or gid in a config",
        "3.4.0",
        r#""passwd":{"users":[{"name":"ann","uid":0}]}"#
    ),
    written(
        ACCOUNT_TEXTS,
        "which the account database cannot store",
        &[r#"{"ignition":{"version":"3.4.0"},"passwd":{"users":[{"name":"ann","gecos":"a:b"}]}}"#],
    ),
    written(
        ACCOUNT_TEXTS,
        "is not a valid group name",
        &[
            r#"{"ignition":{"version":"3.4.0"},"passwd":{"users":[{"name":"ann","groups":["a b"]}]}}"#,
        ],
    ),
    written(
        ACCOUNT_TEXTS,
        "the key contains control characters",
        &[
            r#"{"ignition":{"version":"3.4.0"},"passwd":{"users":[{"name":"ann","sshAuthorizedKeys":["a\tb\u0001"]}]}}"#,
        ],
    ),
    difference!(
        "a file `/etc/passwd`, `/etc/shadow`, `/etc/group` and the like beside users or groups",
        "because the users and groups in",
        "3.4.0",
        r#""storage":{"files":[{"path":"/etc/passwd","contents":{"source":"data:,x"}}]},"passwd":{"users":[{"name":"ann","shell":"/bin/sh"}]}"#
    ),
    written(
        UNKNOWN_KEYS,
        "[FieldUnknown]",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"links":[{"path":"/etc/a","target":"b","mood":"x"}]}}"#,
        ],
    ),
    written(
        UNKNOWN_KEYS,
        "[FieldUnknown]",
        &[
            r#"{"ignition":{"version":"3.4.0"},"storage":{"links":[{"path":"/etc/a","Target":"b"}]}}"#,
        ],
    ),
    written(
        "a key twice in one object",
        "is defined twice [SyntaxInvalid]",
        &[r#"{"ignition":{"version":"3.4.0"},"storage":{},"storage":{}}"#],
    ),
    written(
        "a file of more than 8 MiB, more than 64 MiB of contents in one file, or values that aliases repeat to more than 8 MiB",
        "limit",
        &[concat!(r#"{"ignition":{"version":"3.4.0"}}"#, "PADDING")],
    ),
    written(
        MERGE_KEYS,
        "is defined twice",
        &[
            "ignition: {version: 3.4.0}\nstorage:\n  links:\n  - {path: /etc/a, target: b, <<: {target: c}}\n",
        ],
    ),
    written(
        TAGS,
        "tag",
        &[
            "ignition: {version: 3.4.0}\nstorage:\n  files:\n  - {path: /etc/a, mode: !!int 420, contents: {source: \"data:,x\"}}\n",
        ],
    ),
    written(
        BUTANE_SECTIONS,
        "it concerns the first boot or the boot loader",
        &["variant: fcos\nversion: 1.5.0\nkernel_arguments: {should_exist: [nosmt]}\n"],
    ),
    written(
        BUTANE,
        "are not supported in this spec version",
        &[concat!(
            "variant: openshift\nversion: 4.14.0\nmetadata: {name: a, labels: {machineconfiguration.openshift.io/role: worker}}\n",
            "storage: {directories: [{path: /etc/a}]}\n"
        )],
    ),
    written(
        BUTANE,
        "metadata.name is required",
        &["variant: openshift\nversion: 4.14.0\n"],
    ),
    written(
        BUTANE,
        "machineconfiguration.openshift.io/role label is required",
        &["variant: openshift\nversion: 4.14.0\nmetadata: {name: a}\n"],
    ),
    written(
        BUTANE,
        "must be empty, \"default\", or \"realtime\"",
        &[
            "variant: openshift\nversion: 4.8.0\nmetadata: {name: a, labels: {machineconfiguration.openshift.io/role: worker}}\nopenshift: {kernel_type: 64k-pages}\n",
        ],
    ),
];
