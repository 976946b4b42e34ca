//! Specs of the Container Device Interface: the same verdict and the same devices as
//! `tags.cncf.io/container-device-interface`.

mod generate;
mod known_differences;
mod tree;

use std::collections::BTreeMap;

use machinist_base::abs_path::AbsPath;
use machinist_device::cdi::{ALL_DEVICES, CdiFile, offered, parse};
use serde::{Deserialize, Serialize};

use crate::support::{Dice, ask, rounds, seed};

/// The spec files of both directories by name, those of lower priority first.
#[derive(Clone, Debug, Default, Serialize)]
struct Case {
    dirs: [BTreeMap<String, String>; 2],
}

/// The library's result for a case.
#[derive(Debug, Deserialize)]
struct Verdict {
    /// The reasons for refused files, by name.
    refused: [BTreeMap<String, String>; 2],
    /// The devices by their qualified names.
    devices: BTreeMap<String, Vec<Node>>,
}

#[derive(Debug, Deserialize)]
struct Node {
    host: String,
}

impl Case {
    fn of(text: &str) -> Self {
        let mut case = Self::default();
        case.dirs[0].insert("a.json".to_owned(), text.to_owned());
        case
    }
}

/// The differences between the library's verdict and ours.
fn differences(case: &Case, theirs: &Verdict) -> Vec<String> {
    let (mut files, mut found) = (Vec::new(), Vec::new());
    for (priority, dir) in case.dirs.iter().enumerate() {
        for (name, text) in dir {
            let refused = theirs.refused[priority].get(name);
            match (parse(name, text), refused) {
                (Ok(spec), None) => files.push(CdiFile {
                    path: AbsPath::new(format!("/{priority}/{name}")).unwrap(),
                    priority,
                    spec,
                }),
                (Err(_), Some(_)) => {}
                (Ok(_), Some(why)) => found.push(format!("{name}: the library refuses it: {why}")),
                (Err(why), None) => found.push(format!("{name}: machinist refuses it: {why}")),
            }
        }
    }
    if !found.is_empty() {
        let listed = |one: &String| {
            known_differences::DIFFERENCES
                .iter()
                .any(|known| one.contains(known.told))
        };
        found.retain(|one| !listed(one));
        return found;
    }
    let kinds: std::collections::BTreeSet<&str> =
        files.iter().map(|file| file.spec.kind.as_str()).collect();
    let mut ours = BTreeMap::new();
    for kind in kinds {
        for (name, device) in offered(&files, kind).devices {
            let nodes = device.nodes.iter().map(ToString::to_string).collect();
            let nodes: Option<Vec<String>> = device.unusable.is_none().then_some(nodes);
            ours.insert(format!("{kind}={name}"), nodes);
        }
    }
    // A toolkit's name for all devices together is no device.
    let theirs = theirs
        .devices
        .iter()
        .filter(|(name, _)| !name.ends_with(&format!("={ALL_DEVICES}")));
    let theirs: BTreeMap<_, Vec<_>> = theirs
        .map(|(name, nodes)| (name, nodes.iter().map(|node| node.host.clone()).collect()))
        .collect();
    if !ours.keys().eq(theirs.keys().copied()) {
        let theirs = theirs.keys();
        found.push(format!(
            "the library offers {theirs:?}, machinist {:?}",
            ours.keys()
        ));
    }
    for (name, nodes) in ours {
        if let (Some(nodes), Some(theirs)) = (nodes, theirs.get(&name))
            && nodes != *theirs
        {
            found.push(format!(
                "{name}: the library has the nodes {theirs:?}, machinist {nodes:?}"
            ));
        }
    }
    found
}

fn compare(cases: &[Case], seed: u64) {
    let verdicts: Vec<Verdict> = ask("cdi", cases);
    let mut found = Vec::new();
    for (round, (case, verdict)) in cases.iter().zip(&verdicts).enumerate() {
        let differs = differences(case, verdict);
        if !differs.is_empty() {
            found.push(format!("round {round}: {case:#?}: {differs:#?}"));
        }
    }
    let shown = &found[..found.len().min(20)];
    assert!(
        found.is_empty(),
        "seed {seed}: {} of {} cases differ\n{}",
        found.len(),
        cases.len(),
        shown.join("\n")
    );
}

#[test]
fn generated_cdi_specs_are_accepted_or_rejected_as_by_the_go_library() {
    let seed = seed();
    let cases = (0..rounds(500, 20_000)).map(|round| generate::case(&mut Dice::new(seed, round)));
    compare(&cases.collect::<Vec<_>>(), seed);
}

#[test]
fn cdi_specs_of_fixed_differences_no_longer_differ() {
    let texts = known_differences::MENDED.iter().map(|text| Case::of(text));
    compare(&texts.collect::<Vec<_>>(), 0);
}

/// The list is complete by the test above, and exact by this one.
#[test]
fn every_listed_cdi_difference_exists_and_is_explained() {
    let texts: Vec<Case> = known_differences::DIFFERENCES
        .iter()
        .map(|one| Case::of(one.text))
        .collect();
    let verdicts: Vec<Verdict> = ask("cdi", &texts);
    let explained = include_str!("../differences.md");
    for (one, verdict) in known_differences::DIFFERENCES.iter().zip(&verdicts) {
        let (name, text) = (one.name, one.text);
        let theirs = verdict.refused[0].is_empty();
        let ours = parse("a.json", text).is_ok();
        assert_eq!((ours, theirs), (one.ours, !one.ours), "{name}: {text:?}");
        assert!(
            explained.contains(&format!("| {name} |")),
            "{name} is missing in differences.md"
        );
    }
}
