//! How soon the agent reports that another process has changed a file of the config.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    agent::Agent,
    binary, figure, median, milliseconds, place, rounds,
    tree::{config, content, path},
};

/// The size of a large config: one of the files is edited.
const FILES: usize = 5000;
const SIZE: usize = 200;

pub(crate) fn measure() {
    let dir = tempfile::tempdir_in(place()).unwrap();
    let (root, source) = (dir.path().join("root"), dir.path().join("source"));
    fs::create_dir_all(&source).unwrap();
    let config = config(FILES, |n| content(0, n, SIZE));
    let manifest = machinist_ignition::to_machine_config_yaml(&config).unwrap();
    fs::write(source.join("50-large.yaml"), manifest).unwrap();
    let agent = Agent::start(&root, &source, None);
    agent.wait_for_log(&["is in place and verified"]);
    let edited = format!("/{}", path(FILES / 2));
    let target = root.join(path(FILES / 2));
    let mut times = Vec::new();
    // The first round waits until the agent watches.
    for round in 0..=rounds(20) {
        let start = Instant::now();
        fs::write(&target, format!("edited {round}")).unwrap();
        let message = agent.wait_for_log(&["Drifted", &edited]);
        if round > 0 {
            times.push(message.duration_since(start));
        }
        if round < rounds(20) {
            fs::write(&target, content(0, FILES / 2, SIZE)).unwrap();
            agent.wait_for_log(&["matches the config again", &edited]);
        }
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut status = Command::new(binary());
        let status = status.args(["status", "-o", "json", "--root"]).arg(&root);
        let text = String::from_utf8(status.output().unwrap().stdout).unwrap();
        if text.contains(&edited) {
            break;
        }
        assert!(Instant::now() < deadline, "status does not show it: {text}");
    }
    let seen = milliseconds(median(&times));
    let most = milliseconds(*times.iter().max().unwrap());
    println!("\none of {FILES} files edited; the longest took {most:.1} ms");
    let what = "drift seen after an edit";
    figure(what, seen, "ms", "≤ 300", seen <= 300.0);
}
