//! The one-shot commands: plan, apply, verify, rollback, history, render.

use std::fs;

use serde_json::Value;

use crate::agent::{
    harness::{Place, code, err, manifest, out, until},
    json_shape,
};

fn json(output: &std::process::Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn plan_exit_code_reports_pending_changes_and_nothing_is_changed() {
    let place = Place::with_examples();
    // A missing root is not treated as an empty root.
    let missing = place.with_source(&["plan"]);
    assert_eq!(code(&missing), 1);
    assert!(
        err(&missing).contains("cannot open the root"),
        "{}",
        err(&missing)
    );

    fs::create_dir(place.root()).unwrap();
    let pending = place.with_source(&["plan"]);
    assert_eq!(code(&pending), 2);
    assert!(out(&pending).contains("+ file /etc/chrony.conf"));
    assert!(place.tree().is_empty(), "{:?}", place.tree());

    assert_eq!(code(&place.with_source(&["apply", "--yes"])), 0);
    let nothing = place.with_source(&["plan"]);
    assert_eq!(code(&nothing), 0);
    assert!(out(&nothing).contains("No changes: the machine matches the config."));
    let document = json(&place.with_source(&["plan", "-o", "json"]));
    assert_eq!(document["changes"], serde_json::json!([]));
    assert_eq!(document["from"], document["to"]);
}

#[test]
fn a_rejected_plan_names_every_location_and_exits_with_1() {
    let place = Place::with_examples();
    fs::create_dir(place.root()).unwrap();
    fs::write(
        place.source().join("80-relative.yaml"),
        manifest("80-relative", "etc/relative", "x"),
    )
    .unwrap();
    let unit = "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: unit\nspec:\n  config:\n    ignition:\n      version: 3.4.0\n    systemd:\n      units:\n      - enabled: true\n";
    fs::write(place.source().join("81-unit.yaml"), unit).unwrap();
    let refused = place.with_source(&["plan"]);
    assert_eq!(code(&refused), 1);
    for at in ["80-relative.yaml:11:15", "81-unit.yaml:11:"] {
        assert!(out(&refused).contains(at), "{at} in {}", out(&refused));
    }
    let document = json(&place.with_source(&["plan", "-o", "json"]));
    let seen = document["refusals"].as_array().unwrap();
    assert_eq!(seen.len(), 2, "{document:#}");
    assert_eq!(seen[0]["reason"], "PathInvalid");
    assert_eq!(seen[0]["field"], "spec.config.storage.files[0].path");
    assert_eq!(seen[1]["reason"], "UnitNameInvalid");

    let apply = place.with_source(&["apply", "--yes"]);
    assert_eq!(code(&apply), 1);
    assert!(
        err(&apply).contains("80-relative.yaml:11:15"),
        "{}",
        err(&apply)
    );
    assert!(!place.at("/etc").exists());
}

#[test]
fn the_plan_document_has_every_key_that_scripts_rely_on() {
    let place = Place::with_examples();
    fs::create_dir_all(place.at("/etc")).unwrap();
    // A file to modify, so that there is a before and a diff.
    fs::write(place.at("/etc/chrony.conf"), "pool example.org\n").unwrap();
    let planned = place.with_source(&["plan", "-o", "json"]);
    assert_eq!((code(&planned), err(&planned).as_str()), (2, ""));
    let document = json(&planned);
    // Nothing runs in this root, so only files change; refusals have their own test.
    json_shape::check("plan_json", &document, &["actions[]", "refusals[]"]);
    let change = |name: &str| {
        let changes = document["changes"].as_array().unwrap();
        changes
            .iter()
            .find(|change| change["name"] == name)
            .unwrap()
            .clone()
    };
    let chrony = change("/etc/chrony.conf");
    assert_eq!(chrony["change"], "Modify");
    assert_eq!(chrony["fields"][0], "content");
    assert_eq!(chrony["before"]["size"], 17);
    assert_eq!(chrony["after"]["size"], 89);
    assert_eq!(chrony["after"]["mode"], "0644");
    assert!(
        chrony["diff"]
            .as_str()
            .unwrap()
            .contains("-pool example.org\n")
    );
    assert_eq!(change("apt-daily-upgrade.timer")["kind"], "Mask");
    assert_eq!(document["root"], place.root().to_str().unwrap());

    fs::write(
        place.source().join("80.yaml"),
        manifest("80", "relative", "x"),
    )
    .unwrap();
    let refused = json(&place.with_source(&["plan", "-o", "json"]));
    let unseen = ["actions[]", "changes[]", "warnings[]", "leftOut[]"];
    json_shape::check("plan_json", &refused, &unseen);
}

#[test]
fn apply_is_idempotent() {
    let place = Place::with_examples();
    let asked = place.with_source(&["apply"]);
    assert_eq!(code(&asked), 1);
    assert!(err(&asked).contains("use --yes"), "{}", err(&asked));
    assert!(!place.at("/etc").exists());

    let first = place.with_source(&["apply", "--yes"]);
    assert_eq!(code(&first), 0, "{}", err(&first));
    assert!(out(&first).contains("AppliedOffline: config is now rendered-machine-"));
    let tree = place.tree();
    let inode = |path: &str| {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(place.at(path)).unwrap().ino()
    };
    let before = inode("/etc/chrony.conf");
    let again = place.with_source(&["apply", "--yes"]);
    assert_eq!(code(&again), 0, "{}", err(&again));
    assert!(
        out(&again).contains("The machine matches the config."),
        "{}",
        out(&again)
    );
    assert_eq!((place.tree(), inode("/etc/chrony.conf")), (tree, before));
    let history = json(&place.machinist(&["history", "-o", "json"]));
    assert_eq!(history.as_array().unwrap().len(), 1);
}

#[test]
fn apply_accepts_config_files() {
    let place = Place::with_file("/etc/one", "zero");
    let file = place.source().join("10-one.yaml");
    let applied = place.machinist(&["apply", "--yes", "-o", "json", file.to_str().unwrap()]);
    assert_eq!(code(&applied), 0, "{}", err(&applied));
    assert_eq!(place.read("/etc/one").as_deref(), Some("zero"));
    // stdout contains only machine-readable output.
    assert_eq!(json(&applied)["outcome"], "AppliedOffline");
}

#[test]
fn verify_exits_with_0_or_2() {
    let place = Place::with_examples();
    assert_eq!(code(&place.with_source(&["apply", "--yes"])), 0);
    let good = place.machinist(&["verify"]);
    assert_eq!(
        (code(&good), out(&good).as_str()),
        (0, "The machine matches the config.\n")
    );
    assert_eq!(
        json(&place.machinist(&["verify", "-o", "json"])),
        serde_json::json!([])
    );
    fs::remove_file(place.at("/etc/chrony.conf")).unwrap();
    let bad = place.machinist(&["verify"]);
    assert_eq!(
        (code(&bad), out(&bad).as_str()),
        (2, "/etc/chrony.conf is missing\n")
    );
    assert_eq!(
        json(&place.machinist(&["verify", "-o", "json"])),
        serde_json::json!([{"path": "/etc/chrony.conf", "kind": "missing"}])
    );
}

#[test]
fn verify_warns_of_skipped_ssh_keys() {
    let place = Place::new();
    fs::create_dir_all(place.at("/etc")).unwrap();
    let user = "core:x:1000:1000::/home/core:/bin/sh\n";
    fs::write(place.at("/etc/passwd"), user).unwrap();
    fs::create_dir_all(place.at("/home/core/.ssh/authorized_keys")).unwrap();
    let config = place.source().join("10-keys.ign");
    let text = r#"{"ignition": {"version": "3.4.0"}, "passwd": {"users": [
        {"name": "core", "sshAuthorizedKeys": ["ssh-ed25519 AAAA core"]}]}}"#;
    fs::write(&config, text).unwrap();
    let applied = place.machinist(&["apply", "--yes", config.to_str().unwrap()]);
    assert_eq!(code(&applied), 0, "{}", err(&applied));
    for arguments in [&["verify"][..], &["verify", "-o", "json"]] {
        let verified = place.machinist(arguments);
        assert_eq!(code(&verified), 0);
        let warned = err(&verified);
        assert!(warned.contains("warning: KeysSkipped: "), "{warned}");
    }
}

