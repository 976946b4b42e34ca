//! The kinds of objects that an entry may replace, where golden updates cannot show it.

use std::collections::BTreeSet;

use machinist_base::reason::Reason;
use machinist_ignition::{
    MachineConfig, from_canonical_json, from_portable_json, to_portable_json,
};
use machinist_plan::{DriftKind, Policies};
use machinist_update::observe::CallerFacts;

use super::support::{OFFLINE, Tree, config, path, show};

const LINK: &str = "/etc/resolv.conf";

/// A file at [`LINK`], by an Ignition 3 config without `overwrite`.
fn file() -> MachineConfig {
    config(&format!(
        r#"{{"ignition": {{"version": "3.4.0"}}, "storage": {{"files": [
            {{"path": "{LINK}", "mode": 420, "contents": {{"source": "data:,x"}}}}]}}}}"#
    ))
}

fn link(to: &str) -> MachineConfig {
    config(&format!(
        r#"{{"ignition": {{"version": "3.4.0"}}, "storage": {{"links": [
            {{"path": "{LINK}", "overwrite": true, "target": "{to}"}}]}}}}"#
    ))
}

fn reasons(
    tree: &Tree,
    from: &MachineConfig,
    to: &MachineConfig,
    known: CallerFacts<'_>,
) -> Vec<Reason> {
    let observed = tree.observed(from, to, known);
    let plan = machinist_plan::between(from, to, &observed, &Policies::default(), OFFLINE);
    let refusals = plan.err().unwrap_or_default();
    refusals.iter().map(|refusal| refusal.reason).collect()
}

#[test]
fn a_config_serialised_for_the_agent_keeps_its_overwrite_permissions() {
    let (tree, nothing) = (Tree::new(), MachineConfig::default());
    tree.link(LINK, "elsewhere");
    let known = CallerFacts::default;
    let read = file();
    assert_eq!(
        reasons(&tree, &nothing, &read, known()),
        [Reason::KindDiffers]
    );
    let portable = to_portable_json(&read).unwrap();
    let handed_over = from_portable_json(&portable).unwrap();
    let refused = reasons(&tree, &nothing, &handed_over, known());
    assert_eq!(refused, [Reason::KindDiffers]);
    // The store has the config that the machine was on: a rollback to it needs no permission.
    let canonical = machinist_ignition::to_canonical_json(&read);
    let mut stored = from_canonical_json(&canonical).unwrap();
    stored.files.clone_from(&read.files);
    assert_eq!(reasons(&tree, &nothing, &stored, known()), []);
}

#[test]
fn objects_that_already_matched_the_base_config_are_not_managed() {
    let tree = Tree::new();
    tree.link(LINK, "elsewhere");
    let (from, to) = (link("elsewhere"), file());
    assert_eq!(reasons(&tree, &from, &to, CallerFacts::default()), []);
    let found = CallerFacts {
        adopted: BTreeSet::from([path(LINK)]),
        ..CallerFacts::default()
    };
    assert_eq!(reasons(&tree, &from, &to, found), [Reason::KindDiffers]);
}

#[test]
fn a_socket_is_never_replaced() {
    let (tree, nothing) = (Tree::new(), MachineConfig::default());
    std::fs::create_dir_all(tree.at("/etc")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(tree.at(LINK)).unwrap();
    let refused = reasons(&tree, &nothing, &link("x"), CallerFacts::default());
    assert_eq!(refused, [Reason::KindDiffers]);
    drop(socket);
}

#[test]
fn a_link_that_leads_below_itself_is_rejected_by_the_plan() {
    let (tree, nothing) = (Tree::new(), MachineConfig::default());
    tree.link("/srv/l", "l/x");
    let to = config(
        r#"{"ignition": {"version": "3.4.0"}, "storage": {"files": [
            {"path": "/srv/l/a", "mode": 420, "contents": {"source": "data:,x"}}]}}"#,
    );
    let refused = reasons(&tree, &nothing, &to, CallerFacts::default());
    assert_eq!(refused, [Reason::ForeignContent]);
}

fn refusal(tree: &Tree, to: &MachineConfig) -> String {
    let nothing = MachineConfig::default();
    let observed = tree.observed(&nothing, to, CallerFacts::default());
    let plan = machinist_plan::between(&nothing, to, &observed, &Policies::default(), OFFLINE);
    show(&plan.unwrap_err())
}

