//! The journal: any bytes are refused or read, and what is read is written as it was.
use machinist::{digest::Digest, update::journal::Journal};

pub(crate) fn check(bytes: &[u8]) {
    let _ = Journal::decode(bytes);
    // A body under a checksum that fits: what another version, or a person, could have written.
    let header = format!(
        r#"{{"machinistJournal":1,"minReader":1,"checksum":"{}"}}"#,
        Digest::of(bytes)
    );
    let text = [header.as_bytes(), b"\n", bytes, b"\n"].concat();
    if let Ok(journal) = Journal::decode(&text) {
        let again = journal.encode().unwrap();
        assert_eq!(Journal::decode(&again).as_ref(), Ok(&journal));
    }
}