#[test]
fn rollback_restores_the_previous_config_and_appears_in_history() {
    let place = Place::with_file("/etc/one", "first");
    let none = place.machinist(&["rollback", "--yes"]);
    assert_eq!(code(&none), 1);
    fs::create_dir_all(place.at("/etc")).unwrap();
    fs::write(place.at("/etc/two"), "mine").unwrap();
    let apply = || assert_eq!(code(&place.with_source(&["apply", "--yes"])), 0);
    apply();
    let none = place.machinist(&["rollback", "--yes"]);
    assert_eq!(code(&none), 1);
    assert!(err(&none).contains("no earlier config"), "{}", err(&none));
    assert!(err(&none).contains("without entries"), "{}", err(&none));

    let first = place.tree();
    fs::write(
        place.source().join("10-one.yaml"),
        manifest("10-one", "/etc/one", "second"),
    )
    .unwrap();
    fs::write(
        place.source().join("20-two.yaml"),
        manifest("20-two", "/etc/two", "theirs"),
    )
    .unwrap();
    apply();
    let second = place.tree();
    assert_eq!(place.read("/etc/one").as_deref(), Some("second"));
    assert_eq!(place.read("/etc/two").as_deref(), Some("theirs"));

    let asked = place.machinist(&["rollback"]);
    assert_eq!(code(&asked), 1);
    assert_eq!(place.tree(), second);
    let back = place.machinist(&["rollback", "--yes"]);
    assert_eq!(code(&back), 0, "{}", err(&back));
    // The file from before machinist is restored, too.
    assert_eq!(place.tree(), first);
    assert_eq!(place.read("/etc/two").as_deref(), Some("mine"));

    history_lists_rollbacks(&place);
}

