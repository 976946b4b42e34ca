//! The journal: any bytes are refused or read, and a journal that was read is written unchanged.
use machinist_base::digest::Digest;
use machinist_update::journal::Journal;

pub(crate) fn check(bytes: &[u8]) {
    let _ = Journal::decode(bytes);
    // A body with a valid checksum: another version, or an operator, could have written it.
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
