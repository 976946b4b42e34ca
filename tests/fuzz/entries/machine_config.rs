//! MachineConfig, Ignition and Butane: any text is read or refused with positions that exist, and a
//! config that was read survives being stored and being rendered.
use machinist_base::{abs_path::AbsPath, reason::Reason};
use machinist_ignition::{
    ConfigRules, LocalEntry, LocalError, LocalFileSource, LocalKind, MergeOrder, NoLocalFiles,
    Refusal, digest, documents_from_files, from_portable_json, merge, to_machine_config_yaml,
    to_portable_json,
};

/// A directory in which every name exists.
#[derive(Debug)]
struct Anything;

impl LocalFileSource for Anything {
    fn read(&self, _: &str, path: &AbsPath) -> Result<Vec<u8>, LocalError> {
        match path.as_str().len() % 4 {
            0 => Ok(b"[Unit]\nDescription=x\n".to_vec()),
            1 => Ok(path.as_str().as_bytes().to_vec()),
            2 => Ok(vec![0xff, 0x00]),
            _ => Err(LocalError::new(Reason::SourceUnreadable, "not there")),
        }
    }

    fn tree(&self, _: &str, path: &AbsPath) -> Result<Vec<LocalEntry>, LocalError> {
        let entry = |path: &str, kind| LocalEntry {
            path: path.to_owned(),
            kind,
        };
        match path.as_str().len() % 3 {
            0 => Ok(vec![
                entry("a", LocalKind::File { executable: true }),
                entry("b/c", LocalKind::Link("../a".to_owned())),
                entry("d", LocalKind::Other("socket")),
            ]),
            1 => Ok(Vec::new()),
            _ => Err(LocalError::new(Reason::SourceUnreadable, "not there")),
        }
    }
}

fn check_positions(text: &[u8], refusals: &[Refusal]) {
    assert!(!refusals.is_empty());
    // YAML's line breaks are CR, LF and both.
    let breaks = text.iter().filter(|byte| matches!(byte, b'\n' | b'\r'));
    let lines = u32::try_from(breaks.count()).unwrap() + 1;
    for refusal in refusals {
        assert!(refusal.line.is_none_or(|line| (1..=lines).contains(&line)));
        assert!(refusal.column.is_none_or(|column| column >= 1));
        assert!(refusal.file.is_some() && !refusal.message.is_empty());
    }
}

pub(crate) fn check(text: &[u8]) {
    let files = vec![("a.bu".to_owned(), text.to_vec())];
    let read = documents_from_files(files, &ConfigRules::default(), &Anything);
    let merged = read.and_then(|(documents, _)| merge(documents, "fuzz", MergeOrder::WorkerFirst));
    let config = match merged {
        Ok((config, _)) => config,
        Err(refusals) if text.starts_with(&[0x1f, 0x8b]) => return assert!(!refusals.is_empty()),
        Err(refusals) => return check_positions(text, &refusals),
    };
    let stored = from_portable_json(&to_portable_json(&config).unwrap()).unwrap();
    assert_eq!(digest(&stored), digest(&config));
    let manifest = to_machine_config_yaml(&config).unwrap();
    let files = vec![("b.yaml".to_owned(), manifest.into_bytes())];
    let (documents, _) =
        documents_from_files(files, &ConfigRules::default(), &NoLocalFiles).unwrap();
    let (again, _) = merge(documents, "fuzz", MergeOrder::AsGiven).unwrap();
    assert_eq!(again, *config.with_defaults());
}
