use super::*;
use machinist_ignition::{File, Owner};

/// A config with the files `/etc/0`, `/etc/1`, … and these contents.
fn config(contents: &[&str]) -> MachineConfig {
    let file = |text: &str| File {
        content: Some(Content::new(text.as_bytes())),
        mode: Some(0o644),
        user: Some(Owner::ROOT),
        group: Some(Owner::ROOT),
        origin: Default::default(),
    };
    let files = (0..).zip(contents);
    MachineConfig {
        files: files
            .map(|(n, text)| (format!("/etc/{n}").parse().unwrap(), file(text)))
            .collect(),
        ..MachineConfig::default()
    }
}

fn stored(config: &MachineConfig) -> MachineConfig {
    let text = machinist_ignition::to_canonical_json(config);
    machinist_ignition::from_canonical_json(&text).unwrap()
}

struct Place {
    root: Root,
    _directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        root.make_dirs(&paths::contents(), 0o700).unwrap();
        Self {
            root,
            _directory: directory,
        }
    }

    fn keep(&self, config: &MachineConfig) {
        self.keep_and_read(config, false);
    }

    fn keep_and_read(&self, config: &MachineConfig, read: bool) {
        let contents = ContentStore::open(&self.root).unwrap();
        contents.keep(config, read).unwrap().unwrap();
    }

    /// Reads the contents of a config's files, or returns the first that is missing.
    fn read(&self, config: &MachineConfig) -> Result<Vec<String>, MissingContent> {
        let mut config = stored(config);
        let filled = ContentStore::open(&self.root).unwrap().fill(&mut config);
        filled.unwrap()?;
        let bytes = config
            .files
            .values()
            .map(|file| file.content.as_ref().unwrap().bytes().unwrap().to_vec());
        Ok(bytes
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .collect())
    }

    /// All packs with their lengths.
    fn packs(&self) -> BTreeMap<String, u64> {
        let packs = self.root.list(&paths::contents()).unwrap().into_iter();
        packs
            .map(|entry| {
                let place = paths::contents().join(&entry.name).unwrap();
                (entry.name, self.root.stat(&place).unwrap().unwrap().size)
            })
            .collect()
    }

    fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let place = paths::contents().join(name).unwrap();
        let mut bytes = self.root.read(&place, 1 << 20).unwrap();
        change(&mut bytes);
        self.root.replace(&place, &bytes, 0o600).unwrap();
    }
}

#[test]
fn identical_file_contents_are_stored_once() {
    let place = Place::new();
    let (one, two) = (config(&["a", "same", "same", ""]), config(&["b", "same"]));
    place.keep(&one);
    let first = place.packs();
    place.keep(&two);
    let new = place
        .packs()
        .into_iter()
        .filter(|(name, _)| !first.contains_key(name));
    let lengths: Vec<u64> = new.map(|(_, length)| length).collect();
    assert_eq!(
        lengths,
        [(HEADER_BYTES + INDEX_ENTRY_BYTES) as u64 + 1],
        "only what is new in the second"
    );
    place.keep(&one);
    assert_eq!(place.packs().len(), 2, "nothing is new");
    assert_eq!(place.read(&one).unwrap(), ["a", "same", "same", ""]);
    assert_eq!(place.read(&two).unwrap(), ["b", "same"]);
}

#[test]
fn missing_file_content_is_reported_by_path() {
    let place = Place::new();
    place.keep(&config(&["a"]));
    let both = config(&["a", "b"]);
    let missing = MissingContent {
        path: "/etc/1".parse().unwrap(),
    };
    assert_eq!(place.read(&both).unwrap_err(), missing);
    let kept = ContentStore::open(&place.root)
        .unwrap()
        .keep(&stored(&both), false);
    assert_eq!(kept.unwrap().unwrap_err(), missing);
}

#[test]
fn a_corrupt_content_pack_is_rejected_and_rewritten() {
    let changes: [fn(&mut Vec<u8>); 6] = [
        |pack| pack.truncate(3),
        |pack| pack.truncate(pack.len() - 1),
        |pack| pack.push(b'!'),
        |pack| pack[0] ^= 1,
        |pack| pack[MAGIC.len() + 7] = 0xff,
        |pack| pack[HEADER_BYTES + 40] ^= 1,
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let place = Place::new();
        let config = config(&["first", "second"]);
        place.keep(&config);
        let whole = place.packs();
        place.damage(whole.keys().next().unwrap(), change);
        assert!(place.read(&config).is_err(), "change {n}");
        place.keep(&config);
        assert_eq!(place.packs(), whole, "change {n}");
        assert_eq!(
            place.read(&config).unwrap(),
            ["first", "second"],
            "change {n}"
        );
    }
    let place = Place::new();
    let config = config(&["first", "second"]);
    place.keep(&config);
    let name = place.packs().into_keys().next().unwrap();
    place.damage(&name, |pack| *pack.last_mut().unwrap() ^= 1);
    assert!(place.read(&config).is_err(), "the content is another one");
    place.keep_and_read(&config, true);
    assert_eq!(place.read(&config).unwrap(), ["first", "second"]);
}

#[test]
fn sparsely_used_content_packs_are_compacted() {
    let place = Place::new();
    let large = "x".repeat(usize::try_from(COMPACT_BELOW_BYTES).unwrap() + 1);
    place.keep(&config(&[&large]));
    let stays = place.packs().into_keys().next().unwrap();
    let configs: Vec<_> = (0..=COMPACT_ABOVE_PACKS)
        .map(|n| config(&["common", &format!("only {n}")]))
        .collect();
    configs.iter().for_each(|config| place.keep(config));
    place
        .root
        .replace(&paths::contents().join("odd").unwrap(), b"odd", 0o600)
        .unwrap();
    let wanted = |configs: &[&MachineConfig]| -> BTreeSet<Digest> {
        let files = configs.iter().flat_map(|config| config.files.values());
        files
            .map(|file| file.content.as_ref().unwrap().digest())
            .collect()
    };
    let big = config(&[&large]);
    let contents = ContentStore::open(&place.root).unwrap();
    assert!(contents.are_many());
    let (three, seven) = (&configs[3], &configs[7]);
    contents
        .retain_only(&wanted(&[&big, three, seven]))
        .unwrap();
    assert_eq!(place.packs().len(), 2, "{:?}", place.packs());
    assert!(
        place.packs().contains_key(&stays),
        "the large one was not touched"
    );
    assert_eq!(place.read(three).unwrap(), ["common", "only 3"]);
    assert_eq!(place.read(seven).unwrap(), ["common", "only 7"]);
    assert_eq!(place.read(&big).unwrap(), [large]);
    assert!(place.read(&configs[4]).is_err(), "not referenced");
    // A repetition changes nothing.
    let before = place.packs();
    let contents = ContentStore::open(&place.root).unwrap();
    contents
        .retain_only(&wanted(&[&big, three, seven]))
        .unwrap();
    assert_eq!(place.packs(), before);
}
