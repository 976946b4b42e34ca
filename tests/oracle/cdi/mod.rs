//! Specs of the Container Device Interface: the same verdict and the same devices as
//! `tags.cncf.io/container-device-interface`.

mod generate;
mod known_differences;
mod tree;

use std::{
    collections::BTreeMap,
    fmt::{self, Debug},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use machinist_base::abs_path::AbsPath;
use machinist_device::cdi::{ALL_DEVICES, CdiFile, offered, parse};
use machinist_device::{Allowances, registry::check};
use machinist_rootfs::Root;
use serde::{Deserialize, Serialize};

use crate::support::{Dice, ask, assert_rows_have_entries, rounds, seed};

/// The spec files of both directories by name, those of lower priority first.
#[derive(Clone, Debug, Default, Serialize)]
struct Case {
    dirs: [BTreeMap<String, Text>; 2],
}

/// The content of a spec file.
#[derive(Clone, Serialize)]
#[serde(transparent)]
struct Text(Vec<u8>);

impl Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
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
    fn of(text: impl Into<Vec<u8>>) -> Self {
        let mut case = Self::default();
        case.dirs[0].insert("a.json".to_owned(), Text(text.into()));
        case
    }
}

/// The differences between the library's verdict and ours.
fn differences(case: &Case, theirs: &Verdict) -> Vec<String> {
    let (mut files, mut found) = (Vec::new(), Vec::new());
    for (priority, dir) in case.dirs.iter().enumerate() {
        for (name, text) in dir {
            let refused = theirs.refused[priority].get(name);
            let text = std::str::from_utf8(&text.0).unwrap();
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
                .any(|known| !known.message.is_empty() && one.contains(known.message))
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
    let texts = known_differences::MENDED.iter().map(|text| Case::of(*text));
    compare(&texts.collect::<Vec<_>>(), 0);
}

/// Specs of other tests: the seeds of the parsers' fuzzing, and constants in sources.
#[test]
fn collected_cdi_specs_are_accepted_or_rejected_as_by_the_go_library() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut cases = Vec::new();
    for path in files_below(&top.join("tests/fuzz/seeds/cdi_spec")) {
        cases.push(Case::of(fs::read(path).unwrap()));
    }
    let seeds = cases.len();
    for directory in ["crates", "tests"] {
        for path in files_below(&top.join(directory)) {
            if path.extension().is_some_and(|ending| ending == "rs") {
                let source = fs::read_to_string(path).unwrap();
                if source.contains("cdiVersion") {
                    cases.extend(specs_in(&source).map(Case::of));
                }
            }
        }
    }
    assert!(seeds >= 2 && cases.len() >= seeds + 10, "{}", cases.len());
    compare(&cases, 0);
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(files_below(&path)),
            false => files.push(path),
        }
    }
    files
}

/// The string literals of a source with a CDI spec. Those that are formatted are completed with
/// `{}`, which not all of them allow.
fn specs_in(source: &str) -> impl Iterator<Item = String> {
    let raw = source.split("r#\"").skip(1);
    let raw = raw.filter_map(|rest| Some(rest.split_once("\"#")?.0.to_owned()));
    let plain = regex::Regex::new(r#""((?:[^"\\]|\\(?s:.))*)""#).unwrap();
    let plain: Vec<String> = plain
        .captures_iter(source)
        .map(|found| unescaped(&found[1]))
        .collect();
    let specs = raw.chain(plain);
    specs.filter(|text| text.contains("cdiVersion") && text.contains("kind"))
}

/// The value of a string literal.
fn unescaped(written: &str) -> String {
    let (mut value, mut rest) = (String::new(), written);
    while let Some((before, after)) = rest.split_once('\\') {
        value += before;
        let mut letters = after.chars();
        match letters.next() {
            Some('n') => value.push('\n'),
            Some('t') => value.push('\t'),
            Some('\n') => {
                rest = letters.as_str().trim_start();
                continue;
            }
            other => value.extend(other),
        }
        rest = letters.as_str();
    }
    value + rest
}

/// The devices that an agent offers from this spec, and the problems that it reports.
fn devices_of_agent(text: &[u8], mode: u32) -> (Vec<String>, String) {
    let dir = tempfile::tempdir().unwrap();
    let specs = dir.path().join("etc/cdi");
    fs::create_dir_all(&specs).unwrap();
    fs::write(specs.join("a.json"), text).unwrap();
    fs::set_permissions(specs.join("a.json"), fs::Permissions::from_mode(mode)).unwrap();
    let root = Root::open(dir.path()).unwrap();
    let declaration = "apiVersion: machinist.dev/v1\nkind: DeviceDeclaration\nmetadata: {name: x}\n\
         spec: {resource: acme.dev/x, match: [{cdi: {kind: acme.dev/gpu}}]}\n";
    let file = "/etc/machinist/devices.d/x.yaml".parse().unwrap();
    let file = (&file, "x.yaml");
    let found = check(&root, file, declaration, &Allowances::default()).unwrap();
    let devices = found
        .resources
        .values()
        .flat_map(|one| one.devices.keys().map(ToString::to_string));
    let problems = found.problems.iter().map(ToString::to_string);
    (devices.collect(), problems.collect())
}

/// The list is complete by the tests above, and exact by this one.
#[test]
fn every_listed_cdi_difference_exists_and_is_explained() {
    let texts: Vec<Vec<u8>> = known_differences::DIFFERENCES
        .iter()
        .map(|one| (one.spec)())
        .collect();
    let cases: Vec<Case> = texts.iter().map(|text| Case::of(text.clone())).collect();
    let verdicts: Vec<Verdict> = ask("cdi", &cases);
    for ((one, text), verdict) in known_differences::DIFFERENCES
        .iter()
        .zip(&texts)
        .zip(&verdicts)
    {
        let theirs = verdict.devices.keys();
        let theirs: Vec<&str> = theirs
            .filter_map(|name| Some(name.split_once('=')?.1))
            .collect();
        assert_eq!(theirs, one.theirs, "{}: {:?}", one.name, verdict.refused);
        let (ours, problems) = devices_of_agent(text, one.mode);
        assert_eq!(ours, one.ours, "{}: {problems}", one.name);
        assert!(problems.contains(one.message), "{}: {problems}", one.name);
    }
    let names = known_differences::DIFFERENCES.iter().map(|one| one.name);
    assert_rows_have_entries("## CDI", names);
}
