//! Data URLs, compared with another parser: both decode an accepted URL to the same bytes.
use machinist_ignition::{ConfigRules, MergeOrder, merge, parse};

/// The text of a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out + "\""
}

pub(crate) fn check(url: &str) {
    let text = format!(
        r#"{{"ignition": {{"version": "3.5.0"}},
            "storage": {{"files": [{{"path": "/a", "contents": {{"source": {}}}}}]}}}}"#,
        quoted(url)
    );
    let read = parse(&text, "a.ign", &ConfigRules::default())
        .and_then(|documents| merge(documents, "fuzz", MergeOrder::AsGiven));
    let config = match read {
        Ok((config, _)) => config,
        Err(refusals) => {
            assert_eq!(refusals.len(), 1, "{refusals:?}");
            return;
        }
    };
    let ours = config
        .files
        .values()
        .next()
        .unwrap()
        .content
        .as_ref()
        .unwrap()
        .bytes()
        .unwrap();
    if url.is_empty() {
        return assert!(ours.is_empty());
    }
    // A browser strips white space and control characters from both ends first; here they are
    // content.
    if url.trim_matches(|c| c <= ' ') != url {
        return;
    }
    let theirs = data_url::DataUrl::process(url).unwrap();
    let (theirs, rest) = theirs.decode_to_vec().unwrap();
    assert!(rest.is_none());
    assert_eq!(ours, theirs, "{url:?}");
}