/// Two updates and the rollback of the second.
fn history_lists_rollbacks(place: &Place) {
    let history = out(&place.machinist(&["history"]));
    assert_eq!(
        history.matches("AppliedOffline, in ").count(),
        3,
        "{history}"
    );
    assert!(
        history.lines().all(|line| line.chars().count() <= 80),
        "{history}"
    );
    for printed in [
        "  from  nothing\n",
        "  took  Staging ",
        "  to    rendered-machine-",
    ] {
        assert!(history.contains(printed), "{printed:?} in\n{history}");
    }
    let last = out(&place.machinist(&["history", "-n", "1"]));
    assert_eq!(last.matches("AppliedOffline, in ").count(), 1);
    let message = json(&place.machinist(&["history", "-o", "json"]));
    let names: Vec<_> = (0..3)
        .map(|at| message[at]["to"].as_str().unwrap())
        .collect();
    assert_eq!(
        names[0], names[2],
        "newest first, and the last entry is the rollback: {message:#}"
    );
    assert_ne!(names[0], names[1]);
    assert!(message[2]["from"].is_null(), "{message:#}");
    assert_eq!(message[1]["from"], message[2]["to"]);
    assert!(message[0]["phases"][0]["started"].is_string() && message[0]["actions"].is_array());

    let file = place.path().join("updates.svg");
    let drawn = place.machinist(&["history", "--timeline", file.to_str().unwrap()]);
    assert_eq!((code(&drawn), err(&drawn).as_str()), (0, ""));
    let svg = fs::read_to_string(file).unwrap();
    assert!(svg.starts_with("<svg ") && svg.matches("<title>Staging ").count() == 3);
}