#[test]
fn a_link_is_described_once_with_its_target_kind() {
    for (target, expected) in [
        // A loop has no end.
        ("resolv.conf", "a symbolic link to resolv.conf exists"),
        (
            "/etc/found",
            "a symbolic link to /etc/found (a regular file) exists",
        ),
        (
            "found",
            "a symbolic link to found (/etc/found, a regular file) exists",
        ),
        (
            "/etc/none",
            "a symbolic link to /etc/none (which does not exist) exists",
        ),
    ] {
        let tree = Tree::new();
        tree.write("/etc/found", "found");
        tree.link(LINK, target);
        let refused = refusal(&tree, &file());
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn verify_reports_expected_and_found_object_kinds() {
    let directory = config(&format!(
        r#"{{"ignition": {{"version": "3.4.0"}}, "storage": {{"directories": [{{"path": "{LINK}"}}]}}}}"#
    ));
    for (wanted, found) in [
        (file(), "is a symbolic link, not a regular file"),
        (directory, "is a symbolic link, not a directory"),
    ] {
        let tree = Tree::new();
        tree.link(LINK, "elsewhere");
        let observed = tree.observed(&wanted, &wanted, CallerFacts::default());
        let drift = machinist_plan::drift(&wanted, &observed, false);
        let message: Vec<String> = drift.iter().map(ToString::to_string).collect();
        assert_eq!(message, [format!("{LINK} {found}")]);
        assert_eq!(drift[0].kind, DriftKind::Content);
    }
}

const ORIGINAL: &str = "/var/lib/machinist/originals/1";

#[test]
fn a_file_without_contents_over_a_link_is_refused_whatever_config_came_before() {
    let (tree, nothing) = (Tree::new(), MachineConfig::default());
    tree.link(LINK, "elsewhere");
    let with = |fields: &str| {
        config(&format!(
            r#"{{"ignition": {{"version": "3.4.0"}}, "storage": {{"files": [
                {{"path": "{LINK}", "mode": 384{fields}}}]}}}}"#
        ))
    };
    let (contents, bare) = (
        with(r#", "overwrite": true, "contents": {"source": "data:,x"}"#),
        with(""),
    );
    let known = CallerFacts::default;
    assert_eq!(
        reasons(&tree, &nothing, &bare, known()),
        [Reason::KindDiffers]
    );
    std::fs::remove_file(tree.at(LINK)).unwrap();
    tree.write(LINK, "x");
    tree.link(ORIGINAL, "elsewhere");
    let replaced = || CallerFacts {
        originals: [(path(LINK), path(ORIGINAL))].into(),
        ..CallerFacts::default()
    };
    let after = reasons(&tree, &contents, &bare, replaced());
    assert_eq!(after, [Reason::KindDiffers]);
    std::fs::remove_file(tree.at(LINK)).unwrap();
    let missing = reasons(&tree, &contents, &bare, replaced());
    assert_eq!(missing, [Reason::KindDiffers]);
}

#[test]
fn a_hard_link_may_lead_to_a_file_that_the_same_update_restores() {
    let tree = Tree::new();
    tree.link("/opt/f", "d");
    tree.write(ORIGINAL, "original");
    let links = |links: &str| {
        config(&format!(
            r#"{{"ignition": {{"version": "3.4.0"}}, "storage": {{"links": [{links}]}}}}"#
        ))
    };
    let from = links(r#"{"path": "/opt/f", "target": "d", "overwrite": true}"#);
    let to = links(r#"{"path": "/opt/hl", "target": "/opt/f", "hard": true}"#);
    let known = |original: bool| CallerFacts {
        originals: original
            .then(|| (path("/opt/f"), path(ORIGINAL)))
            .into_iter()
            .collect(),
        ..CallerFacts::default()
    };
    assert_eq!(reasons(&tree, &from, &to, known(true)), []);
    let nothing = MachineConfig::default();
    for (from, fault) in [(&nothing, "a link"), (&from, "a link that goes")] {
        let refused = reasons(&tree, from, &to, known(false));
        assert_eq!(refused, [Reason::HardLinkTarget], "{fault}");
    }
}

#[test]
fn objects_whose_paths_are_too_long_are_not_counted_silently() {
    let tree = Tree::new();
    let name = "n".repeat(250);
    let chain = [name.as_str(); 10].join("/");
    for top in ["/etc/deep", "/other"] {
        std::fs::create_dir_all(tree.at(&format!("{top}/{chain}"))).unwrap();
    }
    let end = tree.at(&format!("/etc/deep/{chain}/more"));
    std::fs::rename(tree.at("/other"), end).unwrap();
    let to = config(
        r#"{"ignition": {"version": "3.4.0"}, "storage": {"files": [
            {"path": "/etc/deep", "contents": {"source": "data:,x"}}]}}"#,
    );
    let nothing = MachineConfig::default();
    let observed = tree.observed(&nothing, &to, CallerFacts::default());
    let plan = machinist_plan::between(&nothing, &to, &observed, &Policies::default(), OFFLINE);
    let refusals = show(&plan.unwrap_err());
    assert!(
        refusals.contains("a directory with at least 1"),
        "{refusals}"
    );
    // The removal of the test's directory is not able to name the lowest directories either.
    std::fs::rename(
        tree.at(&format!("/etc/deep/{chain}/more")),
        tree.at("/other"),
    )
    .unwrap();
}
