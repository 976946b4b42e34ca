//! Vendors' files: refusals name the file and a line that exists.
use machinist_device::vendor_declaration;

pub(crate) fn check(text: &str) {
    let Err(refusals) = vendor_declaration::parse("a.yaml", text) else {
        return;
    };
    assert!(!refusals.is_empty());
    let lines = u32::try_from(text.split(['\n', '\r']).count()).unwrap();
    for refusal in &refusals {
        assert_eq!(refusal.file.as_deref(), Some("a.yaml"));
        assert!(
            refusal.line.is_none_or(|line| (1..=lines).contains(&line)),
            "{refusal:?}"
        );
        assert!(!refusal.message.is_empty());
    }
}