#[test]
fn journal_reset_sets_an_unreadable_journal_aside_and_adopts_the_machine() {
    let place = Place::with_file("/etc/one", "zero");
    assert_eq!(code(&place.with_source(&["apply", "--yes"])), 0);
    let shown = out(&place.machinist(&["journal", "show"]));
    for printed in [
        "on          rendered-machine-",
        "owned       1",
        "open        no update",
    ] {
        assert!(shown.contains(printed), "{printed:?} in\n{shown}");
    }
    let journal = place.at("/var/lib/machinist/journal");
    let mut text = fs::read(&journal).unwrap();
    let middle = text.len() / 2;
    text[middle] ^= 1;
    fs::write(&journal, &text).unwrap();
    assert_eq!(code(&place.machinist(&["journal", "show"])), 1);
    let why = out(&place.machinist(&["explain"]));
    assert!(
        why.contains("[JournalUnreadable]") && why.contains("journal reset"),
        "{why}"
    );

    // An update may be open: its staging directory exists.
    let staged = place.at("/var/lib/machinist/tx/20261121T120000Z-2c50d8bd");
    fs::create_dir(&staged).unwrap();
    let refused = place.machinist(&["journal", "reset", "--yes"]);
    assert_eq!(code(&refused), 1);
    assert!(
        err(&refused).contains("may be unfinished"),
        "{}",
        err(&refused)
    );
    fs::remove_dir(&staged).unwrap();
    let asked = place.machinist(&["journal", "reset"]);
    assert_eq!(code(&asked), 1);
    assert!(err(&asked).contains("use --yes"), "{}", err(&asked));
    assert_eq!(fs::read(&journal).unwrap(), text, "nothing was changed");

    let reset = place.machinist(&["journal", "reset", "--yes"]);
    assert_eq!(code(&reset), 0, "{}", err(&reset));
    let kept = out(&reset);
    let kept = kept
        .split(' ')
        .find(|word| word.contains("/var/lib/machinist/"))
        .unwrap();
    assert_eq!(fs::read(kept.trim_end_matches('.')).unwrap(), text);
    let again = place.with_source(&["apply", "--yes"]);
    assert_eq!(out(&again), "The machine matches the config.\n");
    assert_eq!(code(&place.machinist(&["verify"])), 0);
}

#[test]
fn journal_reset_of_a_readable_journal_needs_force_and_keeps_earlier_copies() {
    let place = Place::with_file("/etc/one", "zero");
    assert_eq!(code(&place.with_source(&["apply", "--yes"])), 0);
    let journal = place.at("/var/lib/machinist/journal");
    let text = fs::read(&journal).unwrap();
    let refused = place.machinist(&["journal", "reset", "--yes"]);
    assert_eq!(code(&refused), 1);
    let why = err(&refused);
    assert!(
        why.contains("is readable") && why.contains("--force"),
        "{why}"
    );
    assert_eq!(fs::read(&journal).unwrap(), text, "nothing was changed");

    // Many times within a second: each backup has a name of its own.
    let mut kept = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let reset = place.machinist(&["journal", "reset", "--yes", "--force"]);
        let printed = out(&reset);
        let name = printed
            .split(' ')
            .find(|word| word.contains("/var/lib/machinist/"));
        kept.insert(name.unwrap().trim_end_matches('.').to_owned());
    }
    assert_eq!(kept.len(), 3, "{kept:?}");
    let same = |name: &&String| fs::read(name).unwrap() == text;
    assert_eq!(kept.iter().filter(same).count(), 1, "the first is kept");
}

