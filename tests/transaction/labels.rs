//! SELinux labels of new files, by the policy of the root. Nothing here needs a kernel with
//! SELinux: root can set the attribute without one, and for other users the labels stay pending.

use std::{collections::BTreeMap, io, sync::Arc};

use machinist_plan::{DriftKind, Plan, Policies};
use machinist_rootfs::{FsOp, FsOpKind, Root};
use machinist_update::{cache::ObservationCache, observe_and_plan};

use machinist_testkit::sandbox::{Sandbox, Written, apply, at, conduct, config};

const POLICY: &str = "\
/.*\tu:r:default_t:s0
/etc(/.*)?\tu:r:etc_t:s0
/etc/secret\t--\tu:r:secret_t:s0
/etc/made(/.*)?\t-d\tu:r:made_dir_t:s0
/etc/made/.*\t--\tu:r:made_t:s0
/etc/none(/.*)?\t<<none>>
";

fn machine() -> Sandbox {
    let sandbox = Sandbox::new();
    for (path, text) in [
        (
            "/etc/selinux/config",
            "# comment\nSELINUX=enforcing\nSELINUXTYPE=targeted\n",
        ),
        ("/etc/selinux/targeted/contexts/files/file_contexts", POLICY),
        (
            "/etc/selinux/targeted/contexts/files/file_contexts.local",
            "/etc/local\tu:r:local_t:s0\n",
        ),
        (
            "/etc/selinux/targeted/contexts/files/file_contexts.subs_dist",
            "/srv /etc/made\n",
        ),
        ("/etc/found", "found\n"),
        ("/etc/bare", "found\n"),
    ] {
        sandbox.write(path, text);
    }
    sandbox
}

fn wanted() -> Written {
    config("labelled")
        .file("/etc/secret", "s\n", 0o600)
        .file("/etc/local", "l\n", 0o644)
        .file("/etc/none/x", "n\n", 0o644)
        .file("/etc/made/deep/file", "f\n", 0o644)
        .file("/srv/file", "f\n", 0o644)
        .link("/etc/link", "local")
        .hard("/etc/hard", "/etc/secret")
        .file("/etc/found", "ours\n", 0o644)
        .file("/etc/bare", "ours\n", 0o644)
}

const LABELS: [(&str, Option<&str>); 11] = [
    ("/etc/secret", Some("u:r:secret_t:s0")),
    ("/etc/hard", Some("u:r:secret_t:s0")),
    ("/etc/local", Some("u:r:local_t:s0")),
    ("/etc/none/x", None),
    ("/etc/made", Some("u:r:made_dir_t:s0")),
    ("/etc/made/deep", Some("u:r:made_dir_t:s0")),
    ("/etc/made/deep/file", Some("u:r:made_t:s0")),
    ("/srv/file", Some("u:r:made_t:s0")),
    ("/etc/link", Some("u:r:etc_t:s0")),
    ("/etc/found", Some("u:r:somebodys_t:s0")),
    ("/etc/bare", Some("u:r:etc_t:s0")),
];

/// Whether this process may set labels where the tests run.
fn settable(sandbox: &Sandbox) -> bool {
    let settable = sandbox
        .root()
        .set_label(&at("/etc/found"), "u:r:somebodys_t:s0");
    settable.unwrap()
}

fn labels(root: &Root) -> BTreeMap<&'static str, Option<String>> {
    let label = |(path, _): &(&'static str, Option<&str>)| (*path, root.label(&at(path)).unwrap());
    LABELS.iter().map(label).collect()
}

fn plan(sandbox: &Sandbox, to: &Written) -> Plan {
    let (journal, policies) = (sandbox.journal(), Policies::default());
    let remembered = ObservationCache::default();
    let how = observe_and_plan::PlanOptions {
        remembered: &remembered,
        policies: &policies,
        capabilities: conduct(false).capabilities,
        units: None,
        only: None,
    };
    let looked = observe_and_plan::observe_and_plan(&sandbox.root(), &journal, &to.0, how).unwrap();
    looked.plan.unwrap()
}

fn drift(sandbox: &Sandbox) -> Vec<(String, DriftKind)> {
    let base = sandbox.journal().base;
    let drift = observe_and_plan::drift(
        &sandbox.root(),
        base.as_ref(),
        None,
        conduct(false).capabilities,
        &ObservationCache::default(),
    );
    let message = drift.unwrap().into_iter();
    message
        .map(|drift| (drift.path.to_string(), drift.kind))
        .collect()
}