#[test]
fn explain_reports_why_no_update_is_running() {
    let place = Place::with_file("/etc/one", "zero");
    fs::create_dir(place.root()).unwrap();
    let explain = || {
        let printed = place.machinist(&["explain"]);
        assert_eq!(code(&printed), 0, "{}", err(&printed));
        let printed = out(&printed);
        printed.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(explain().contains("no agent running for root"));
    let agent = place.settled();
    let printed = explain();
    assert!(
        printed.contains("machine is up to date: rendered-machine-"),
        "{printed}"
    );

    fs::write(place.at("/etc/one"), "edited").unwrap();
    until("the drift", || {
        explain().contains("/etc/one is not as configured (content)")
    });
    fs::write(place.source().join("20-broken.yaml"), "- - :").unwrap();
    until("the refusal", || explain().contains("20-broken.yaml:1:1"));
    fs::remove_file(place.source().join("20-broken.yaml")).unwrap();
    let text = manifest("10-one", "/etc/one", "second");
    fs::write(place.source().join("10-one.yaml"), text).unwrap();
    until("the second", || {
        place.read("/etc/one").as_deref() == Some("second")
    });
    agent.rests();
    assert_eq!(code(&place.machinist(&["rollback", "--yes"])), 0);
    let printed = explain();
    assert!(
        printed.contains("machine pinned to rendered-machine-")
            && printed.contains("machinist apply"),
        "{printed}"
    );
}

#[test]
fn render_prints_one_config_named_by_its_content() {
    let place = Place::with_examples();
    fs::create_dir(place.root()).unwrap();
    let first = place.with_source(&["render"]);
    assert_eq!((code(&first), err(&first).as_str()), (0, ""));
    assert_eq!(out(&place.with_source(&["render"])), out(&first));
    let document = json(&place.with_source(&["render", "-o", "json"]));
    let name = document["metadata"]["name"].as_str().unwrap().to_owned();
    assert!(out(&first).contains(&format!("name: \"{name}\"\n")));
    // The name that plan and status use.
    assert_eq!(
        json(&place.with_source(&["plan", "-o", "json"]))["to"]["name"],
        name.as_str()
    );
    // Names of files and of manifests are not content.
    fs::rename(
        place.source().join("10-chrony.yaml"),
        place.source().join("11-chrony.yaml"),
    )
    .unwrap();
    let named = |output: &Value| output["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!(
        named(&json(&place.with_source(&["render", "-o", "json"]))),
        name
    );
    fs::remove_file(place.source().join("11-chrony.yaml")).unwrap();
    assert_ne!(
        named(&json(&place.with_source(&["render", "-o", "json"]))),
        name
    );

    // The rendered output is itself a config, with the same result.
    let whole = place.path().join("whole.yaml");
    fs::write(&whole, &first.stdout).unwrap();
    let rendered = place.machinist(&["render", "-o", "json", whole.to_str().unwrap()]);
    assert_eq!(code(&rendered), 0, "{}", err(&rendered));
    assert_eq!(json(&rendered)["spec"], document["spec"]);
}

#[test]
fn a_butane_config_argument_reads_local_files_next_to_it() {
    let place = Place::new();
    fs::create_dir(place.root()).unwrap();
    let beside = place.path().join("elsewhere");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("text"), "from a file\n").unwrap();
    let config = beside.join("a.bu");
    let write = |local: &str| {
        let files = format!("[{{path: /etc/one, contents: {{local: {local}}}}}]");
        let text = format!("variant: fcos\nversion: 1.6.0\nstorage: {{files: {files}}}\n");
        fs::write(&config, text).unwrap();
    };
    let apply = || place.machinist(&["apply", "--yes", config.to_str().unwrap()]);
    write("text");
    let applied = apply();
    assert_eq!(code(&applied), 0, "{}", err(&applied));
    assert_eq!(place.read("/etc/one").as_deref(), Some("from a file\n"));
    write("../text");
    let refused = apply();
    assert_eq!(code(&refused), 1);
    let message = format!("{}{}", out(&refused), err(&refused));
    let at = "a.bu:3:54: storage.files[0].contents.local:\n    \"../text\" points outside";
    assert!(message.contains(at), "{message}");
}

#[test]
fn user_policies_override_built_in_ones_and_invalid_ones_are_rejected() {
    let place = Place::with_file("/etc/chrony.conf", "x");
    let policies = place.at("/etc/machinist/policies.yaml");
    fs::create_dir_all(policies.parent().unwrap()).unwrap();
    let policy = || {
        let planned = json(&place.with_source(&["plan", "-o", "json"]));
        planned["changes"][0]["policy"].as_str().unwrap().to_owned()
    };
    assert_eq!(policy(), "builtin:/etc/chrony.conf");
    let text = "apiVersion: operator.openshift.io/v1\nkind: MachineConfiguration\nmetadata:\n  name: cluster\nspec:\n  nodeDisruptionPolicy:\n    files:\n    - path: /etc/chrony.conf\n      actions:\n      - type: None\n";
    fs::write(&policies, text).unwrap();
    assert_eq!(policy(), "user:/etc/chrony.conf");
    let agent = place.settled();
    fs::write(&policies, text.replace("files:", "file:")).unwrap();
    agent.wait_for_log("keeping the last valid disruption policies");
    drop(agent);
    for command in ["plan", "apply"] {
        let yes = if command == "apply" { "--yes" } else { "-v" };
        let refused = place.with_source(&[command, yes]);
        assert_eq!(code(&refused), 64, "{command}");
        let printed = err(&refused);
        assert!(
            printed.contains("/etc/machinist/policies.yaml")
                && printed.contains("nodeDisruptionPolicy.file"),
            "{printed}"
        );
    }
    fs::remove_file(&policies).unwrap();
    assert_eq!(code(&place.with_source(&["plan"])), 0);
    let settings = place.at("/etc/machinist/machinist.yaml");
    fs::write(settings, "update: {policies: /etc/mine.yaml}\n").unwrap();
    assert_eq!(
        code(&place.with_source(&["plan"])),
        64,
        "named, and not there"
    );
}