#[test]
fn new_objects_get_selinux_policy_labels_and_replaced_ones_keep_theirs() {
    let sandbox = machine();
    if !settable(&sandbox) {
        // Otherwise all of them stay pending, which the next test shows with a cause of its own.
        let report = sandbox.applied(&wanted());
        assert!(report.labels_pending.contains(&at("/etc/secret")));
        return;
    }
    let report = sandbox.applied(&wanted());
    assert_eq!(report.labels_pending, []);
    let expected = LABELS
        .map(|(path, label)| (path, label.map(str::to_owned)))
        .into();
    assert_eq!(labels(&sandbox.root()), expected);
    assert_eq!(drift(&sandbox), []);

    // One object gets a wrong label, and another the label that the policy assigns: only the first
    // is drift, and is repaired.
    let root = sandbox.root();
    assert!(root.set_label(&at("/etc/local"), "u:r:wrong_t:s0").unwrap());
    assert!(root.set_label(&at("/etc/found"), "u:r:etc_t:s0").unwrap());
    assert_eq!(
        drift(&sandbox),
        [("/etc/local".to_owned(), DriftKind::Label)]
    );
    let wanted = wanted();
    let changes = plan(&sandbox, &wanted).changes;
    assert_eq!(changes.len(), 1, "{changes:?}");
    assert_eq!(
        (changes[0].name.as_str(), &*changes[0].fields),
        ("/etc/local", &["label".to_owned()][..])
    );
    sandbox.applied(&wanted);
    let label = root.label(&at("/etc/local")).unwrap();
    assert_eq!(label.as_deref(), Some("u:r:local_t:s0"));
    assert_eq!(drift(&sandbox), []);

    sandbox.applied(&config("nothing"));
    assert!(sandbox.journal().labels.is_empty());
    let label = root.label(&at("/etc/found")).unwrap();
    assert_eq!(label.as_deref(), Some("u:r:somebodys_t:s0"));
}

#[test]
fn selinux_labels_that_cannot_be_set_stay_pending_without_failure() {
    for number in [nix::libc::EPERM, nix::libc::EOPNOTSUPP, nix::libc::EINVAL] {
        let sandbox = machine();
        let hook = move |op: &FsOp| match op.act {
            FsOpKind::SetAttribute(..) => Some(io::Error::from_raw_os_error(number)),
            _ => None,
        };
        let root = sandbox.root().with_fault(Arc::new(hook));
        let report = apply(&root, &wanted()).unwrap();
        assert_eq!(report.failure, None);
        let pending = &report.labels_pending;
        assert!(pending.contains(&at("/etc/made/deep")), "{pending:?}");
        assert!(!pending.contains(&at("/etc/none/x")), "{pending:?}");
        let journal = sandbox.journal();
        assert!(journal.labels.given.is_empty());
        assert_eq!(
            journal
                .labels
                .pending
                .get(&at("/etc/secret"))
                .map(String::as_str),
            Some("u:r:secret_t:s0")
        );
        assert_eq!(drift(&sandbox), []);
        let plan = plan(&sandbox, &wanted());
        let message = |warning: &String| warning.ends_with("(LabelPending)");
        assert!(
            plan.is_empty() && plan.warnings.iter().any(message),
            "{plan:?}"
        );
        sandbox.applied(&config("nothing"));
        assert!(sandbox.journal().labels.is_empty());
    }
}

#[test]
fn without_a_selinux_policy_nothing_is_labelled_or_reported() {
    let plain = Sandbox::new();
    let off = machine();
    off.write(
        "/etc/selinux/config",
        "SELINUX=disabled\nSELINUXTYPE=targeted\n",
    );
    let odd = machine();
    odd.write("/etc/selinux/config", "SELINUXTYPE=../../targeted\n");
    for sandbox in [plain, off, odd] {
        let report = sandbox.applied(&wanted());
        assert_eq!(report.labels_pending, []);
        assert!(sandbox.journal().labels.is_empty());
        assert_eq!(sandbox.root().label(&at("/etc/secret")).unwrap(), None);
    }
}
